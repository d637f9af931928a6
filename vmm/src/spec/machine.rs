//! `/machine-config`: vCPUs and memory.

use serde::{Deserialize, Deserializer, Serialize};

use super::SpecError;
use super::parse::or_default;

const VCPU_RULE: &str = "it must be a whole number from 1 to 32";
/// Less than this and no kernel of today starts.
const MIN_MEM_MIB: usize = 32;
/// 1 TiB keeps all sums of addresses far from overflow.
const MAX_MEM_MIB: usize = 1 << 20;

/// vCPUs and memory of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineConfig {
    /// Number of vCPUs, 1 to 32.
    #[serde(deserialize_with = "vcpu_count")]
    pub vcpu_count: u8,
    /// Memory in MiB, 32 or more.
    pub mem_size_mib: usize,
    /// Whether two vCPUs at a time are presented as threads of one core.
    #[serde(default, deserialize_with = "or_default")]
    pub smt: bool,
    /// Whether pages that the guest writes are tracked, for small snapshots.
    /// Kept and reported; it changes nothing that can be seen without snapshots.
    #[serde(default, deserialize_with = "or_default")]
    pub track_dirty_pages: bool,
    /// Size of the pages that back guest memory.
    #[serde(default, deserialize_with = "or_default")]
    pub huge_pages: HugePages,
    /// Processor features to hide so that different hosts look alike.
    #[serde(
        default,
        deserialize_with = "or_default",
        skip_serializing_if = "CpuTemplate::is_none"
    )]
    pub cpu_template: CpuTemplate,
}

/// Pages that back guest memory on the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum HugePages {
    /// Pages of 4 KiB.
    #[default]
    None,
    /// Huge pages where the kernel finds them by itself.
    Transparent,
    /// Reserved pages of 2 MiB.
    #[serde(rename = "2M")]
    TwoMiB,
}

/// Named sets of processor features.
#[expect(missing_docs, reason = "the names are those of the API")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum CpuTemplate {
    #[default]
    None,
    C3,
    T2,
    T2S,
    T2CL,
    T2A,
    V1N1,
}

impl CpuTemplate {
    /// Whether no template was asked for.
    pub fn is_none(&self) -> bool {
        *self == CpuTemplate::None
    }
}

impl Default for MachineConfig {
    fn default() -> Self {
        MachineConfig {
            vcpu_count: 1,
            mem_size_mib: 128,
            smt: false,
            track_dirty_pages: false,
            huge_pages: HugePages::None,
            cpu_template: CpuTemplate::None,
        }
    }
}

impl MachineConfig {
    /// Checks what can be known without the host.
    ///
    /// # Errors
    /// The first field that breaks a rule.
    pub fn check(&self) -> Result<(), SpecError> {
        if !(1..=32).contains(&self.vcpu_count) {
            return Err(SpecError::new("vcpu_count", &self.vcpu_count, VCPU_RULE));
        }
        if !(MIN_MEM_MIB..=MAX_MEM_MIB).contains(&self.mem_size_mib) {
            let rule = format!("it must be from {MIN_MEM_MIB} to {MAX_MEM_MIB} (MiB)");
            return Err(SpecError::new("mem_size_mib", &self.mem_size_mib, rule));
        }
        if self.smt && self.vcpu_count != 1 && !self.vcpu_count.is_multiple_of(2) {
            let rule = "with smt it must be 1 or even, since each core has two threads";
            return Err(SpecError::new("vcpu_count", &self.vcpu_count, rule));
        }
        if self.huge_pages != HugePages::None {
            let what = format!("huge_pages = {:?}", self.huge_pages);
            return Err(SpecError::unavailable(
                what,
                "leave it out or set it to \"None\"",
            ));
        }
        if !self.cpu_template.is_none() {
            let what = format!("cpu_template = {:?}", self.cpu_template);
            return Err(SpecError::unavailable(
                what,
                "leave it out or set it to \"None\"",
            ));
        }
        Ok(())
    }
}

/// The fields of [`MachineConfig`] that a client wants changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "the fields are those of MachineConfig")]
pub struct MachineConfigPatch {
    #[serde(deserialize_with = "some_vcpu_count")]
    pub vcpu_count: Option<u8>,
    pub mem_size_mib: Option<usize>,
    pub smt: Option<bool>,
    pub track_dirty_pages: Option<bool>,
    pub huge_pages: Option<HugePages>,
    pub cpu_template: Option<CpuTemplate>,
}

impl MachineConfigPatch {
    /// `base` with the changes; the fields that are not named stay.
    ///
    /// # Errors
    /// Nothing is changed at all, or the result breaks a rule.
    pub fn applied_to(&self, base: &MachineConfig) -> Result<MachineConfig, SpecError> {
        if *self == MachineConfigPatch::default() {
            let text = "the body names no field to change; name at least one, \
                        such as vcpu_count or mem_size_mib";
            return Err(SpecError::Json(text.to_owned()));
        }
        let merged = MachineConfig {
            vcpu_count: self.vcpu_count.unwrap_or(base.vcpu_count),
            mem_size_mib: self.mem_size_mib.unwrap_or(base.mem_size_mib),
            smt: self.smt.unwrap_or(base.smt),
            track_dirty_pages: self.track_dirty_pages.unwrap_or(base.track_dirty_pages),
            huge_pages: self.huge_pages.unwrap_or(base.huge_pages),
            cpu_template: self.cpu_template.unwrap_or(base.cpu_template),
        };
        merged.check()?;
        Ok(merged)
    }
}

/// A count that does not fit its type gets the same words as one that is only
/// out of range.
fn vcpu_count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u8, D::Error> {
    let count = i64::deserialize(deserializer)?;
    u8::try_from(count)
        .map_err(|_| serde::de::Error::custom(SpecError::new("vcpu_count", &count, VCPU_RULE)))
}

fn some_vcpu_count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u8>, D::Error> {
    #[derive(Deserialize)]
    struct Count(#[serde(deserialize_with = "vcpu_count")] u8);
    Ok(Option::<Count>::deserialize(deserializer)?.map(|count| count.0))
}
