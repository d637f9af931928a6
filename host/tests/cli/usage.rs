//! Arguments, and files that are not what they should be.

use std::fs;

use crate::bed::{Bed, outcome};

#[test]
fn help_is_no_failure_and_shows_how() {
    let bed = Bed::new();
    for (command, example) in [
        ("run", "coppice run -it -- bash"),
        ("start", "coppice start web"),
        ("exec", "coppice exec -it web -- bash"),
        ("ls", "coppice ls --json"),
        ("logs", "coppice logs web"),
        ("stop", "coppice stop --force"),
        ("snapshot", "tag"),
        ("console", "Ctrl-]"),
        ("doctor", "coppice doctor --json"),
        ("completions", "coppice completions bash"),
    ] {
        let (code, out, err) = outcome(bed.coppice([command, "--help"]));
        assert_eq!((code, err.as_str()), (Some(0), ""));
        assert!(out.contains(example), "{out}");
    }
    assert_eq!(outcome(bed.coppice(["--version"])).0, Some(0));
}

#[test]
fn completions_are_written_for_shells() {
    let bed = Bed::new();
    for shell in ["bash", "zsh", "fish"] {
        let (code, out, _) = outcome(bed.coppice(["completions", shell]));
        assert_eq!(code, Some(0));
        assert!(
            out.contains("coppice") && out.contains("timeout"),
            "{shell}"
        );
    }
}

#[test]
fn arguments_that_make_no_sense_are_failures_of_our_own() {
    let bed = Bed::new();
    for (args, said) in [
        (&["--vcpus", "33", "--", "true"][..], "1..=32"),
        (&["--memory", "0", "--", "true"], "32M"),
        (&["--timeout", "0s", "--", "true"], "at least 1ms"),
        (&["--imgae", "base", "--", "true"], "--image"),
        (&[], "CMD"),
    ] {
        let (code, out, err) = outcome(bed.run(args));
        assert_eq!((code, out.as_str()), (Some(125), ""), "{args:?}");
        assert!(err.contains(said), "{args:?}: {err}");
    }
}

#[test]
fn missing_files_are_named_with_what_makes_them() {
    let bed = Bed::new();
    let check = |args: &[&str], said: &[&str]| {
        let (code, _, err) = outcome(bed.run(args));
        assert_eq!(code, Some(125), "{err}");
        for said in said {
            assert!(err.contains(said), "{said}: {err}");
        }
    };
    check(
        &["--image", "nosuch", "--", "true"],
        &["images/nosuch.ext4", "./dev"],
    );
    check(
        &["--image", "/nosuch.img", "--", "true"],
        &["image /nosuch.img", "No such file"],
    );
    check(&["--image", "/", "--", "true"], &["not a file"]);
    check(
        &["--kernel", "/nosuch/vmlinux", "--", "true"],
        &["kernel /nosuch/vmlinux"],
    );
    check(
        &["--initrd", "/nosuch/initrd", "--", "true"],
        &["initrd /nosuch/initrd"],
    );
    fs::write(bed.path("partitioned"), [0; 4096]).expect("file");
    let partitioned = bed.path("partitioned");
    check(
        &[
            "--image",
            partitioned.to_str().expect("UTF-8"),
            "--",
            "true",
        ],
        &["no file system", "partition"],
    );
    fs::remove_file(bed.path("cache/kernels/default/vmlinux")).expect("removed");
    check(
        &["--", "true"],
        &["kernels/default/vmlinux", "./dev", "--kernel"],
    );
}

#[test]
fn missing_programs_are_named_with_what_makes_them() {
    let bed = Bed::new();
    let mut command = bed.run(&["--", "true"]);
    command.env("COPPICE_VMM", "/nosuch/vmm");
    let (code, _, err) = outcome(command);
    assert_eq!(code, Some(125));
    assert!(
        err.contains("/nosuch/vmm") && err.contains("COPPICE_VMM"),
        "{err}"
    );

    let mut command = bed.run(&["--", "true"]);
    command.env("COPPICE_AGENT", "/bin/sh");
    let (code, _, err) = outcome(command);
    assert_eq!(code, Some(125));
    assert!(
        err.contains("dynamically linked") && err.contains("./dev build"),
        "{err}"
    );
}

#[test]
fn doctor_says_what_is_missing_and_what_to_do() {
    let bed = Bed::new();
    let mut command = bed.coppice(["doctor", "--json"]);
    command.env("STAND_IN", "no-kvm");
    let (code, out, _) = outcome(command);
    assert_eq!(code, Some(1));
    let facts: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(facts["usable"], false);
    let checks = facts["checks"].as_array().expect("a list");
    let kvm = checks
        .iter()
        .find(|check| check["id"] == "kvm")
        .expect("about KVM");
    assert_eq!(kvm["status"], "fail");
    assert_eq!(kvm["remedy"], "Find one.");

    let (code, out, err) = outcome(bed.coppice(["doctor"]));
    assert_eq!(code, Some(0), "{out}{err}");
    assert!(out.contains("Machines can run here."), "{out}");
    assert!(
        out.contains("warn  There is no image named `minimal`"),
        "{out}"
    );
}
