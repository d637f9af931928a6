//! `/boot-source`: what the machine boots.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::SpecError;
use super::parse::check_path;

/// The x86 boot protocol's limit for the command line, less its final NUL.
const MAX_BOOT_ARGS: usize = 2047;

/// Kernel, initrd and kernel command line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BootSource {
    /// The kernel: an ELF `vmlinux` or a bzImage.
    pub kernel_image_path: PathBuf,
    /// The initial RAM disk, if the kernel needs one.
    pub initrd_path: Option<PathBuf>,
    /// The kernel command line; a sensible one if left out.
    pub boot_args: Option<String>,
}

impl BootSource {
    /// Checks what can be known without the host.
    ///
    /// # Errors
    /// The first field that breaks a rule.
    pub fn check(&self) -> Result<(), SpecError> {
        check_path("kernel_image_path", &self.kernel_image_path)?;
        if let Some(path) = &self.initrd_path {
            check_path("initrd_path", path)?;
        }
        let args = self.boot_args.as_deref().unwrap_or_default();
        // A NUL would silently cut the line short, and the kernel splits words at
        // control characters that no one can see in a log.
        if let Some((at, odd)) = args.char_indices().find(|(_, c)| !matches!(c, ' '..='~')) {
            let rule = format!("only printable ASCII is allowed, and byte {at} is {odd:?}");
            return Err(SpecError::new("boot_args", args, rule));
        }
        if args.len() > MAX_BOOT_ARGS {
            let rule = format!(
                "its {} bytes are more than the {MAX_BOOT_ARGS} that fit",
                args.len()
            );
            return Err(SpecError::new("boot_args", args, rule));
        }
        Ok(())
    }
}
