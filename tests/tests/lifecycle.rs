//! How machines end, pause and go on.

use std::io::Read as _;
use std::time::Duration;

use coppice_agent_protocol::ExecRequest;
use coppice_tests::Guest;
use nix::sys::signal::Signal;
use serde_json::json;

/// Exit codes of `coppice-vmm`, as its help lists them.
const ORDERLY: Option<i32> = Some(0);
const GUEST_PANIC: Option<i32> = Some(3);

#[test]
fn a_reboot_ends_the_machine() {
    let mut machine = Guest::running("echo up=1; reboot -f").boot_by_api();
    machine.console().value("up");
    let end = machine.end();
    assert_eq!(end.code, ORDERLY, "{}", end.stderr);
    assert!(end.stderr.contains("reset"), "{}", end.stderr);
}

#[test]
fn a_power_off_ends_the_machine() {
    let mut machine = Guest::running("echo up=1; poweroff -f").boot();
    let end = machine.end();
    assert_eq!(end.code, ORDERLY, "{}", end.stderr);
    assert!(end.stderr.contains("powered itself off"), "{}", end.stderr);
}

#[test]
fn a_kernel_panic_is_told_apart() {
    let script = "echo last words; echo c > /proc/sysrq-trigger";
    let mut machine = Guest::running(script).boot();
    let end = machine.end();
    assert_eq!(end.code, GUEST_PANIC, "{}", end.stderr);
    assert!(end.stderr.contains("panic"), "{}", end.stderr);
    assert!(end.console.contains("last words"));
    assert!(end.console.contains("Kernel panic"), "{}", end.console);
}

#[test]
fn sigterm_ends_it_in_an_orderly_way() {
    let mut machine = Guest::running("echo up=1; exec sh").boot();
    machine.console().value("up");
    machine.signal(Signal::SIGTERM);
    let end = machine.end();
    assert_eq!(end.code, ORDERLY, "{}", end.stderr);
}

#[test]
fn ctrl_alt_del_reaches_the_guests_keyboard() {
    let mut machine = Guest::running("echo up=1; exec sh").boot();
    machine.console().value("up");
    machine.put("/actions", &json!({ "action_type": "SendCtrlAltDel" }));
    let end = machine.end();
    assert_eq!(end.code, ORDERLY, "{}", end.stderr);
    assert!(end.stderr.contains("reset"), "{}", end.stderr);
}

#[test]
fn a_paused_machine_stands_still_and_goes_on_where_it_was() {
    let mut machine = Guest::serving().vcpus(2).boot();
    machine.wait_for_agent();
    let uptime = |text: &str| -> f64 { text.split(' ').next().unwrap().parse().unwrap() };
    let before = uptime(&machine.output("cat /proc/uptime"));

    for _ in 0..2 {
        machine.set_state("Paused");
    }
    let mut asked = machine.connect_unanswered();
    asked
        .set_read_timeout(Some(Duration::from_millis(700)))
        .unwrap();
    let silence = asked.read(&mut [0]).unwrap_err();
    assert_eq!(silence.kind(), std::io::ErrorKind::WouldBlock);
    let description = machine.request("GET", "/", None).json();
    assert_eq!(description["state"], "Paused");

    for _ in 0..2 {
        machine.set_state("Resumed");
    }
    let after = uptime(&machine.output("cat /proc/uptime"));
    assert!(after >= before);
    assert_eq!(machine.request("GET", "/", None).json()["state"], "Running");
    machine.signal(Signal::SIGTERM);
    assert_eq!(machine.end().code, ORDERLY);
}

#[test]
fn what_comes_too_late_is_refused_and_harms_nothing() {
    let mut machine = Guest::serving().boot();
    machine.wait_for_agent();
    for (method, path, body) in [
        (
            "PUT",
            "/machine-config",
            json!({ "vcpu_count": 2, "mem_size_mib": 64 }),
        ),
        ("PUT", "/boot-source", json!({ "kernel_image_path": "/x" })),
        (
            "PUT",
            "/vsock",
            json!({ "guest_cid": 4, "uds_path": "/tmp/x" }),
        ),
        ("PUT", "/actions", json!({ "action_type": "InstanceStart" })),
        ("PUT", "/actions", json!({ "action_type": "Explode" })),
        ("PATCH", "/vm", json!({ "state": "Sideways" })),
    ] {
        let answer = machine.request(method, path, Some(&body));
        assert!(!answer.fault().is_empty(), "{method} {path}");
    }
    assert_eq!(machine.output("echo alive"), "alive");
    machine.signal(Signal::SIGTERM);
    assert_eq!(machine.end().code, ORDERLY);
}

#[test]
fn a_client_that_leaves_in_the_middle_takes_its_command_along() {
    let mut machine = Guest::serving().boot();
    machine.wait_for_agent();
    let mut stream = machine.start_exec(ExecRequest::shell("echo $$; exec sleep 1000"));
    // The first frames: the command runs.
    stream.read_exact(&mut [0; 16]).unwrap();
    drop(stream);
    machine.output("while pidof sleep; do usleep 10000; done");
    machine.signal(Signal::SIGTERM);
    assert_eq!(machine.end().code, ORDERLY);
}
