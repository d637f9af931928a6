//! Snapshots, restores and forks of machines with a real kernel.

use coppice_snapshot::import;
use coppice_tests::{Guest, Machine, Scratch};
use serde_json::json;

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

/// Its kernel has nothing to complain of.
fn is_well(machine: &Machine) {
    let complaints = "dmesg | grep -E 'BUG:|Oops|stall|lockup|hung task|Bad FPU' || :";
    assert_eq!(machine.output(complaints), "");
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

#[test]
fn each_generation_writes_only_what_changed_and_none_is_lost() {
    let mut machine = Guest::serving().memory_mib(256).boot();
    machine.wait_for_agent();
    machine.output("dd if=/dev/urandom of=/tmp/big bs=1M count=32 2>/dev/null");
    let sum = machine.output("sha256sum /tmp/big");
    let mut snapshots = vec![machine.snapshot("Full")];
    let whole = machine.last_snapshot()["data_blocks"].as_u64().unwrap();
    assert!(whole > 8192, "{whole} pages hold 32 MiB");
    for generation in 1..=5 {
        machine.output(&format!("echo {generation} >>/tmp/list"));
        let snapshot = machine.snapshot("Diff");
        let changed = machine.last_snapshot()["data_blocks"].as_u64().unwrap();
        assert!(changed < whole / 2, "{changed} of {whole} in {generation}");
        // The next one is a snapshot of a fork.
        machine = snapshot.restore();
        snapshots.push(snapshot);
        assert_eq!(machine.output("sha256sum /tmp/big"), sum);
        let expected: Vec<String> = (1..=generation).map(|n| n.to_string()).collect();
        assert_eq!(machine.output("cat /tmp/list"), expected.join("\n"));
    }
    is_well(&machine);
}

#[test]
fn busy_processors_and_timers_go_on_in_a_fork() {
    let parent = Guest::serving().vcpus(2).memory_mib(256).boot();
    parent.wait_for_agent();
    // Sleepers of different lengths, each of which says when it woke.
    parent.output(
        "for n in 1 2 3 4 5 6; do (while :; do sleep 0.$n; echo >>/tmp/woke$n; done) \
         >/dev/null 2>&1 & done",
    );
    parent.output(&format!("{COUNT} {COUNT}"));
    counts_on(&parent);
    let snapshot = parent.snapshot("Full");
    let child = snapshot.restore();
    for machine in [&parent, &child] {
        counts_on(machine);
        for n in 1..=6 {
            let line = format!(
                "a=$(wc -c </tmp/woke{n}); while [ $(wc -c </tmp/woke{n}) = $a ]; do sleep 0.05; done"
            );
            machine.output(&line);
        }
        is_well(machine);
    }
}

#[test]
fn a_stack_is_forked_with_its_machine() {
    let files = Scratch::new();
    let image = files.file("image", vec![0; 16 << 20]);
    let base = files.path("base");
    import(&image, &base, &mut |_| {}).expect("an image becomes a layer");
    let drive = json!({
        "drive_id": "data",
        "is_root_device": false,
        "stack": { "layers": [base], "delta": files.path("delta") },
    });
    let add = |config: &mut serde_json::Value| config["drives"] = json!([drive]);
    let parent = Guest::serving().change(add).boot();
    parent.wait_for_agent();
    let put = |machine: &Machine, text: &str, block: u32| {
        machine.output(&format!(
            "printf {text} | dd of=/dev/vda bs=4096 seek={block} conv=sync 2>/dev/null; sync"
        ));
    };
    let get = |machine: &Machine, block: u32| {
        machine.output(&format!(
            "echo 3 >/proc/sys/vm/drop_caches; dd if=/dev/vda bs=4096 skip={block} count=1 \
             2>/dev/null | tr -d '\\0'"
        ))
    };
    put(&parent, "before", 5);
    let snapshot = parent.snapshot("Full").with_deltas(&["data"]);
    put(&parent, "parent", 5);
    put(&parent, "onlyparent", 6);
    let (one, two) = (snapshot.restore(), snapshot.restore());
    assert_eq!(get(&one, 5), "before");
    put(&one, "one", 5);
    put(&two, "two", 7);
    assert_eq!([get(&one, 5), get(&one, 6), get(&one, 7)], ["one", "", ""]);
    assert_eq!(
        [get(&two, 5), get(&two, 6), get(&two, 7)],
        ["before", "", "two"]
    );
    assert_eq!([get(&parent, 5), get(&parent, 6)], ["parent", "onlyparent"]);
    // And a fork of a fork, by a snapshot that holds only what changed.
    let third = one.snapshot("Diff").with_deltas(&["data"]).restore();
    assert_eq!([get(&third, 5), get(&third, 7)], ["one", ""]);
}
