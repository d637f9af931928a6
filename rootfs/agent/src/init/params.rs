//! The agent's words on the kernel's command line.

/// What `coppice.*` and the root mode ask for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Params {
    /// The device with the root file system; the agent is in place without it.
    pub(crate) root: Option<String>,
    /// Its type; found out if not given.
    pub(crate) root_type: Option<String>,
    /// Options for its mount.
    pub(crate) root_flags: Option<String>,
    /// Keep the device unchanged, and changes in memory.
    pub(crate) overlay: bool,
    /// Mount the root read-only.
    pub(crate) read_only: bool,
    pub(crate) hostname: Option<String>,
    /// A shell on the console; the machine ends with it.
    pub(crate) console_shell: bool,
}

impl Params {
    /// Reads the command line. Words of others are not the agent's business;
    /// an unknown word of its own is a mistake that should not pass unseen.
    pub(crate) fn parse(line: &str) -> Result<Self, String> {
        let mut params = Self::default();
        for word in line.split_ascii_whitespace() {
            if word == "--" {
                break;
            }
            match word {
                "ro" => params.read_only = true,
                "rw" => params.read_only = false,
                _ => {}
            }
            let Some(own) = word.strip_prefix("coppice.") else {
                continue;
            };
            let (name, value) = own.split_once('=').unwrap_or((own, ""));
            let text = Some(value.to_owned());
            match (name, value) {
                ("root" | "rootfstype" | "hostname", "") => {
                    return Err(format!("coppice.{name} needs a value"));
                }
                ("root", path) if !path.starts_with("/dev/") => {
                    return Err(format!(
                        "coppice.root={path} is no device; give its path, such as /dev/vda"
                    ));
                }
                ("root", _) => params.root = text,
                ("rootfstype", _) => params.root_type = text,
                ("rootflags", _) => params.root_flags = text,
                ("hostname", _) => params.hostname = text,
                ("overlay", "tmpfs") => params.overlay = true,
                ("overlay", other) => {
                    return Err(format!(
                        "coppice.overlay={other} is unknown; the one kind is `tmpfs`"
                    ));
                }
                ("console", "shell") => params.console_shell = true,
                ("console", other) => {
                    return Err(format!(
                        "coppice.console={other} is unknown; the one use is `shell`"
                    ));
                }
                _ => {
                    return Err(format!(
                        "coppice.{name} is unknown; known are root, rootfstype, rootflags, overlay, hostname, console"
                    ));
                }
            }
        }
        Ok(params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_its_own_words_among_others() {
        let line = "console=ttyS0 reboot=k panic=-1 rw coppice.root=/dev/vda \
            coppice.rootfstype=squashfs coppice.overlay=tmpfs coppice.hostname=oak coppice.console=shell -- coppice.root=x\n";
        assert_eq!(
            Params::parse(line),
            Ok(Params {
                root: Some("/dev/vda".into()),
                root_type: Some("squashfs".into()),
                root_flags: None,
                overlay: true,
                read_only: false,
                hostname: Some("oak".into()),
                console_shell: true,
            })
        );
        assert_eq!(Params::parse("quiet"), Ok(Params::default()));
        assert!(Params::parse("rw ro").unwrap().read_only);
    }

    #[test]
    fn mistakes_are_named() {
        for (line, word) in [
            ("coppice.root", "coppice.root"),
            ("coppice.root=vda", "/dev/vda"),
            ("coppice.overlay=ext4", "tmpfs"),
            ("coppice.console=getty", "shell"),
            ("coppice.rot=/dev/vda", "coppice.rot"),
        ] {
            let error = Params::parse(line).unwrap_err();
            assert!(error.contains(word), "{line}: {error}");
        }
    }
}
