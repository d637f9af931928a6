//! Disks that are stacks: shared layers below a machine's own delta.

use std::path::{Path, PathBuf};

use coppice_agent_protocol::ExecRequest;
use coppice_snapshot::{Delta, Layer, Naming, import};
use coppice_tests::{Guest, Machine, Scratch, image};

/// The image of a small root file system as a layer in `scratch`.
fn base(scratch: &Scratch) -> PathBuf {
    let path = scratch.path("base.layer");
    import(&image("minimal"), &path, &mut |_| {}).expect("the image becomes a layer");
    path
}

fn boot(layers: &[PathBuf], delta: &Path) -> Machine {
    let machine = Guest::from_stack(layers, delta).boot();
    machine.wait_for_agent();
    machine
}

fn power_off(mut machine: Machine) {
    let _going_down = machine.start_exec(ExecRequest::shell("poweroff -f"));
    assert_eq!(machine.end().code, Some(0));
}

fn verify(path: &Path) {
    let layer = Layer::open(path).expect("it is a layer");
    layer
        .verify(&mut |_| {})
        .expect("it is as when it was made");
}

const FILL: &str = "mkdir /kept && for n in 1 2 3 4; do \
                    head -c 150000 /dev/urandom > /kept/$n; done; sync; cat /kept/* | sha256sum";
const SUM: &str = "cat /kept/* | sha256sum";

#[test]
fn what_a_guest_wrote_is_there_after_its_machine_was_killed() {
    let scratch = Scratch::new();
    let (base, delta) = (base(&scratch), scratch.path("delta"));
    let layers = [base.clone()];

    let machine = boot(&layers, &delta);
    let sum = machine.output(FILL);
    // That is SIGKILL.
    drop(machine);

    let machine = boot(&layers, &delta);
    assert_eq!(machine.output(SUM), sum);
    machine.output("rm -r /kept/1; sync");
    power_off(machine);
    verify(&base);

    // A machine with a delta of its own has none of that.
    let sibling = boot(&layers, &scratch.path("sibling"));
    assert_eq!(sibling.output("test -e /kept || echo none"), "none");
    power_off(sibling);
}

#[test]
fn a_delta_becomes_a_layer_that_machines_share() {
    let scratch = Scratch::new();
    let (base, first) = (base(&scratch), scratch.path("first"));
    let machine = boot(std::slice::from_ref(&base), &first);
    let sum = machine.output(FILL);
    power_off(machine);

    let blocks = Layer::open(&base).expect("it is a layer").blocks();
    let delta = Delta::open(&first, blocks).expect("the machine has ended");
    let layer = delta.freeze().seal(Naming::Content).expect("it is sealed");
    assert!(layer.held().blocks() < blocks / 2, "only what was written");

    let layers = [first, base];
    for fork in ["one", "two"] {
        let machine = boot(&layers, &scratch.path(fork));
        assert_eq!(machine.output(SUM), sum);
        let own = format!("echo {fork} > /kept/1; sync; cat /kept/1");
        assert_eq!(machine.output(&own), fork);
        power_off(machine);
    }
    layers.iter().for_each(|layer| verify(layer));
}
