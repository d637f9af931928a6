//! Snapshots, restores and forks of machines with a real kernel.

use coppice_tests::{Guest, Machine};

/// Counts in a file for ever.
const COUNT: &str = "(n=0; while :; do n=$((n+1)); echo $n >/tmp/n; done) >/dev/null 2>&1 &";

fn count(machine: &Machine) -> u64 {
    loop {
        // The file is empty for a moment whenever it is written.
        if let Ok(count) = machine.output("cat /tmp/n").parse() {
            return count;
        }
    }
}

/// Waits until the guest has counted on.
fn counts_on(machine: &Machine) {
    let before = count(machine);
    while count(machine) == before {}
}

#[test]
fn a_running_machine_is_forked_and_both_go_on() {
    let parent = Guest::serving().boot();
    parent.wait_for_agent();
    parent.output(&format!("echo frozen >/tmp/word; {COUNT}"));
    counts_on(&parent);
    let snapshot = parent.snapshot("Full");
    counts_on(&parent);
    parent.output("echo parent >/tmp/word");

    let children = [snapshot.restore(), snapshot.restore_at_start()];
    for (number, child) in children.iter().enumerate() {
        assert_eq!(child.output("cat /tmp/word"), "frozen");
        counts_on(child);
        child.output(&format!("echo child {number} >/tmp/word"));
    }
    assert_eq!(parent.output("cat /tmp/word"), "parent");
    for (number, child) in children.iter().enumerate() {
        assert_eq!(child.output("cat /tmp/word"), format!("child {number}"));
    }
}
