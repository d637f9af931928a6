//! Rules of the specification: each refusal names the field, the value and
//! what would be right.

use super::*;

fn drive(id: &str, root: bool) -> DriveConfig {
    DriveConfig {
        drive_id: id.to_owned(),
        path_on_host: "/disk".into(),
        is_root_device: root,
        ..DriveConfig::default()
    }
}

fn machine(json: &str) -> Result<MachineConfig, SpecError> {
    let config: MachineConfig = parse(json.as_bytes())?;
    config.check().map(|()| config)
}

fn refusal<T: std::fmt::Debug>(result: Result<T, SpecError>) -> String {
    result.expect_err("the value breaks a rule").to_string()
}

#[test]
fn machine_config_limits() {
    for vcpus in [1, 2, 3, 32] {
        let config = machine(&format!(r#"{{"vcpu_count":{vcpus},"mem_size_mib":32}}"#));
        assert_eq!(config.map(|config| config.vcpu_count), Ok(vcpus));
    }
    for vcpus in ["0", "33", "255", "256", "-1", "4294967297"] {
        let text = refusal(machine(&format!(
            r#"{{"vcpu_count":{vcpus},"mem_size_mib":32}}"#
        )));
        let expected = format!("vcpu_count is {vcpus}; it must be a whole number from 1 to 32");
        assert!(text.starts_with(&expected), "{text}");
    }
    for mib in ["0", "1", "31", "1048577", "18446744073709551615"] {
        let text = refusal(machine(&format!(
            r#"{{"vcpu_count":1,"mem_size_mib":{mib}}}"#
        )));
        assert_eq!(
            text,
            format!("mem_size_mib is {mib}; it must be from 32 to 1048576 (MiB)")
        );
    }
}

#[test]
fn threads_come_in_pairs() {
    for (vcpus, fits) in [(1, true), (2, true), (3, false), (31, false), (32, true)] {
        let json = format!(r#"{{"vcpu_count":{vcpus},"mem_size_mib":64,"smt":true}}"#);
        assert_eq!(machine(&json).is_ok(), fits, "{vcpus}");
    }
    let text = refusal(machine(r#"{"vcpu_count":3,"mem_size_mib":64,"smt":true}"#));
    assert!(text.contains("1 or even"), "{text}");
}

#[test]
fn json_faults_name_the_field() {
    for (json, part) in [
        ("", "the body is empty"),
        ("[1,128]", "a JSON object is needed"),
        ("null", "invalid type: null"),
        (r#"{"vcpu_count":1}"#, "missing field `mem_size_mib`"),
        (
            r#"{"vcpu_count":null,"mem_size_mib":64}"#,
            "vcpu_count: invalid type: null",
        ),
        (
            r#"{"vcpu_count":1,"mem_size_mib":"64"}"#,
            "mem_size_mib: invalid type: string",
        ),
        (
            r#"{"vcpu_count":1.5,"mem_size_mib":64}"#,
            "vcpu_count: invalid type: floating point",
        ),
        (
            r#"{"vcpu_count":1,"mem_size_mib":64,"ht":true}"#,
            "unknown field `ht`",
        ),
        (
            r#"{"vcpu_count":1,"vcpu_count":1,"mem_size_mib":64}"#,
            "duplicate field `vcpu_count`",
        ),
        (
            r#"{"vcpu_count":1,"mem_size_mib":64} {}"#,
            "trailing characters",
        ),
        (r#"{"vcpu_count":1,"mem_size_mib":64"#, "EOF"),
        (
            r#"{"vcpu_count":1,"mem_size_mib":64,"huge_pages":"1G"}"#,
            "unknown variant `1G`",
        ),
    ] {
        let text = refusal(machine(json));
        assert!(text.contains(part), "{json}: {text}");
    }
}

#[test]
fn null_is_as_good_as_absent() {
    let config = machine(
        r#"{"vcpu_count":1,"mem_size_mib":64,"smt":null,"track_dirty_pages":null,
            "huge_pages":null,"cpu_template":null}"#,
    );
    assert_eq!(config, machine(r#"{"vcpu_count":1,"mem_size_mib":64}"#));
}

#[test]
fn what_cannot_be_honoured_is_refused() {
    for field in [r#""huge_pages":"2M""#, r#""cpu_template":"T2""#] {
        let text = refusal(machine(&format!(
            r#"{{"vcpu_count":2,"mem_size_mib":64,{field}}}"#
        )));
        assert!(text.contains("not available yet in this version"), "{text}");
    }
    let bucket = TokenBucket {
        size: 1,
        one_time_burst: None,
        refill_time: 100,
    };
    let limited = RateLimiter {
        bandwidth: Some(bucket.clone()),
        ops: None,
    };
    for config in [
        DriveConfig {
            rate_limiter: Some(limited.clone()),
            ..drive("a", false)
        },
        DriveConfig {
            socket: Some("/s".into()),
            ..drive("a", false)
        },
    ] {
        let text = refusal(config.check());
        assert!(text.contains("not available yet in this version"), "{text}");
    }
    assert!(
        EntropyConfig {
            rate_limiter: Some(limited)
        }
        .check()
        .is_err()
    );
    assert!(
        SerialConfig {
            serial_out_path: None,
            rate_limiter: Some(bucket)
        }
        .check()
        .is_err()
    );

    let off = RateLimiter {
        bandwidth: Some(TokenBucket::default()),
        ops: None,
    };
    let config = DriveConfig {
        rate_limiter: Some(off),
        ..drive("a", false)
    };
    assert_eq!(config.check(), Ok(()));
}

#[test]
fn a_drive_is_an_image_or_a_stack() {
    let checked = |fields: &str| {
        let json = format!(r#"{{"drive_id": "a", "is_root_device": false, {fields}}}"#);
        let drive: DriveConfig = parse(json.as_bytes()).map_err(|error| error.to_string())?;
        drive.check().map_err(|error| error.to_string())?;
        let again = serde_json::to_vec(&drive).expect("it is data");
        assert_eq!(parse::<DriveConfig>(&again), Ok(drive), "{fields}");
        Ok::<_, String>(())
    };
    for good in [
        r#""path_on_host": "/d""#,
        r#""path_on_host": "/d", "stack": null"#,
        r#""stack": {"layers": ["/a", "/b"], "delta": "/c"}"#,
        r#""stack": {"layers": ["/a"]}, "is_read_only": true"#,
        r#""stack": {"layers": ["/a"], "delta": null}, "is_read_only": true"#,
    ] {
        checked(good).unwrap_or_else(|text| panic!("{good}: {text}"));
    }
    let both = r#""path_on_host": "/d", "stack": {"layers": ["/a"], "delta": "/c"}"#;
    for (bad, word) in [
        (r#""is_read_only": false"#, "path_on_host"),
        (r#""path_on_host": """#, "path_on_host"),
        (r#""path_on_host": null"#, "path_on_host"),
        (both, "path_on_host"),
        (r#""stack": {"layers": [], "delta": "/c"}"#, "stack.layers"),
        (
            r#""stack": {"layers": [""], "delta": "/c"}"#,
            "stack.layers",
        ),
        (r#""stack": {"delta": "/c"}"#, "layers"),
        (r#""stack": {"layers": ["/a"]}"#, "stack.delta"),
        (r#""stack": {"layers": ["/a"], "delta": ""}"#, "stack.delta"),
        (
            r#""stack": {"layers": ["/a"], "delta": "/c", "size": 1}"#,
            "size",
        ),
    ] {
        let text = checked(bad).expect_err(bad);
        assert!(text.contains(word), "{bad}: {text}");
    }
}

#[test]
fn patch_merges_and_keeps_the_rest() {
    let base = MachineConfig {
        vcpu_count: 4,
        mem_size_mib: 512,
        ..MachineConfig::default()
    };
    let patched = |json: &str| {
        parse::<MachineConfigPatch>(json.as_bytes()).and_then(|patch| patch.applied_to(&base))
    };
    let memory = MachineConfig {
        mem_size_mib: 64,
        ..base.clone()
    };
    assert_eq!(patched(r#"{"mem_size_mib":64}"#), Ok(memory));
    let vcpus = MachineConfig {
        vcpu_count: 3,
        ..base.clone()
    };
    assert_eq!(patched(r#"{"vcpu_count":3}"#), Ok(vcpus));
    assert_eq!(patched(r#"{"smt":false}"#), Ok(base.clone()));
    let dirty = MachineConfig {
        track_dirty_pages: true,
        ..base.clone()
    };
    assert_eq!(patched(r#"{"track_dirty_pages":true}"#), Ok(dirty));
    assert!(refusal(patched("{}")).contains("names no field"));
    assert!(refusal(patched(r#"{"vcpu_count":300}"#)).contains("vcpu_count is 300"));
}

#[test]
fn boot_args_are_printable_and_fit() {
    let with = |args: &str| BootSource {
        kernel_image_path: "/vmlinux".into(),
        initrd_path: None,
        boot_args: Some(args.to_owned()),
    };
    assert_eq!(with(&"a".repeat(2047)).check(), Ok(()));
    assert!(refusal(with(&"a".repeat(2048)).check()).contains("2048 bytes are more"));
    assert!(refusal(with("quiet\0init=/x").check()).contains("byte 5 is '\\0'"));
    assert!(refusal(with("quiet\n").check()).contains("boot_args"));
    assert!(refusal(with("ä").check()).contains("printable ASCII"));
    assert!(refusal(BootSource::default().check()).contains("kernel_image_path is \"\""));
    let nul: BootSource = parse(br#"{"kernel_image_path":"/a\u0000b"}"#).expect("is JSON");
    assert!(refusal(nul.check()).contains("NUL"));
}

#[test]
fn drive_rules() {
    for id in ["rootfs", "a_1", &"x".repeat(64)] {
        assert_eq!(drive(id, false).check(), Ok(()));
    }
    for id in ["", "..", "a/b", "a b", "a-b", "ä", &"x".repeat(65)] {
        assert!(refusal(drive(id, false).check()).contains("drive_id is"));
    }
    let parted = |id: &str| DriveConfig {
        partuuid: Some(id.to_owned()),
        ..drive("a", true)
    };
    assert_eq!(parted("0eaa91a0-01").check(), Ok(()));
    assert!(refusal(parted("x init=/bin/sh").check()).contains("partuuid"));
}

#[test]
fn one_root_first_and_ids_once() {
    let mut spec = Spec::default();
    let ids = |spec: &Spec| {
        spec.drives
            .iter()
            .map(|drive| drive.drive_id.clone())
            .collect::<Vec<_>>()
    };
    spec.put_drive(drive("data", false)).expect("first");
    spec.put_drive(drive("root", true)).expect("root");
    spec.put_drive(drive("more", false)).expect("third");
    assert_eq!(ids(&spec), ["root", "data", "more"]);

    let before = spec.clone();
    let text = refusal(spec.put_drive(drive("more", true)));
    assert!(text.contains("\"root\" already"), "{text}");
    assert_eq!(spec, before);

    spec.put_drive(DriveConfig {
        is_read_only: true,
        ..drive("data", false)
    })
    .expect("again");
    assert_eq!(ids(&spec), ["root", "data", "more"]);
    assert!(spec.drives[1].is_read_only);
    assert_eq!(spec.check(), Ok(()));

    spec.drives.push(drive("data", false));
    assert!(refusal(spec.check()).contains("id of its own"));
}

#[test]
fn vsock_rules() {
    let with = |guest_cid, length| VsockConfig {
        guest_cid,
        uds_path: "s".repeat(length).into(),
        vsock_id: None,
    };
    assert_eq!(with(3, 1).check(), Ok(()));
    assert_eq!(with(u32::MAX - 1, 107).check(), Ok(()));
    for cid in [0, 2, u32::MAX] {
        assert!(refusal(with(cid, 1).check()).contains(&format!("guest_cid is {cid}; it must")));
    }
    assert!(refusal(with(3, 0).check()).contains("uds_path"));
    assert!(refusal(with(3, 108).check()).contains("108 bytes are more than the 107"));
    assert_eq!(with(3, 96).reachable_port_digits(), 10);
    assert_eq!(with(3, 105).reachable_port_digits(), 1);
    assert_eq!(with(3, 107).reachable_port_digits(), 0);
}

#[test]
fn log_levels_in_any_case() {
    for (name, level) in [
        ("ERROR", LogLevel::Error),
        ("warn", LogLevel::Warning),
        ("Warning", LogLevel::Warning),
    ] {
        let config: LoggerConfig =
            parse(format!(r#"{{"level":"{name}"}}"#).as_bytes()).expect(name);
        assert_eq!(config.level, Some(level));
    }
    assert!(refusal(parse::<LoggerConfig>(br#"{"level":"loud"}"#)).contains("level is \"loud\""));
}

#[test]
fn long_values_are_shortened_in_messages() {
    let text = refusal(drive(&"ä".repeat(20_000), false).check());
    assert!(text.len() < 600, "{} bytes", text.len());
    let json = format!(r#"{{"{}":1}}"#, "k".repeat(50_000));
    assert!(refusal(machine(&json)).len() < 600);
}
