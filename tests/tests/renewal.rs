//! What a machine that grew from a snapshot renews, in a running one: the agent
//! does the same for a machine that was never frozen.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use coppice_agent_protocol::{
    ExecRequest, GENERATION_LEN, Renewed, Resumed, SEED_LEN, Seed, StepState,
};
use coppice_tests::{Guest, Machine};

/// Hooks, a machine-id, and nothing of SSH.
const PREPARE: &str = "mkdir -p /etc/coppice/resumed.d && echo old > /etc/machine-id &&
cat > /etc/coppice/resumed.d/10-note <<'END'
#!/bin/sh
echo \"$COPPICE_HOSTNAME $COPPICE_GENERATION\" >> /tmp/notes
echo noted
END
printf '#!/bin/sh\\necho no >&2; exit 9\\n' > /etc/coppice/resumed.d/20-fails
chmod +x /etc/coppice/resumed.d/*";

/// 2040-01-01, which no clock here shows by itself.
const YEAR_2040: Duration = Duration::from_secs(2_208_988_800);

fn request(byte: u8, hostname: &str, clock: Duration) -> Resumed {
    let request = Resumed::everything([byte; GENERATION_LEN], Seed([byte; SEED_LEN]));
    Resumed {
        hostname: Some(hostname.into()),
        wall_clock_ns: Some(clock.as_nanos() as u64),
        ..request
    }
}

fn since_1970() -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.expect("the clock is set")
}

/// What must differ between two machines.
fn identity(machine: &Machine) -> Vec<String> {
    [
        "hostname",
        "cat /etc/machine-id",
        "cat /proc/sys/kernel/random/boot_id",
        "cat /run/coppice/generation",
        "head -c 16 /dev/urandom | md5sum",
    ]
    .map(|line| machine.output(line))
    .to_vec()
}

fn check(renewed: &Renewed) {
    eprintln!("{renewed:#?}");
    for step in &renewed.steps {
        let expected = match step.name.as_str() {
            "ssh-keys" => StepState::Absent,
            "hook 20-fails" => StepState::Failed,
            _ => StepState::Done,
        };
        assert_eq!(step.state, expected, "{step:?}");
    }
    let detail = |name: &str| {
        let step = renewed.steps.iter().find(|step| step.name == name);
        step.map(|step| step.detail.as_str())
    };
    assert_eq!(detail("hook 10-note"), Some("noted"));
    assert_eq!(detail("hook 20-fails"), Some("exit code 9: no"));
    assert!(detail("entropy").is_some() && detail("clock").is_some());
}

#[test]
fn a_machine_becomes_another_one_and_yet_another_one() {
    let machine = Guest::serving().boot();
    machine.wait_for_agent();
    machine.output(PREPARE);
    let uptime = |machine: &Machine| machine.info().uptime_us;
    let before = uptime(&machine);

    check(&machine.renew(request(1, "shoot-1", YEAR_2040)));
    let first = identity(&machine);
    assert_eq!(first[0], "shoot-1");
    assert_eq!(machine.output("date +%Y"), "2040");
    assert!(uptime(&machine) > before, "only the wall clock is set");

    check(&machine.renew(request(2, "shoot-2", since_1970())));
    let error = {
        let asked = since_1970();
        let shown = Duration::from_nanos(machine.info().wall_clock_ns);
        eprintln!("the guest's clock, against the time of asking: {shown:?} {asked:?}");
        shown.abs_diff(asked)
    };
    // An emulated processor takes its time; what a real one takes is measured.
    assert!(error < Duration::from_secs(2), "{error:?}");
    let second = identity(&machine);
    assert_eq!(second[0], "shoot-2");
    for (one, other) in first.iter().zip(&second) {
        assert_ne!(one, other);
    }
    let notes = machine.output("cat /tmp/notes");
    let generations = [1, 2].map(|n| format!("shoot-{n} {}", format!("0{n}").repeat(16)));
    assert_eq!(notes, generations.join("\n"));
}

#[test]
fn the_kernel_watches_the_generation_identifier() {
    let machine = Guest::serving().boot();
    machine.wait_for_agent();
    for device in ["vmgenid/COPP0001:00", "acpi-ged/ACPI0013:00"] {
        machine.output(&format!("ls -d /sys/bus/platform/drivers/{device}"));
    }
    let interrupts = machine.output("grep Ged /proc/interrupts");
    assert!(interrupts.contains("23-edge"), "{interrupts}");
}

#[test]
fn siblings_draw_other_numbers_and_bear_other_names() {
    let parent = Guest::serving().boot();
    parent.wait_for_agent();
    parent.output(PREPARE);
    // Asked for once, so that it is in memory.
    parent.output("cat /proc/sys/kernel/random/boot_id");
    let running = parent.start_exec(ExecRequest::shell("echo $$ >/tmp/pid; exec sleep 100000"));
    parent.output("while ! [ -s /tmp/pid ]; do :; done");
    let snapshot = parent.snapshot("Full");

    let siblings = [1, 2].map(|byte| {
        let machine = snapshot.restore();
        let renewed = machine.renew(request(byte, &format!("shoot-{byte}"), since_1970()));
        check(&renewed);
        machine
    });
    let [one, other] = siblings.each_ref().map(identity);
    for (one, other) in one.iter().zip(&other) {
        assert_ne!(one, other);
    }
    for machine in &siblings {
        let log = machine.output("dmesg");
        assert!(
            log.contains("crng reseeded due to virtual machine fork"),
            "{log}"
        );
        // Its stream was reset, so it has been ended.
        machine.output("while kill -0 $(cat /tmp/pid) 2>/dev/null; do :; done");
    }
    // The parent is what it was, and so is what runs in it.
    assert_ne!(parent.output("hostname"), "shoot-1");
    parent.output("kill -0 $(cat /tmp/pid)");
    drop(running);
}

#[test]
fn the_kernel_alone_tells_siblings_apart() {
    let parent = Guest::serving().boot();
    parent.wait_for_agent();
    let snapshot = parent.snapshot("Full");
    let draw = "while ! dmesg | grep -q 'virtual machine fork'; do :; done; \
                head -c 16 /dev/urandom | md5sum";
    let drawn: Vec<String> = (0..2).map(|_| snapshot.restore().output(draw)).collect();
    assert_ne!(drawn[0], drawn[1]);
}
