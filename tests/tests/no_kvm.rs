//! A host whose /dev/kvm is missing, forbidden or something else is told what is
//! wrong and what to do. Each case gets a /dev of its own in a private mount
//! namespace, so these tests run as root and harm nothing else.

use std::process::{Command, Output};

use coppice_tests::{Scratch, kernel, program};
use serde_json::json;

/// Replaces /dev, runs `prepare` in it and then the VMM.
fn with_dev(prepare: &str) -> Output {
    let scratch = Scratch::new();
    let config = json!({
        "boot-source": { "kernel_image_path": kernel("vmlinux") },
        "vsock": { "guest_cid": 3, "uds_path": scratch.path("vsock") },
    });
    let config = scratch.file("config.json", config.to_string());
    let script = format!(
        "set -e; mount -t tmpfs dev /dev; mknod -m 666 /dev/null c 1 3; \
         mknod -m 666 /dev/urandom c 1 9; {prepare}; exec $as \"$@\""
    );
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", &script, "sh"])
        .arg(program("coppice-vmm"))
        .args(["--no-api", "--config-file"])
        .arg(&config)
        .output()
        .expect("unshare (util-linux) can be run, as root");
    scratch.assert_nothing_left();
    output
}

/// The VMM ended with the code for trouble of the host and named `words`.
fn told(output: &Output, words: &[&str]) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    for word in words {
        assert!(stderr.contains(word), "{word:?} is not in: {stderr}");
    }
}

#[test]
fn a_missing_kvm_names_the_module_to_load() {
    let output = with_dev("as=");
    told(&output, &["/dev/kvm does not exist", "kvm_amd"]);
}

#[test]
fn a_forbidden_kvm_names_the_group_to_join() {
    let output = with_dev(
        "mknod -m 000 /dev/kvm c 10 232; as='setpriv --bounding-set=-all --inh-caps=-all'",
    );
    told(&output, &["/dev/kvm may not be opened", "group"]);
}

#[test]
fn another_device_in_its_place_is_recognised() {
    let output = with_dev("mknod -m 666 /dev/kvm c 1 3; as=");
    told(&output, &["/dev/kvm is not the KVM device"]);
}
