use super::*;
use std::fs;

/// A host that has these files.
fn host(files: &[(&str, &str)]) -> (tempfile::TempDir, System) {
    let dir = tempfile::tempdir().expect("directory");
    for (path, text) in files {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().expect("has a parent")).expect("directory");
        fs::write(path, format!("{text}\n")).expect("file");
    }
    let system = System::new(dir.path());
    (dir, system)
}

fn status(checks: &[Check], id: &str) -> Status {
    let mut found = checks.iter().filter(|check| check.id == id);
    found
        .next()
        .unwrap_or_else(|| panic!("no check {id}"))
        .status
}

#[test]
fn a_bare_host_gets_a_remedy_for_each_warning() {
    let (_dir, system) = host(&[]);
    let checks = kernel::checks(&system);
    for id in [
        "tun",
        "userfaultfd",
        "cgroup",
        "user-namespaces",
        "huge-pages",
    ] {
        assert_eq!(status(&checks, id), Status::Warn, "{id}");
    }
    for check in checks.iter().filter(|check| check.status != Status::Ok) {
        assert!(!check.remedy.is_empty(), "{check:?}");
    }
}

#[test]
fn a_good_host_has_nothing_to_do() {
    let (_dir, system) = host(&[
        ("dev/net/tun", ""),
        ("proc/sys/vm/unprivileged_userfaultfd", "1"),
        (
            "sys/fs/cgroup/cgroup.controllers",
            "cpuset cpu io memory pids",
        ),
        ("proc/sys/user/max_user_namespaces", "1000"),
        ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "0"),
        ("proc/sys/vm/max_map_count", "65530"),
        ("sys/devices/system/cpu/smt/active", "0"),
        ("sys/kernel/mm/ksm/run", "0"),
        ("proc/swaps", "Filename Type Size Used Priority"),
        ("sys/devices/system/cpu/vulnerabilities/mds", "Not affected"),
    ]);
    let mut checks = kernel::checks(&system);
    checks.extend(sharing::checks(&system));
    for check in checks {
        assert_eq!(check.status, Status::Ok, "{check:?}");
        assert_eq!(check.remedy, "", "{check:?}");
    }
}

#[test]
fn what_machines_could_spy_with_is_named() {
    let (_dir, system) = host(&[
        ("sys/devices/system/cpu/smt/active", "1"),
        ("sys/kernel/mm/ksm/run", "1"),
        ("proc/swaps", "Filename Type\n/dev/sda2 partition"),
        (
            "sys/devices/system/cpu/vulnerabilities/mds",
            "Vulnerable: no microcode",
        ),
        (
            "sys/devices/system/cpu/vulnerabilities/l1tf",
            "Mitigation: PTE Inversion",
        ),
        ("sys/fs/cgroup/cgroup.controllers", "cpu pids"),
    ]);
    let checks = sharing::checks(&system);
    for id in ["smt", "ksm", "swap", "cpu-vulnerabilities"] {
        assert_eq!(status(&checks, id), Status::Warn, "{id}");
    }
    let cpu = checks
        .iter()
        .find(|check| check.id == "cpu-vulnerabilities");
    let text = &cpu.expect("found").text;
    assert!(text.contains("mds") && !text.contains("l1tf"), "{text}");
    let cgroup = kernel::checks(&system);
    let cgroup = cgroup
        .iter()
        .find(|check| check.id == "cgroup")
        .expect("found");
    assert!(cgroup.text.ends_with(": memory."), "{}", cgroup.text);
}

#[test]
fn the_probe_decides_about_kvm() {
    let answer = r#"{"linux":{"state":"usable"},"findings":[
        {"severity":"fine","text":"A.","remedy":""},
        {"severity":"warning","text":"B.","remedy":"Do b."},
        {"severity":"fatal","text":"C.","remedy":"Do c."}]}"#;
    let probe: Probe = serde_json::from_str(answer).expect("valid");
    let checks = kvm(Some(&Ok(probe)));
    let statuses: Vec<_> = checks.iter().map(|check| check.status).collect();
    assert_eq!(statuses, [Status::Ok, Status::Warn, Status::Fail]);
    let text = table(&checks, false);
    assert!(text.contains("FAIL  C.\n      Do c.\n"), "{text}");
    assert!(text.ends_with("put right.\n"), "{text}");
    assert_eq!(status(&kvm(Some(&Err("x".into()))), "kvm"), Status::Fail);
}
