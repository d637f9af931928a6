//! One process is one microVM.
//!
//! The modules form a map whose arrows point down and right only; the test
//! `arrows` reads the `use crate::` lines and fails on any other arrow.
//!
//! ```text
//! units      addresses, sizes, ids as types; no unsafe, no I/O
//! state      how saved states are encoded and what is wrong with one
//! spec       what was asked for: plain data, parsed and checked           → units
//! logger     log lines, written at once and never waited for               → spec
//! sys        the only system calls: KVM, mmap, eventfd, signals            → units
//! arch       x86_64 tables as data: layout, CPUID, MSRs, ACPI, boot page   → units
//! memory     regions as stacks of layers, what changed, its copy          → units, sys, arch
//! vcpu       the run loop: exit → outcome; its state saved and filled      → units, sys, arch, memory, bus
//! bus        MMIO and port ranges to devices                               → units
//! virtio     virtqueues, the MMIO transport, the device trait              → units, state, bus, memory
//! backends   what the host lends: files, sockets, terminals, entropy       → units, sys, spec
//! devices    one folder each: block, vsock, rng, serial, i8042 …           → units, state, sys, spec, virtio | bus, backends
//! board      specification → address map, interrupts, devices, boot image  → everything above
//! machine    threads, lifecycle, snapshots and restores                    → everything above
//! probe      can this host run Linux guests?                               → units, sys, arch, memory
//! api        HTTP over a Unix socket → typed requests                      → machine, logger, spec
//! ```
#![deny(missing_docs)]

pub mod api;
pub mod arch;
pub mod backends;
pub mod board;
pub mod bus;
pub mod devices;
pub mod logger;
pub mod machine;
pub mod memory;
pub mod probe;
pub mod spec;
pub mod state;
pub mod sys;
pub mod units;
pub mod vcpu;
pub mod virtio;
