use super::*;
use coppice_snapshot::{Info, StackRef};
use serde_json::{Value, json};

fn manifest(machine: &Value) -> Manifest {
    let raw = |value: &Value| serde_json::value::to_raw_value(value).expect("JSON");
    Manifest {
        info: Info {
            created_ms: 0,
            version: "1".into(),
            parent: None,
            cpu: raw(&json!({})),
            machine: raw(machine),
        },
        memory: StackRef {
            blocks: 0,
            layers: Vec::new(),
        },
        disks: Vec::new(),
        state: Vec::new(),
    }
}

fn seed(machine: &Value) -> Result<Seed, Error> {
    let store = Some("/store".into());
    let limit = Duration::from_secs(1);
    Seed::new("/vmm".into(), "/m".into(), &manifest(machine), store, limit)
}

fn machine(drives: &Value) -> Value {
    json!({
        "machine-config": { "vcpu_count": 2, "mem_size_mib": 512, "smt": false },
        "boot-source": { "kernel_image_path": "/vmlinux", "initrd_path": "/initrd" },
        "drives": drives,
        "vsock": null,
    })
}

#[test]
fn what_a_machine_was_made_of_is_in_its_manifest() {
    let seed = seed(&machine(&json!([
        { "drive_id": "root", "path_on_host": "/base.ext4", "is_read_only": true },
        { "drive_id": "data", "path_on_host": "", "stack": { "layers": ["/l"], "delta": null } },
        { "drive_id": "tools", "stack": { "layers": ["/t"] }, "is_read_only": true },
    ])));
    let seed = seed.expect("understood");
    let facts = Facts {
        image: "/base.ext4".into(),
        kernel: "/vmlinux".into(),
        vcpus: 2,
        memory_mib: 512,
        store: Some("/store".into()),
        ..Facts::default()
    };
    assert_eq!(seed.facts, facts);
    assert_eq!(seed.stacks, ["data"]);

    let dir = tempfile::tempdir().expect("directory");
    let load = seed.load(dir.path(), "/v".into()).expect("written");
    let load: Value = serde_json::from_slice(&fs::read(load).expect("there")).expect("JSON");
    let delta = dir.path().join("data.delta");
    let expected = json!({
        "snapshot_path": "/m",
        "store_path": "/store",
        "resume_vm": true,
        "vsock_override": { "uds_path": "/v" },
        "drive_overrides": [{ "drive_id": "data", "path_on_host": delta }],
    });
    assert_eq!(load, expected);
}

#[test]
fn a_file_that_is_written_to_is_noticed() {
    let drive = json!([{ "drive_id": "root", "path_on_host": "/own.ext4" }]);
    assert!(seed(&machine(&drive)).expect("understood").facts.writable);
}

#[test]
fn a_machine_of_another_kind_is_refused() {
    let error = seed(&json!({ "drives": 7 }))
        .expect_err("nonsense")
        .to_string();
    assert!(error.contains("cannot be understood"), "{error}");
}
