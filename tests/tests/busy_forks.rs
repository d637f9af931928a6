//! Snapshots of machines with a real kernel whose memory, disks and connections
//! are in full use, and what their restored siblings find.

use std::io::Read as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use coppice_agent_protocol::ExecRequest;
use coppice_snapshot::import;
use coppice_tests::{Guest, Machine, Scratch};
use serde_json::json;

/// Writes files of random bytes in $1 with their checksums, reads them back after
/// a while, past the cache if it is a disk, and says in /tmp/bad what is wrong.
const VERIFY: &str = r#"cat >/tmp/verify <<'END'
n=0
while :; do
    n=$((n+1)); f=$1/$2.$((n%4))
    if [ -f $f.sum ]; then
        [ $1 = /mnt ] && echo 1 >/proc/sys/vm/drop_caches
        [ "$(md5sum <$f)" = "$(cat $f.sum)" ] || echo "$f $n" >>/tmp/bad
    fi
    rm -f $f.sum
    head -c $((n%7*100000+5000)) /dev/urandom >$f
    md5sum <$f >$f.sum.new
    mv $f.sum.new $f.sum
    [ $1 = /mnt ] && sync
    echo $n >/tmp/rounds.$2
done
END
: >/tmp/bad"#;

/// Waits until the verifier called `name` has come further.
fn comes_further(machine: &Machine, name: &str) {
    let line = format!(
        "a=$(cat /tmp/rounds.{name}); n=0; while [ $n -lt 600 ]; do
             b=$(cat /tmp/rounds.{name}); [ -n \"$b\" ] && [ \"$b\" != \"$a\" ] && exit 0
             n=$((n+1)); sleep 0.1
         done; exit 1"
    );
    assert_eq!(machine.exec(&line).code, 0, "{name} stands still");
}

/// Nothing that was written was lost, and the kernel has nothing to complain of.
fn is_well(machine: &Machine) {
    assert_eq!(machine.output("cat /tmp/bad"), "");
    let complaints =
        "dmesg | grep -E 'BUG:|Oops|stall|lockup|hung task|I/O error|EXT4-fs error' || :";
    assert_eq!(machine.output(complaints), "");
}

/// A stack of one empty layer for a drive.
fn stack(files: &Scratch) -> serde_json::Value {
    let image = files.file("image", vec![0; 32 << 20]);
    import(&image, &files.path("base"), &mut |_| {}).expect("an image becomes a layer");
    json!([{
        "drive_id": "data",
        "is_root_device": false,
        "cache_type": "Writeback",
        "stack": { "layers": [files.path("base")], "delta": files.path("delta") },
    }])
}

#[test]
fn memory_disk_and_connections_in_use_survive_rounds_of_snapshots() {
    let files = Scratch::new();
    let drives = stack(&files);
    let add = |config: &mut serde_json::Value| config["drives"] = drives;
    let mut machine = Guest::serving().vcpus(2).memory_mib(256).change(add).boot();
    machine.wait_for_agent();
    machine.output("mke2fs -q -F /dev/vda >/dev/null 2>&1 && mount -t ext4 /dev/vda /mnt");
    machine.output(VERIFY);
    for (dir, name) in [("/tmp", "one"), ("/tmp", "two"), ("/mnt", "disk")] {
        machine.output(&format!("sh /tmp/verify {dir} {name} >/dev/null 2>&1 &"));
    }
    for name in ["one", "two", "disk"] {
        comes_further(&machine, name);
    }
    let mut snapshots = Vec::new();
    for round in 0..4 {
        let stop = AtomicBool::new(false);
        let snapshot = thread::scope(|scope| {
            // Connections come and go while the machine is frozen.
            let clients = || {
                while !stop.load(Ordering::Relaxed) {
                    assert_eq!(machine.output("echo hello"), "hello");
                }
            };
            let traffic = [scope.spawn(clients), scope.spawn(clients)];
            let kind = if round == 0 { "Full" } else { "Diff" };
            let snapshot = machine.snapshot(kind);
            stop.store(true, Ordering::Relaxed);
            for client in traffic {
                client.join().expect("the parent serves all the time");
            }
            snapshot.with_deltas(&["data"])
        });
        let child = snapshot.restore();
        assert_eq!(child.output("echo hello"), "hello");
        for name in ["one", "two", "disk"] {
            comes_further(&child, name);
        }
        is_well(&machine);
        is_well(&child);
        snapshots.push(snapshot);
        // Every second time the child is the next parent.
        if round % 2 == 1 {
            machine = child;
        }
    }
}

#[test]
fn streams_that_were_open_end_in_a_fork_and_new_ones_come_at_once() {
    let parent = Guest::serving().boot();
    parent.wait_for_agent();
    let mut open = parent.start_exec(ExecRequest::shell("echo started; exec sleep 1234567"));
    let mut some = [0; 8];
    open.read_exact(&mut some).expect("the agent answers");
    let running = "while ! pidof sleep >/dev/null; do :; done";
    parent.output(running);
    for _ in 0..3 {
        let snapshot = parent.snapshot("Full");
        let child = snapshot.restore();
        let began = Instant::now();
        child.connect(1024).expect("the listener is alive");
        let took = began.elapsed();
        assert!(took < Duration::from_secs(10), "{took:?}");
        // The agent's read of the old stream ends, and so does its command.
        let ended = "n=0; while pidof sleep >/dev/null; do
                         n=$((n+1)); [ $n -lt 200 ] || exit 1; usleep 50000
                     done";
        assert_eq!(child.exec(ended).code, 0, "the old stream was not reset");
        // Not so in the parent.
        assert_eq!(parent.exec("pidof sleep").code, 0);
    }
    open.set_nonblocking(true).expect("it is a socket");
    let mut rest = Vec::new();
    let error = open.read_to_end(&mut rest).expect_err("the stream is open");
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
}
