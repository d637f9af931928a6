use std::os::unix::fs::PermissionsExt as _;

use vmm_sys_util::tempdir::TempDir;

use super::*;

/// The one fatal finding of `probe`.
fn fatal(probe: &Probe) -> &Finding {
    let mut fatal = probe
        .findings
        .iter()
        .filter(|f| f.severity == Severity::Fatal);
    let one = fatal.next().expect("a probe of a bad device finds it");
    assert!(fatal.next().is_none(), "one trouble, one finding");
    one
}

#[test]
fn a_missing_device_is_named_with_a_remedy() {
    let probe = probe_at(Path::new("/nowhere/kvm"));
    assert_eq!(probe.kvm, Kvm::Missing);
    assert!(!probe.is_usable());
    let finding = fatal(&probe);
    assert!(finding.text.contains("/nowhere/kvm is missing"));
    assert!(!finding.remedy.is_empty());
}

#[test]
fn a_device_that_is_not_kvm_is_told_apart() {
    let probe = probe_at(Path::new("/dev/null"));
    assert!(matches!(probe.kvm, Kvm::NotKvm { .. }), "{:?}", probe.kvm);
    assert!(fatal(&probe).text.contains("/dev/null is not a KVM"));
}

#[test]
fn a_device_that_cannot_be_opened_carries_the_reason() {
    // Root may open anything, so a directory stands for what may not be opened.
    let dir = TempDir::new().expect("a temporary directory");
    let mode = std::fs::Permissions::from_mode(0o000);
    std::fs::set_permissions(dir.as_path(), mode).expect("the mode can be set");
    let probe = probe_at(dir.as_path());
    assert!(matches!(probe.kvm, Kvm::NoPermission { errno } if errno != 0));
    assert!(fatal(&probe).text.contains("cannot be opened"));
}

#[test]
fn an_instruction_that_fails_is_named_in_text_and_json() {
    let linux = Linux::Unusable {
        instruction: Some("xrstor".into()),
        why: "KVM gave up".into(),
    };
    let kvm = Kvm::Present {
        api_version: 12,
        max_vcpus: 8,
        missing: vec![],
        missing_optional: vec!["KVM_CAP_XSAVE2"],
    };
    let host = HostFacts::gather();
    let findings = findings::findings(Path::new(KVM_DEVICE), &kvm, &linux, &host, None);
    let probe = Probe {
        kvm,
        linux,
        host,
        cost: None,
        findings,
    };
    assert!(probe.to_string().contains("failed at xrstor"));
    assert!(probe.to_string().contains("KVM_CAP_XSAVE2"));
    let json = serde_json::to_value(&probe).expect("a probe is plain data");
    assert_eq!(json["linux"]["state"], "unusable");
    assert_eq!(json["linux"]["instruction"], "xrstor");
    assert_eq!(json["kvm"]["state"], "present");
}

/// Whatever kind of KVM this machine has, a probe of it ends, and its verdict
/// agrees with its findings.
#[test]
fn this_host_gets_a_verdict() {
    let probe = probe();
    let fatal = probe.findings.iter().any(|f| f.severity == Severity::Fatal);
    assert_eq!(probe.is_usable(), !fatal, "{probe}");
}
