//! Method, path and body to a typed request. Pure: it knows no machine.

use std::path::PathBuf;

use serde::Deserialize;

use super::http::HttpRequest;
use crate::spec::{
    BootSource, DriveConfig, EntropyConfig, LoggerConfig, MachineConfig, MachineConfigPatch,
    RateLimiter, SerialConfig, SnapshotCreate, SnapshotLoad, VsockConfig, WorkingSetRecord, parse,
};

/// What a client can ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// `GET /`. Allowed always.
    GetInstance,
    /// `GET /version`. Allowed always.
    GetVersion,
    /// `GET /vm/config`. Allowed always.
    GetSpec,
    /// `GET /machine-config`. Allowed always.
    GetMachineConfig,
    /// `PUT /machine-config`. Allowed before the start.
    PutMachineConfig(MachineConfig),
    /// `PATCH /machine-config`. Allowed before the start.
    PatchMachineConfig(MachineConfigPatch),
    /// `PUT /boot-source`. Allowed before the start.
    PutBootSource(BootSource),
    /// `PUT /drives/{drive_id}`. Allowed before the start.
    PutDrive(DriveConfig),
    /// `PATCH /drives/{drive_id}`. Allowed after the start.
    PatchDrive(DrivePatch),
    /// `PUT /vsock`. Allowed before the start.
    PutVsock(VsockConfig),
    /// `PUT /entropy`. Allowed before the start.
    PutEntropy(EntropyConfig),
    /// `PUT /serial`. Allowed before the start.
    PutSerial(SerialConfig),
    /// `PUT /logger`. Allowed always.
    PutLogger(LoggerConfig),
    /// `PUT /actions`.
    Act(ActionType),
    /// `PATCH /vm`. Allowed after the start.
    SetState(StateWanted),
    /// `GET /snapshot`. Allowed after the first snapshot.
    GetSnapshot,
    /// `PUT /snapshot/create`. Allowed when paused, or live when running.
    CreateSnapshot(SnapshotCreate),
    /// `PUT /snapshot/working-set`. Allowed after the start.
    RecordWorkingSet(WorkingSetRecord),
    /// `PUT /snapshot/load`. Allowed before anything else was configured.
    LoadSnapshot(Box<SnapshotLoad>),
}

/// Body of `PATCH /drives/{drive_id}`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DrivePatch {
    /// The drive to change.
    pub drive_id: String,
    /// The file to serve from now on.
    pub path_on_host: Option<PathBuf>,
    /// New limits.
    pub rate_limiter: Option<RateLimiter>,
}

/// Body of `PUT /actions`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Action {
    action_type: ActionType,
}

/// What `PUT /actions` can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum ActionType {
    /// Build the machine and let it run. Allowed once.
    InstanceStart,
    /// Press Ctrl, Alt and Del on the guest's keyboard. Allowed after the start.
    SendCtrlAltDel,
    /// Write the metrics out.
    FlushMetrics,
}

/// Body of `PATCH /vm`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct VmPatch {
    state: StateWanted,
}

/// What a running machine can be told to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum StateWanted {
    /// No vCPU runs.
    Paused,
    /// All vCPUs run.
    Resumed,
}

/// Each path of the API with its methods. `{…}` stands for one segment.
pub const ROUTES: &[(&str, &[&str])] = &[
    ("/", &["GET"]),
    ("/version", &["GET"]),
    ("/vm/config", &["GET"]),
    ("/machine-config", &["GET", "PUT", "PATCH"]),
    ("/boot-source", &["PUT"]),
    ("/drives/{drive_id}", &["PUT", "PATCH"]),
    ("/vsock", &["PUT"]),
    ("/entropy", &["PUT"]),
    ("/serial", &["PUT"]),
    ("/logger", &["PUT"]),
    ("/actions", &["PUT"]),
    ("/vm", &["PATCH"]),
    ("/snapshot", &["GET"]),
    ("/snapshot/create", &["PUT"]),
    ("/snapshot/load", &["PUT"]),
    ("/snapshot/working-set", &["PUT"]),
];

/// First segments of paths that clients know from elsewhere.
const LATER: &[(&str, &str)] = &[
    ("network-interfaces", "network interfaces are"),
    ("balloon", "the balloon device is"),
    ("mmds", "the metadata service is"),
    ("metrics", "metrics are"),
    ("cpu-config", "a custom CPU template is"),
    ("pmem", "persistent memory is"),
    ("hotplug", "memory hotplug is"),
];

/// Makes a typed request of `http`.
///
/// # Errors
/// There is no such path or method, or the body is not what it takes; the text
/// is for the client.
pub fn route(http: &HttpRequest) -> Result<Request, String> {
    let target = http.target.as_str();
    // Some clients send the whole URL (RFC 9112 §3.2.2).
    let path = match target
        .strip_prefix("http://")
        .and_then(|rest| rest.find('/').map(|at| &rest[at..]))
    {
        Some(path) => path,
        None => target,
    };
    if path.contains(['?', '#']) {
        return Err(format!(
            "the path {} has a query, and no path here takes one",
            shown(path)
        ));
    }
    let Some(segments) = path.strip_prefix('/') else {
        return Err(format!("the path {} does not begin with /", shown(path)));
    };
    let segments: Vec<&str> = segments.split('/').collect();
    if http.method == "GET" && !http.body.is_empty() {
        return Err("a GET request takes no body; leave it out".to_owned());
    }
    let body = http.body.as_slice();
    match (http.method.as_str(), segments.as_slice()) {
        ("GET", [""]) => Ok(Request::GetInstance),
        ("GET", ["version"]) => Ok(Request::GetVersion),
        ("GET", ["vm", "config"]) => Ok(Request::GetSpec),
        ("GET", ["machine-config"]) => Ok(Request::GetMachineConfig),
        ("PUT", ["machine-config"]) => parsed(body, Request::PutMachineConfig),
        ("PATCH", ["machine-config"]) => parsed(body, Request::PatchMachineConfig),
        ("PUT", ["boot-source"]) => parsed(body, Request::PutBootSource),
        ("PUT", ["drives", id]) if !id.is_empty() => {
            let drive: DriveConfig = parse(body).map_err(|error| error.to_string())?;
            same_id("drive_id", id, &drive.drive_id)?;
            Ok(Request::PutDrive(drive))
        }
        ("PATCH", ["drives", id]) if !id.is_empty() => {
            let patch: DrivePatch = parse(body).map_err(|error| error.to_string())?;
            same_id("drive_id", id, &patch.drive_id)?;
            Ok(Request::PatchDrive(patch))
        }
        ("PUT", ["vsock"]) => parsed(body, Request::PutVsock),
        ("PUT", ["entropy"]) => parsed(body, Request::PutEntropy),
        ("PUT", ["serial"]) => parsed(body, Request::PutSerial),
        ("PUT", ["logger"]) => parsed(body, Request::PutLogger),
        ("PUT", ["actions"]) => parsed(body, |body: Action| Request::Act(body.action_type)),
        ("PATCH", ["vm"]) => parsed(body, |body: VmPatch| Request::SetState(body.state)),
        ("GET", ["snapshot"]) => Ok(Request::GetSnapshot),
        ("PUT", ["snapshot", "create"]) => parsed(body, Request::CreateSnapshot),
        ("PUT", ["snapshot", "working-set"]) => parsed(body, Request::RecordWorkingSet),
        ("PUT", ["snapshot", "load"]) => parsed(body, |body| Request::LoadSnapshot(Box::new(body))),
        (method, segments) => Err(unknown(method, path, segments)),
    }
}

/// Parses the body and wraps it.
fn parsed<T: serde::de::DeserializeOwned>(
    body: &[u8],
    wrap: impl FnOnce(T) -> Request,
) -> Result<Request, String> {
    parse(body).map(wrap).map_err(|error| error.to_string())
}

fn same_id(field: &str, in_path: &str, in_body: &str) -> Result<(), String> {
    if in_path == in_body {
        return Ok(());
    }
    Err(format!(
        "the path says {field} {} and the body says {}; they must be the same",
        shown(in_path),
        shown(in_body)
    ))
}

/// The words for a path or method that is not there.
fn unknown(method: &str, path: &str, segments: &[&str]) -> String {
    let matches = |template: &str| {
        let template = template[1..].split('/').collect::<Vec<_>>();
        template.len() == segments.len()
            && template.iter().zip(segments).all(|(part, segment)| {
                part == segment || (part.starts_with('{') && !segment.is_empty())
            })
    };
    if let Some((_, methods)) = ROUTES.iter().find(|(template, _)| matches(template)) {
        let methods = methods.join(", ");
        return format!(
            "{} is not a method of {}; it has {methods}",
            shown(method),
            shown(path)
        );
    }
    if let Some((_, what)) = LATER
        .iter()
        .find(|(first, _)| segments.first() == Some(first))
    {
        return format!(
            "{what} not available yet in this version (path {})",
            shown(path)
        );
    }
    format!(
        "there is no path {} in this API (method {})",
        shown(path),
        shown(method)
    )
}

/// Text of the client's within a message: quoted, and not all of it if long.
fn shown(text: &str) -> String {
    const KEPT: usize = 100;
    match text.char_indices().nth(KEPT) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}

#[cfg(test)]
#[path = "router_test.rs"]
mod tests;
