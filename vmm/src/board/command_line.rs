//! The kernel command line.

use crate::arch::acpi::VirtioWindow;
use crate::arch::layout;
use crate::spec::DriveConfig;

/// What a machine boots with if its specification names no arguments: a console
/// on the serial port, an orderly end on reboot and panic, and no waiting for
/// keyboard hardware that is not there.
pub const DEFAULT_ARGS: &str =
    "console=ttyS0 reboot=k panic=1 i8042.noaux i8042.nomux i8042.dumbkbd";

/// A command line that the kernel would cut short.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the kernel command line is {len} bytes, {own} of them for the root device and the machine's \
     devices, but at most {max} fit: shorten boot_args by {over} bytes",
    max = layout::COMMAND_LINE_MAX - 1,
    over = len - (layout::COMMAND_LINE_MAX - 1)
)]
pub struct CommandLineTooLong {
    /// Bytes of the whole line.
    pub len: usize,
    /// Bytes that were added to the user's.
    pub own: usize,
}

/// The user's arguments (or [`DEFAULT_ARGS`]), the root device, and each virtio
/// device in the form that kernels with `VIRTIO_MMIO_CMDLINE_DEVICES` read.
/// What follows a `--` belongs to init and stays at the end.
///
/// # Errors
/// The line does not fit.
pub fn command_line(
    boot_args: Option<&str>,
    root: Option<&DriveConfig>,
    windows: &[VirtioWindow],
) -> Result<String, CommandLineTooLong> {
    let user = boot_args.unwrap_or(DEFAULT_ARGS);
    let words: Vec<&str> = user.split_ascii_whitespace().collect();
    warn_of_harmful(&words);
    let for_init = words
        .iter()
        .position(|word| *word == "--")
        .unwrap_or(words.len());
    let (kernel, init) = words.split_at(for_init);
    let mut line: Vec<String> = kernel.iter().map(|word| (*word).to_owned()).collect();
    if let Some(drive) = root
        && !kernel.iter().any(|word| word.starts_with("root="))
    {
        line.push(match &drive.partuuid {
            Some(partuuid) => format!("root=PARTUUID={partuuid}"),
            None => "root=/dev/vda".to_owned(),
        });
        line.push(if drive.is_read_only { "ro" } else { "rw" }.to_owned());
    }
    for window in windows {
        let (size, base, line_number) = (
            layout::VIRTIO_WINDOW_LEN / 1024,
            window.base.0,
            window.gsi.0,
        );
        line.push(format!(
            "virtio_mmio.device={size}K@{base:#x}:{line_number}"
        ));
    }
    line.extend(init.iter().map(|word| (*word).to_owned()));
    let line = line.join(" ");
    if line.len() >= layout::COMMAND_LINE_MAX {
        let own = line.len() - words.join(" ").len();
        return Err(CommandLineTooLong {
            len: line.len(),
            own,
        });
    }
    Ok(line)
}

/// Old advice for other machines that keeps devices from being found here.
fn warn_of_harmful(words: &[&str]) {
    for word in words {
        if matches!(*word, "acpi=off" | "noapic" | "nolapic") {
            log::warn!(
                "boot_args has {word:?}: the guest will not find its interrupts as announced; \
                 leave it out unless this kernel needs it"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{Gpa, Gsi};

    fn window() -> VirtioWindow {
        VirtioWindow {
            base: Gpa(0xd000_0000),
            gsi: Gsi(5),
        }
    }

    #[test]
    fn devices_precede_inits_own_arguments() {
        let drive = DriveConfig {
            is_root_device: true,
            ..Default::default()
        };
        let line = command_line(Some("quiet  -- --first"), Some(&drive), &[window()]).unwrap();
        assert_eq!(
            line,
            "quiet root=/dev/vda rw virtio_mmio.device=4K@0xd0000000:5 -- --first"
        );
    }

    #[test]
    fn a_root_that_the_user_named_is_kept() {
        let drive = DriveConfig {
            is_read_only: true,
            ..Default::default()
        };
        let line = command_line(Some("root=/dev/vdb1"), Some(&drive), &[]).unwrap();
        assert_eq!(line, "root=/dev/vdb1");
        let drive = DriveConfig {
            partuuid: Some("0eaa91a0-01".into()),
            ..drive
        };
        let line = command_line(Some(""), Some(&drive), &[]).unwrap();
        assert_eq!(line, "root=PARTUUID=0eaa91a0-01 ro");
    }

    #[test]
    fn the_longest_line_fits_and_one_more_byte_does_not() {
        let longest = "x".repeat(layout::COMMAND_LINE_MAX - 1);
        assert_eq!(command_line(Some(&longest), None, &[]).unwrap(), longest);
        let refused = command_line(Some(&format!("{longest}y")), None, &[]).unwrap_err();
        assert_eq!(refused, CommandLineTooLong { len: 2048, own: 0 });
        assert!(refused.to_string().contains("shorten boot_args by 1 bytes"));
        assert!(command_line(Some(&longest), None, &[window()]).is_err());
    }
}
