//! Machines that do not start, do not answer, or die.

use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::bed::{Bed, eventually, outcome, runs, signal, texts};

#[test]
fn a_vmm_that_dies_is_quoted() {
    let bed = Bed::new();
    let (code, out, err) = outcome(bed.run_on("dies", &["--", "true"]));
    assert_eq!((code, out.as_str()), (Some(125), ""));
    for said in [
        "exit status: 3",
        "this machine is not to be",
        "stand-in: booting",
    ] {
        assert!(err.contains(said), "{said}: {err}");
    }
    assert!(!err.contains("KVM"), "{err}");
}

#[test]
fn a_host_without_kvm_is_told_what_to_do() {
    let bed = Bed::new();
    let script = bed.script(
        r#"if [ "$1" = --probe ]; then
             echo '{"linux":{"state":"unusable","instruction":null,"why":"none"},"findings":[
               {"severity":"fatal","text":"/dev/kvm is missing.","remedy":"Find one."}]}'
           fi
           echo "it cannot be opened" >&2
           exit 1"#,
    );
    let mut command = bed.run(&["--", "true"]);
    command.env("COPPICE_VMM", script);
    let (code, _, err) = outcome(command);
    assert_eq!(code, Some(125));
    for said in [
        "KVM here: /dev/kvm is missing. Find one.",
        "it cannot be opened",
    ] {
        assert!(err.contains(said), "{said}: {err}");
    }
}

#[test]
fn a_host_whose_kvm_runs_no_linux_is_told_long_before_the_time_is_up() {
    let bed = Bed::new();
    let script = bed.script(
        r#"if [ "$1" = --probe ]; then
             echo '{"linux":{"state":"unusable","instruction":"int3","why":"none"},"findings":[
               {"severity":"fatal","text":"It is emulated.","remedy":"Find another."}]}'
             exit 1
           fi
           exec sleep 100"#,
    );
    let began = Instant::now();
    let mut command = bed.run(&["--", "true"]);
    command.env("COPPICE_VMM", script);
    let (code, _, err) = outcome(command);
    assert_eq!(code, Some(125));
    for said in ["KVM here: It is emulated. Find another.", "coppice doctor"] {
        assert!(err.contains(said), "{said}: {err}");
    }
    assert!(began.elapsed() < Duration::from_secs(30));
}

#[test]
fn a_vmm_that_cannot_be_started_is_named() {
    let bed = Bed::new();
    let mut command = bed.run(&["--", "true"]);
    command.env("COPPICE_VMM", bed.path("agent"));
    let (code, _, err) = outcome(command);
    assert_eq!(code, Some(125));
    assert!(
        err.contains(bed.path("agent").to_str().expect("UTF-8")),
        "{err}"
    );
}

#[test]
fn a_guest_that_never_answers_is_given_up_with_its_last_words() {
    let bed = Bed::new();
    for (mode, word) in [("silent", "booting"), ("flood", "over and over")] {
        let mut command = bed.run_on(mode, &["--boot-timeout", "500ms", "--", "true"]);
        command.stderr(Stdio::piped());
        let began = Instant::now();
        let child = command.spawn().expect("started");
        let vmm = bed.vmm();
        let (code, _, err) = texts(&child.wait_with_output().expect("waited"));
        assert_eq!(code, Some(125));
        for said in ["within 0.5 s", "--boot-timeout", word] {
            assert!(err.contains(said), "{said}: {err}");
        }
        assert!(err.len() < 10_000, "{} bytes", err.len());
        assert!(!runs(vmm), "{mode}: the VMM still runs");
        assert!(began.elapsed() < Duration::from_secs(10));
    }
}

#[test]
fn agents_that_speak_otherwise_are_refused() {
    let bed = Bed::new();
    for (mode, said) in [
        ("foreign", "speaks protocol version 99"),
        ("garbage", "broke the protocol"),
        ("babbles", "broke the protocol"),
        ("deaf", "nobody answers on port 1024"),
    ] {
        let (code, out, err) = outcome(bed.run_on(mode, &["--", "true"]));
        assert_eq!((code, out.as_str()), (Some(125), ""), "{mode}");
        assert!(err.contains(said), "{mode}: {err}");
    }
}

#[test]
fn a_vmm_that_is_killed_ends_the_run_within_a_second() {
    let bed = Bed::new();
    let mut command = bed.run(&["--", "sh", "-c", "echo up; exec sleep 60"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("started");
    wait_for_line(&mut child);
    let killed = Instant::now();
    kill(Pid::from_raw(bed.vmm()), Signal::SIGKILL).expect("it runs");
    let (code, _, err) = texts(&child.wait_with_output().expect("waited"));
    assert!(
        killed.elapsed() < Duration::from_secs(1),
        "{:?}",
        killed.elapsed()
    );
    assert_eq!(code, Some(125));
    assert!(
        err.contains("the machine is gone") && err.contains("signal: 9"),
        "{err}"
    );
}

#[test]
fn killing_coppice_takes_the_vmm_along_and_the_next_run_sweeps() {
    let bed = Bed::new();
    let mut command = bed.run(&["--", "sh", "-c", "echo up; exec sleep 60"]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("started");
    wait_for_line(&mut child);
    let vmm = bed.vmm();
    signal(&child, Signal::SIGKILL);
    child.wait().expect("waited");
    eventually("the VMM's end", || (!runs(vmm)).then_some(()));
    assert_eq!(bed.machines().len(), 1, "nobody was there to tidy up");
    assert_eq!(outcome(bed.run(&["--", "true"])).0, Some(0));
    // The bed's end checks that nothing is left.
}

/// Waits until the command has written something.
pub fn wait_for_line(child: &mut std::process::Child) {
    use std::io::Read;
    let stdout = child.stdout.as_mut().expect("piped");
    stdout.read_exact(&mut [0; 3]).expect("a line comes");
}
