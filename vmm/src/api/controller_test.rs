//! States and what is allowed in them, with a pretended machine.

use std::cell::RefCell;
use std::rc::Rc;

use super::*;
use crate::spec::{BootSource, DriveConfig, EntropyConfig, MachineConfig, SerialConfig};

thread_local! {
    /// What machines on this thread were told, and whether building fails.
    static CALLS: Rc<RefCell<Vec<&'static str>>> = Rc::default();
    static FAILS: RefCell<bool> = const { RefCell::new(false) };
}

pub(crate) struct Pretended(Spec);

#[derive(Debug, thiserror::Error)]
#[error("no machine today")]
pub(crate) struct Failed(#[source] std::io::Error);

fn call(what: &'static str) -> Result<(), Failed> {
    CALLS.with(|calls| calls.borrow_mut().push(what));
    Ok(())
}

fn calls() -> Vec<&'static str> {
    CALLS.with(|calls| calls.borrow_mut().drain(..).collect())
}

impl MachineControl for Pretended {
    type Error = Failed;
    fn build(spec: &Spec, _: &mut Events) -> Result<Self, Failed> {
        if FAILS.with(|fails| *fails.borrow()) {
            return Err(Failed(std::io::Error::other("out of luck")));
        }
        call("build").map(|()| Pretended(spec.clone()))
    }
    fn start(&mut self) -> Result<(), Failed> {
        call("start")
    }
    fn pause(&mut self) -> Result<(), Failed> {
        call("pause")
    }
    fn resume(&mut self) -> Result<(), Failed> {
        call("resume")
    }
    fn ctrl_alt_del(&self) -> Result<(), Failed> {
        call("ctrl_alt_del")
    }
    fn restore(_: &SnapshotLoad, _: &mut Events) -> Result<Self, Failed> {
        if FAILS.with(|fails| *fails.borrow()) {
            return Err(Failed(std::io::Error::other("out of luck")));
        }
        let spec = Spec {
            entropy: Some(EntropyConfig::default()),
            ..Spec::default()
        };
        call("restore").map(|()| Pretended(spec))
    }
    fn begin_snapshot(&mut self, _: &SnapshotCreate) -> Result<(), Failed> {
        call("begin_snapshot")
    }
    fn finish_snapshot(&mut self) -> Option<Result<(), Failed>> {
        Some(call("finish_snapshot"))
    }
    fn record_working_set(&self, _: &Path) -> Result<(), Failed> {
        call("record_working_set")
    }
    fn spec(&self) -> &Spec {
        &self.0
    }
    fn snapshots(&self) -> Snapshots {
        Snapshots::default()
    }
}

struct Bench {
    controller: Controller<Pretended>,
    events: Events,
}

impl Bench {
    fn new() -> Bench {
        let logger = Box::leak(Box::new(Logger::new("test")));
        Bench {
            controller: Controller::new("test", logger),
            events: Events::new().expect("an epoll descriptor"),
        }
    }

    fn started() -> Bench {
        let mut bench = Bench::new();
        assert_eq!(bench.ask(boot()), Answer::Done);
        assert_eq!(bench.ask(Request::PutDrive(drive())), Answer::Done);
        assert_eq!(bench.ask(START), Answer::Done);
        assert_eq!(calls(), ["build", "start"]);
        bench
    }

    fn ask(&mut self, request: Request) -> Answer {
        let answer = self.controller.handle(request, &mut self.events);
        answer.expect("an answer at once")
    }

    fn get(&mut self, request: Request) -> serde_json::Value {
        match self.ask(request) {
            Answer::Json(json) => serde_json::from_str(&json).expect("is JSON"),
            other => panic!("{other:?}"),
        }
    }

    fn state(&mut self) -> String {
        self.get(Request::GetInstance)["state"]
            .as_str()
            .expect("a state")
            .to_owned()
    }

    #[track_caller]
    fn refused(&mut self, request: Request, part: &str) {
        let before = self.get(Request::GetSpec);
        match self.ask(request) {
            Answer::Fault(text) => assert!(text.contains(part), "{text}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(
            self.get(Request::GetSpec),
            before,
            "a refused request changes nothing"
        );
        assert_eq!(calls(), [""; 0]);
    }
}

const START: Request = Request::Act(ActionType::InstanceStart);
const PAUSE: Request = Request::SetState(StateWanted::Paused);
const RESUME: Request = Request::SetState(StateWanted::Resumed);
const KEYS: Request = Request::Act(ActionType::SendCtrlAltDel);

fn boot() -> Request {
    let kernel_image_path = "/vmlinux".into();
    Request::PutBootSource(BootSource {
        kernel_image_path,
        ..BootSource::default()
    })
}

fn drive() -> DriveConfig {
    DriveConfig {
        drive_id: "root".to_owned(),
        path_on_host: "/r".into(),
        is_root_device: true,
        ..DriveConfig::default()
    }
}

fn vsock() -> Request {
    let uds_path = "/v".into();
    Request::PutVsock(VsockConfig {
        guest_cid: 3,
        uds_path,
        vsock_id: None,
    })
}

/// Everything that configures, each with a body that is right.
fn settings() -> Vec<Request> {
    let one = crate::spec::MachineConfigPatch {
        vcpu_count: Some(4),
        ..Default::default()
    };
    vec![
        Request::PutMachineConfig(MachineConfig {
            vcpu_count: 2,
            ..MachineConfig::default()
        }),
        Request::PatchMachineConfig(one),
        boot(),
        Request::PutDrive(drive()),
        vsock(),
        Request::PutEntropy(EntropyConfig::default()),
        Request::PutSerial(SerialConfig::default()),
    ]
}

#[test]
fn what_is_put_is_what_is_got() {
    let mut bench = Bench::new();
    for request in settings() {
        assert_eq!(bench.ask(request.clone()), Answer::Done, "{request:?}");
    }
    let config = bench.get(Request::GetSpec);
    assert_eq!(config["machine-config"]["vcpu_count"], 4);
    assert_eq!(
        config["machine-config"],
        bench.get(Request::GetMachineConfig)
    );
    assert_eq!(config["boot-source"]["kernel_image_path"], "/vmlinux");
    assert_eq!(config["drives"][0]["drive_id"], "root");
    assert_eq!(config["vsock"]["guest_cid"], 3);

    // What the API shows is a configuration file that means the same.
    let mut other = Bench::new();
    let file = config.to_string();
    for request in crate::api::file::requests(file.as_bytes()).expect("is a file") {
        assert_eq!(other.ask(request), Answer::Done);
    }
    assert_eq!(other.get(Request::GetSpec), config);
}

#[test]
fn nothing_is_configured_after_the_start() {
    let mut bench = Bench::started();
    for request in settings() {
        bench.refused(request, "has been started");
    }
    bench.refused(START, "started already");
    assert_eq!(
        bench.ask(Request::PutLogger(LoggerConfig::default())),
        Answer::Done
    );
}

#[test]
fn nothing_runs_before_the_start() {
    let mut bench = Bench::new();
    for request in [PAUSE, RESUME, KEYS] {
        bench.refused(request, "has not been started");
    }
    bench.refused(START, "no kernel to boot");
    assert_eq!(bench.state(), "Not started");
}

#[test]
fn pause_and_resume_as_often_as_one_likes() {
    let mut bench = Bench::started();
    assert_eq!(bench.state(), "Running");
    for (request, state) in [
        (RESUME, "Running"),
        (PAUSE, "Paused"),
        (PAUSE, "Paused"),
        (KEYS, "Paused"),
        (RESUME, "Running"),
        (RESUME, "Running"),
    ] {
        assert_eq!(bench.ask(request), Answer::Done);
        assert_eq!(bench.state(), state);
    }
    assert_eq!(
        calls(),
        [
            "resume",
            "pause",
            "pause",
            "ctrl_alt_del",
            "resume",
            "resume"
        ]
    );
}

#[test]
fn a_start_that_fails_can_be_tried_again() {
    let mut bench = Bench::new();
    assert_eq!(bench.ask(boot()), Answer::Done);
    FAILS.with(|fails| fails.replace(true));
    bench.refused(START, "no machine today: out of luck");
    assert_eq!(bench.state(), "Not started");
    assert_eq!(bench.ask(vsock()), Answer::Done);
    FAILS.with(|fails| fails.replace(false));
    assert_eq!(bench.ask(START), Answer::Done);
    assert_eq!(calls(), ["build", "start"]);
}

#[test]
fn broken_rules_change_nothing() {
    let mut bench = Bench::new();
    bench.refused(
        Request::PutMachineConfig(MachineConfig {
            vcpu_count: 33,
            ..MachineConfig::default()
        }),
        "vcpu_count is 33",
    );
    bench.refused(
        Request::PatchMachineConfig(Default::default()),
        "names no field",
    );
    bench.refused(
        Request::PutBootSource(BootSource::default()),
        "kernel_image_path",
    );
    bench.refused(Request::PutVsock(VsockConfig::default()), "guest_cid is 0");
    bench.refused(Request::PutDrive(DriveConfig::default()), "drive_id");
    assert_eq!(bench.ask(Request::PutDrive(drive())), Answer::Done);
    let second = DriveConfig {
        drive_id: "other".to_owned(),
        ..drive()
    };
    bench.refused(Request::PutDrive(second), "only one can be the root");
    let log_path = Some("/nowhere/at/all".into());
    bench.refused(
        Request::PutLogger(LoggerConfig {
            log_path,
            ..LoggerConfig::default()
        }),
        "cannot open the log \"/nowhere/at/all\"",
    );
}

#[test]
fn what_is_not_there_yet_says_so() {
    let mut bench = Bench::started();
    bench.refused(Request::Act(ActionType::FlushMetrics), "not available yet");
    let patch = |id: &str| {
        let drive_id = id.to_owned();
        Request::PatchDrive(DrivePatch {
            drive_id,
            path_on_host: None,
            rate_limiter: None,
        })
    };
    bench.refused(patch("root"), "not available yet");
    bench.refused(patch("nosuch"), "no drive \"nosuch\"");
}
