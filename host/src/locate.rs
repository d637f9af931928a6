//! Where things are: our own programs, built images, the built kernel.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::error::Error;

/// A program of ours that is started or packed.
#[derive(Debug, Clone, Copy)]
pub struct Program {
    /// File name.
    pub name: &'static str,
    /// Environment variable that names the file instead.
    pub variable: &'static str,
}

/// The VMM: one process is one machine.
pub const VMM: Program = Program {
    name: "coppice-vmm",
    variable: "COPPICE_VMM",
};

/// The guest's agent.
pub const AGENT: Program = Program {
    name: "coppice-agent",
    variable: "COPPICE_AGENT",
};

/// The directories in which things are looked for.
#[derive(Debug, Clone)]
pub struct Places {
    /// What the build keeps: `images/NAME.ext4`, `kernels/default/vmlinux`.
    pub cache: PathBuf,
    /// Directories of programs, in order.
    pub programs: Vec<PathBuf>,
}

impl Places {
    /// As the environment says: the cache is `$COPPICE_CACHE`, or `coppice` in
    /// `$XDG_CACHE_HOME` or `~/.cache`; programs are beside this one or in
    /// `$PATH`.
    pub fn from_env() -> Self {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let cache = set("COPPICE_CACHE").map(PathBuf::from).unwrap_or_else(|| {
            let home = || PathBuf::from(set("HOME").unwrap_or_else(|| "/root".into()));
            set("XDG_CACHE_HOME")
                .map_or_else(|| home().join(".cache"), PathBuf::from)
                .join("coppice")
        });
        // A machine's VMM may have another working directory than we have.
        let cache = std::path::absolute(&cache).unwrap_or(cache);
        let beside = std::env::current_exe().ok();
        let beside = beside.iter().filter_map(|exe| exe.parent());
        let path = set("PATH").unwrap_or_default();
        let programs = beside
            .map(Path::to_path_buf)
            .chain(std::env::split_paths(&path))
            .collect();
        Self { cache, programs }
    }

    /// The file of a program of ours.
    pub fn program(&self, program: Program) -> Result<PathBuf, Error> {
        self.program_or(program, std::env::var_os(program.variable))
    }

    fn program_or(&self, program: Program, named: Option<OsString>) -> Result<PathBuf, Error> {
        let missing = |tried| Error::NoProgram {
            name: program.name,
            variable: program.variable,
            tried,
        };
        if let Some(named) = named.filter(|value| !value.is_empty()) {
            let named = PathBuf::from(named);
            return match named.is_file() {
                true => Ok(named),
                false => Err(missing(vec![named])),
            };
        }
        self.programs
            .iter()
            .map(|dir| dir.join(program.name))
            .find(|file| file.is_file())
            // The whole of PATH would drown the message.
            .ok_or_else(|| {
                let first = self.programs.iter().take(1);
                let mut tried: Vec<_> = first.map(|dir| dir.join(program.name)).collect();
                tried.push("$PATH".into());
                missing(tried)
            })
    }

    /// The file of an image: a path if it has a slash, else a built image.
    pub fn image(&self, image: &OsStr) -> Result<PathBuf, Error> {
        if image.as_bytes().contains(&b'/') {
            return file("image", Path::new(image));
        }
        let mut name = image.to_os_string();
        name.push(".ext4");
        let tried = self.cache.join("images").join(name);
        match tried.is_file() {
            true => Ok(tried),
            false => Err(Error::NoImage {
                name: image.to_string_lossy().into_owned(),
                tried,
            }),
        }
    }

    /// The kernel: the named file, or the built one.
    pub fn kernel(&self, named: Option<&Path>) -> Result<PathBuf, Error> {
        if let Some(named) = named {
            return file("kernel", named);
        }
        let built = self.cache.join("kernels/default/vmlinux");
        match built.is_file() {
            true => Ok(built),
            false => Err(Error::NoKernel(built)),
        }
    }
}

/// A named file, as a path that holds wherever the VMM's process is.
pub fn file(what: &'static str, path: &Path) -> Result<PathBuf, Error> {
    let unusable = |source| Error::File {
        what,
        path: path.to_path_buf(),
        source,
    };
    // Block devices serve as images, too.
    if path.metadata().map_err(unusable)?.is_dir() {
        return Err(Error::NotAFile {
            what,
            path: path.to_path_buf(),
        });
    }
    std::path::absolute(path).map_err(unusable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn places(dir: &Path) -> Places {
        Places {
            cache: dir.join("cache"),
            programs: vec![dir.join("bin"), dir.join("other")],
        }
    }

    fn touch(file: &Path) {
        fs::create_dir_all(file.parent().expect("has a parent")).expect("directory");
        fs::write(file, b"").expect("file");
    }

    #[test]
    fn names_are_built_images_and_slashes_are_paths() {
        let dir = tempfile::tempdir().expect("directory");
        let places = places(dir.path());
        let built = dir.path().join("cache/images/base.ext4");
        touch(&built);
        assert_eq!(places.image("base".as_ref()).expect("found"), built);
        assert_eq!(places.image(built.as_os_str()).expect("found"), built);

        let error = places
            .image("nosuch".as_ref())
            .expect_err("missing")
            .to_string();
        assert!(error.contains("cache/images/nosuch.ext4"), "{error}");
        assert!(error.contains("`./dev build`"), "{error}");
        let error = places
            .image("./nosuch".as_ref())
            .expect_err("missing")
            .to_string();
        assert!(error.contains("No such file"), "{error}");
        let error = places
            .image(dir.path().as_os_str())
            .expect_err("directory")
            .to_string();
        assert!(error.contains("is not a file"), "{error}");
    }

    #[test]
    fn the_kernel_is_the_named_or_the_built_one() {
        let dir = tempfile::tempdir().expect("directory");
        let places = places(dir.path());
        let error = places.kernel(None).expect_err("missing").to_string();
        assert!(error.contains("kernels/default/vmlinux"), "{error}");
        let built = dir.path().join("cache/kernels/default/vmlinux");
        touch(&built);
        assert_eq!(places.kernel(None).expect("found"), built);
        assert_eq!(places.kernel(Some(&built)).expect("found"), built);
    }

    #[test]
    fn a_named_program_is_never_replaced_by_another() {
        let dir = tempfile::tempdir().expect("directory");
        let places = places(dir.path());
        assert!(places.program_or(VMM, None).is_err());
        let second = dir.path().join("other/coppice-vmm");
        touch(&second);
        assert_eq!(places.program_or(VMM, None).expect("found"), second);
        let error = places
            .program_or(VMM, Some("/nosuch/vmm".into()))
            .expect_err("missing");
        let error = error.to_string();
        assert!(
            error.contains("/nosuch/vmm") && error.contains("COPPICE_VMM"),
            "{error}"
        );
    }
}
