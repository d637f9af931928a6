//! Where the programs, kernels and images are that the tests are about.

use std::env;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// A built program: `$COPPICE_VMM` and the like, or the first in `$PATH`.
///
/// # Panics
/// It is nowhere.
pub fn program(name: &str) -> PathBuf {
    let variable = name.to_uppercase().replace('-', "_");
    if let Some(path) = env::var_os(&variable) {
        return path.into();
    }
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
        .unwrap_or_else(|| {
            panic!("{name} is not in PATH; run the tests by `./dev test` or `./dev host -- CMD`")
        })
}

/// A file of the built guest kernel: `vmlinux` or `bzImage`.
pub fn kernel(name: &str) -> PathBuf {
    cached(&format!("kernels/default/{name}"))
}

/// A built image.
pub fn image(name: &str) -> PathBuf {
    cached(&format!("images/{name}.ext4"))
}

fn cached(name: &str) -> PathBuf {
    let set = |name| env::var_os(name).map(PathBuf::from);
    let cache = set("COPPICE_CACHE")
        .or_else(|| Some(set("XDG_CACHE_HOME")?.join("coppice")))
        .or_else(|| Some(set("HOME")?.join(".cache/coppice")))
        .expect("HOME or COPPICE_CACHE is set");
    let path = cache.join(name);
    assert!(
        path.exists(),
        "{} is missing; `./dev build` makes it",
        path.display()
    );
    path
}

/// Fails the test where Linux guests cannot run. It is never skipped: a test
/// that did not run proves nothing.
pub fn require_kvm() {
    static PROBE: OnceLock<Result<(), String>> = OnceLock::new();
    let verdict = PROBE.get_or_init(|| {
        let output = Command::new(program("coppice-vmm"))
            .arg("--probe")
            .output()
            .map_err(|error| error.to_string())?;
        match output.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&output.stdout).into_owned()),
        }
    });
    if let Err(why) = verdict {
        panic!("no Linux guest can run here; use `./dev test` or `./dev host -- CMD`:\n{why}");
    }
}
