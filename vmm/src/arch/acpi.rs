//! ACPI tables of a hardware-reduced machine (ACPI 6.5): RSDP, XSDT, FADT,
//! MADT and a DSDT that names each device.
//!
//! There is no MCFG, since there is no PCI bus, and no PM timer, SCI or FACS:
//! hardware-reduced ACPI (§3.11.1) sleeps and resets through two registers.

use acpi_tables::aml::{
    Arg, Device, EISAName, Equal, IO, If, Interrupt, Memory32Fixed, Method, Name, Notify, ONE,
    Package, Path, ResourceTemplate, Scope, ZERO,
};
use acpi_tables::madt::{
    EnabledStatus, IoApic, LocalInterruptController, MADT, ProcessorLocalApic,
};
use acpi_tables::rsdp::Rsdp;
use acpi_tables::sdt::{GenericAddress, Sdt};
use acpi_tables::xsdt::XSDT;
use acpi_tables::{Aml, AmlSink};

use super::layout;
use crate::units::{Gpa, Gsi};

const OEM_ID: [u8; 6] = *b"COPPCE";
const OEM_TABLE_ID: [u8; 8] = *b"COPPICVM";
const OEM_REVISION: u32 = 1;

/// A virtio-mmio device to be announced.
#[derive(Clone, Copy, Debug)]
pub struct VirtioWindow {
    /// First byte of its registers.
    pub base: Gpa,
    /// Its interrupt.
    pub gsi: Gsi,
}

/// The registers through which a guest sleeps and resets.
#[derive(Clone, Copy, Debug)]
pub struct PowerRegisters {
    /// Port of the sleep control and of the reset register.
    pub control_port: u16,
    /// Port of the sleep status register.
    pub status_port: u16,
    /// What the guest writes to reset the machine.
    pub reset_value: u8,
    /// The sleep type that means power-off (S5).
    pub s5_type: u8,
}

/// What the tables say of a machine.
#[derive(Clone, Debug)]
pub struct AcpiSpec {
    /// Number of CPUs, whose APIC ids count from 0.
    pub vcpus: u8,
    /// The virtio devices in the order in which the guest should find them.
    pub virtio: Vec<VirtioWindow>,
    /// Power-off and reset.
    pub power: PowerRegisters,
    /// Port of the panic notifier.
    pub pvpanic_port: u16,
}

/// All tables as one block of bytes to be placed at [`layout::ACPI_TABLES`].
/// The RSDP comes first.
pub fn tables(spec: &AcpiSpec) -> Vec<u8> {
    let base = layout::ACPI_TABLES.0;
    let mut block = Block {
        base,
        bytes: vec![0; Rsdp::len()],
    };
    let dsdt = block.add(&dsdt(spec));
    let fadt = block.add(&fadt(spec, dsdt));
    let madt = block.add(&madt(spec.vcpus));
    let mut xsdt = XSDT::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    xsdt.add_entry(fadt);
    xsdt.add_entry(madt);
    let xsdt = block.add(&xsdt);
    let rsdp = bytes_of(&Rsdp::new(OEM_ID, xsdt));
    block.bytes[..rsdp.len()].copy_from_slice(&rsdp);
    block.bytes
}

/// Tables laid one behind the other.
struct Block {
    base: u64,
    bytes: Vec<u8>,
}

impl Block {
    /// Appends `table` on a 16-byte boundary and returns its address.
    fn add(&mut self, table: &dyn Aml) -> u64 {
        self.bytes.resize(self.bytes.len().next_multiple_of(16), 0);
        let address = self.base + self.bytes.len() as u64;
        self.bytes.extend(bytes_of(table));
        address
    }
}

#[derive(Default)]
struct Sink(Vec<u8>);

impl AmlSink for Sink {
    fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }
}

fn bytes_of(aml: &dyn Aml) -> Vec<u8> {
    let mut sink = Sink::default();
    aml.to_aml_bytes(&mut sink);
    sink.0
}

fn fadt(spec: &AcpiSpec, dsdt: u64) -> Sdt {
    // Offsets and bits: ACPI 6.5 §5.2.9, tables 5.9–5.11.
    const LEN: u32 = 276;
    const REVISION: u8 = 6;
    const BOOT_FLAGS: usize = 109;
    const FLAGS: usize = 112;
    const RESET_REGISTER: usize = 116;
    const RESET_VALUE: usize = 128;
    const MINOR_REVISION: usize = 131;
    const X_DSDT: usize = 140;
    const SLEEP_CONTROL: usize = 244;
    const SLEEP_STATUS: usize = 256;
    const HYPERVISOR_ID: usize = 268;
    /// Keyboard controller present; no VGA, no MSI, no CMOS clock.
    const BOOT_8042_ONLY: u16 = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 5;
    const FLAG_WBINVD: u32 = 1 << 0;
    /// Power and sleep buttons are no fixed hardware.
    const FLAG_NO_BUTTONS: u32 = 1 << 4 | 1 << 5;
    const FLAG_RESET_REGISTER: u32 = 1 << 10;
    const FLAG_HW_REDUCED: u32 = 1 << 20;

    let control = GenericAddress::io_port_address::<u8>(spec.power.control_port);
    let status = GenericAddress::io_port_address::<u8>(spec.power.status_port);
    let mut fadt = Sdt::new(*b"FACP", LEN, REVISION, OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    fadt.write_u16(BOOT_FLAGS, BOOT_8042_ONLY);
    fadt.write_u32(
        FLAGS,
        FLAG_WBINVD | FLAG_NO_BUTTONS | FLAG_RESET_REGISTER | FLAG_HW_REDUCED,
    );
    fadt.write(RESET_REGISTER, control);
    fadt.write_u8(RESET_VALUE, spec.power.reset_value);
    fadt.write_u8(MINOR_REVISION, 5);
    fadt.write_u64(X_DSDT, dsdt);
    fadt.write(SLEEP_CONTROL, control);
    fadt.write(SLEEP_STATUS, status);
    fadt.write_bytes(HYPERVISOR_ID, b"COPPICE\0");
    fadt.update_checksum();
    fadt
}

fn madt(vcpus: u8) -> MADT {
    let mut madt = MADT::new(
        OEM_ID,
        OEM_TABLE_ID,
        OEM_REVISION,
        LocalInterruptController::Address(layout::LOCAL_APIC),
    );
    for id in 0..vcpus {
        madt.add_structure(ProcessorLocalApic::new(id, id, EnabledStatus::Enabled));
    }
    madt.add_structure(IoApic::new(vcpus, layout::IO_APIC, 0));
    madt
}

fn dsdt(spec: &AcpiSpec) -> Sdt {
    const LEN: u32 = 36;
    const REVISION: u8 = 6;
    let mut dsdt = Sdt::new(*b"DSDT", LEN, REVISION, OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    let s5 = spec.power.s5_type;
    dsdt.append_slice(&bytes_of(&Name::new(
        "_S5_".into(),
        &Package::new(vec![&s5]),
    )));
    dsdt.append_slice(&serial());
    dsdt.append_slice(&keyboard());
    dsdt.append_slice(&pvpanic(spec.pvpanic_port));
    dsdt.append_slice(&generation());
    dsdt.append_slice(&events());
    for (index, window) in spec.virtio.iter().enumerate() {
        dsdt.append_slice(&virtio(index, window));
    }
    dsdt
}

fn serial() -> Vec<u8> {
    let id = EISAName::new("PNP0501");
    device(
        "COM1",
        &id,
        0,
        &[
            &IO::new(layout::SERIAL_PORT, layout::SERIAL_PORT, 1, 8),
            &edge_interrupt(layout::SERIAL_GSI),
        ],
    )
}

fn keyboard() -> Vec<u8> {
    let id = EISAName::new("PNP0303");
    let (data, command) = (layout::I8042_PORT, layout::I8042_PORT + 4);
    device(
        "PS2K",
        &id,
        0,
        &[
            &IO::new(data, data, 1, 1),
            &IO::new(command, command, 1, 1),
            &edge_interrupt(layout::I8042_GSI),
        ],
    )
}

fn pvpanic(port: u16) -> Vec<u8> {
    device("PEVT", &"QEMU0001", 0, &[&IO::new(port, port, 1, 1)])
}

/// Path of the generation identifier's device.
const GENERATION: &str = "_SB_.VGEN";

/// The generation identifier: its compatible id, its description and the package
/// of its address, low half first, are those that "Virtual Machine Generation ID"
/// (Microsoft, 2012) asks for.
fn generation() -> Vec<u8> {
    const COMPATIBLE: &str = "VM_Gen_Counter";
    let address = layout::GENERATION.0;
    let (low, high) = (address as u32, (address >> 32) as u32);
    let hardware_id = Name::new("_HID".into(), &"COPP0001");
    let compatible_id = Name::new("_CID".into(), &COMPATIBLE);
    let description = Name::new("_DDN".into(), &COMPATIBLE);
    let address = Name::new("ADDR".into(), &Package::new(vec![&low, &high]));
    let device = Device::new(
        Path::new(GENERATION),
        vec![&hardware_id, &compatible_id, &description, &address],
    );
    bytes_of(&device)
}

/// The generic event device (ACPI 6.5 §5.6.9): its interrupt says that the
/// generation identifier changed.
fn events() -> Vec<u8> {
    /// "The generation identifier has changed."
    const CHANGED: u8 = 0x80;
    let hardware_id = Name::new("_HID".into(), &"ACPI0013");
    let unique_id = Name::new("_UID".into(), &ZERO);
    let interrupt = edge_interrupt(layout::EVENT_GSI);
    let resources = ResourceTemplate::new(vec![&interrupt]);
    let resources = Name::new("_CRS".into(), &resources);
    let generation = Path::new(&format!("\\{GENERATION}"));
    let notify = Notify::new(&generation, &CHANGED);
    let raised = Equal::new(&Arg(0), &layout::EVENT_GSI.0);
    let when_raised = If::new(&raised, vec![&notify]);
    let event = Method::new("_EVT".into(), 1, true, vec![&when_raised]);
    let device = Device::new(
        Path::new("_SB_.GED0"),
        vec![&hardware_id, &unique_id, &resources, &event],
    );
    bytes_of(&device)
}

fn virtio(index: usize, window: &VirtioWindow) -> Vec<u8> {
    device(
        &format!("V{index:03}"),
        &"LNRO0005",
        index as u32,
        &[
            &Memory32Fixed::new(true, window.base.0 as u32, layout::VIRTIO_WINDOW_LEN as u32),
            &edge_interrupt(window.gsi),
        ],
    )
}

fn edge_interrupt(gsi: Gsi) -> Interrupt {
    Interrupt::new(true, true, false, false, gsi.0)
}

/// One device below `\_SB`, coherent with the CPUs' caches.
fn device(name: &str, hardware_id: &dyn Aml, unique_id: u32, resources: &[&dyn Aml]) -> Vec<u8> {
    let hardware_id = Name::new("_HID".into(), hardware_id);
    let unique_id = Name::new("_UID".into(), &unique_id);
    let coherent = Name::new("_CCA".into(), &ONE);
    let resources = ResourceTemplate::new(resources.to_vec());
    let resources = Name::new("_CRS".into(), &resources);
    let device = Device::new(
        Path::new(name),
        vec![&hardware_id, &unique_id, &coherent, &resources],
    );
    bytes_of(&Scope::new("_SB_".into(), vec![&device]))
}

#[cfg(test)]
#[path = "acpi_test.rs"]
mod tests;
