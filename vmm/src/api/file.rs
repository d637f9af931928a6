//! The configuration file: one JSON object whose sections are bodies of the API.
//!
//! It becomes the list of requests that a client would have sent, so that file
//! and API cannot differ in what they accept or in what they say about it.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::router::Request;
use crate::spec::{DriveConfig, parse};

/// Sections by their names in the file. `null` and a missing section are the
/// same. The text of each is kept as it is and parsed as a body.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Sections<'a> {
    #[serde(borrow)]
    logger: Option<&'a RawValue>,
    machine_config: Option<&'a RawValue>,
    boot_source: Option<&'a RawValue>,
    drives: Option<Vec<&'a RawValue>>,
    vsock: Option<&'a RawValue>,
    entropy: Option<&'a RawValue>,
    serial: Option<&'a RawValue>,
    network_interfaces: Option<serde_json::Value>,
    balloon: Option<serde_json::Value>,
    cpu_config: Option<serde_json::Value>,
    metrics: Option<serde_json::Value>,
    mmds_config: Option<serde_json::Value>,
    pmem: Option<serde_json::Value>,
    memory_hotplug: Option<serde_json::Value>,
}

/// The requests that configure what `json` describes, in order. The machine
/// still has to be started.
///
/// # Errors
/// The text is no such file; the message names the section.
pub fn requests(json: &[u8]) -> Result<Vec<Request>, String> {
    let sections = sections(json)?;
    let mut requests = Vec::new();
    let mut add = |request: Option<Request>| requests.extend(request);
    // The logger first, so that it has the lines of all others.
    add(section("logger", sections.logger, Request::PutLogger)?);
    add(section(
        "machine-config",
        sections.machine_config,
        Request::PutMachineConfig,
    )?);
    add(section(
        "boot-source",
        sections.boot_source,
        Request::PutBootSource,
    )?);
    let mut ids: Vec<String> = Vec::new();
    for (position, drive) in sections.drives.unwrap_or_default().into_iter().enumerate() {
        let name = format!("drives[{position}]");
        let drive: DriveConfig =
            parse(drive.get().as_bytes()).map_err(|error| format!("{name}: {error}"))?;
        // Over the API a second PUT replaces the first; in one file it can only
        // be a mistake.
        if ids.contains(&drive.drive_id) {
            return Err(format!(
                "{name}: another drive has the drive_id {:?}",
                drive.drive_id
            ));
        }
        ids.push(drive.drive_id.clone());
        add(Some(Request::PutDrive(drive)));
    }
    add(section("vsock", sections.vsock, Request::PutVsock)?);
    add(section("entropy", sections.entropy, Request::PutEntropy)?);
    add(section("serial", sections.serial, Request::PutSerial)?);
    Ok(requests)
}

/// Takes the file apart and refuses what cannot be honoured.
fn sections(json: &[u8]) -> Result<Sections<'_>, String> {
    let sections: Sections<'_> = parse_borrowed(json)?;
    let later = [
        ("network-interfaces", &sections.network_interfaces),
        ("balloon", &sections.balloon),
        ("cpu-config", &sections.cpu_config),
        ("metrics", &sections.metrics),
        ("mmds-config", &sections.mmds_config),
        ("pmem", &sections.pmem),
        ("memory-hotplug", &sections.memory_hotplug),
    ];
    for (name, value) in later {
        // Files that were written for more than this version often list every
        // section, empty ones included.
        let empty = |value: &serde_json::Value| value.as_array().is_some_and(Vec::is_empty);
        if value.as_ref().is_some_and(|value| !empty(value)) {
            return Err(format!(
                "the section {name} is not available yet in this version; leave it out"
            ));
        }
    }
    Ok(sections)
}

fn parse_borrowed(json: &[u8]) -> Result<Sections<'_>, String> {
    match json.trim_ascii_start().first() {
        Some(b'{') => serde_json::from_slice(json).map_err(|error| error.to_string()),
        _ => Err("it does not contain a JSON object".to_owned()),
    }
}

fn section<T: serde::de::DeserializeOwned>(
    name: &str,
    text: Option<&RawValue>,
    wrap: impl FnOnce(T) -> Request,
) -> Result<Option<Request>, String> {
    let Some(text) = text else { return Ok(None) };
    match parse(text.get().as_bytes()) {
        Ok(body) => Ok(Some(wrap(body))),
        Err(error) => Err(format!("{name}: {error}")),
    }
}

#[cfg(test)]
#[path = "file_test.rs"]
mod tests;
