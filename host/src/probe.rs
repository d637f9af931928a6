//! What the VMM says about this host's KVM. Only the VMM touches it.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::process;
use crate::wait;

/// The VMM's own limit is three seconds.
const PATIENCE: Duration = Duration::from_secs(4);

/// The answer of `coppice-vmm --probe --json`.
#[derive(Debug, Deserialize)]
pub struct Probe {
    /// Whether Linux guests run.
    pub linux: Linux,
    /// Facts as sentences.
    pub findings: Vec<Finding>,
    /// Everything else, passed on as it is.
    #[serde(flatten)]
    pub rest: Value,
}

/// Whether Linux guests run here.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum Linux {
    /// They do.
    Usable,
    /// They do not.
    Unusable {
        /// What the test guest was executing.
        instruction: Option<String>,
        /// What happened.
        why: String,
    },
}

/// A fact and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The fact.
    pub text: String,
    /// What to do about it; may be empty.
    pub remedy: String,
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// As it should be.
    Fine,
    /// A drawback.
    Warning,
    /// Guests do not run.
    Fatal,
}

/// Asks `vmm`. The error is a sentence.
pub fn probe(vmm: &Path) -> Result<Probe, String> {
    let failed = |why: String| format!("{} --probe --json {why}", vmm.display());
    let mut child = Command::new(vmm)
        .args(["--probe", "--json"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| failed(format!("cannot be started: {error}")))?;
    // Less than a pipe holds, so that it can be read when the VMM has ended.
    let ended = process::open(child.id() as i32)
        .and_then(|process| wait::readable(std::os::fd::AsFd::as_fd(&process), PATIENCE));
    if !matches!(ended, Ok(true)) {
        let _ = child.kill();
    }
    let mut answer = Vec::new();
    if let Some(mut stdout) = child.stdout.take()
        && let Err(error) = stdout.read_to_end(&mut answer)
    {
        return Err(failed(format!("cannot be read: {error}")));
    }
    let _ = child.wait();
    match ended {
        Ok(true) => serde_json::from_slice(&answer)
            .map_err(|error| failed(format!("gave an answer that is not understood: {error}"))),
        Ok(false) => Err(failed(format!(
            "did not end within {} s",
            PATIENCE.as_secs()
        ))),
        Err(error) => Err(failed(format!("cannot be waited for: {error}"))),
    }
}

impl Probe {
    /// Why Linux guests do not run here, as text for an error.
    pub fn obstacle(&self) -> Option<String> {
        let Linux::Unusable { why, .. } = &self.linux else {
            return None;
        };
        let fatal = self
            .findings
            .iter()
            .filter(|f| f.severity == Severity::Fatal);
        let mut text = fatal
            .map(|finding| format!("{} {}", finding.text, finding.remedy))
            .collect::<Vec<_>>()
            .join("\n");
        if text.is_empty() {
            text = why.clone();
        }
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_understood() {
        let text = r#"{"kvm":{"state":"missing"},"linux":{"state":"unusable","instruction":null,
            "why":"none"},"host":{},"cost":null,"findings":[
            {"severity":"fine","text":"Linux 6.12.","remedy":""},
            {"severity":"fatal","text":"/dev/kvm is missing.","remedy":"Load it."}]}"#;
        let probe: Probe = serde_json::from_str(text).expect("understood");
        let obstacle = probe.obstacle().expect("there is one");
        assert!(
            obstacle.contains("/dev/kvm is missing. Load it."),
            "{obstacle}"
        );
        assert!(probe.rest["kvm"]["state"] == "missing");
        let usable = text.replace(r#""unusable""#, r#""usable""#);
        let probe: Probe = serde_json::from_str(&usable).expect("understood");
        assert_eq!(probe.obstacle(), None);
    }

    #[test]
    fn a_program_that_does_not_answer_is_an_error() {
        for program in ["/bin/true", "/nosuch"] {
            let error = probe(Path::new(program)).expect_err("no answer");
            assert!(error.contains(program), "{error}");
        }
    }
}
