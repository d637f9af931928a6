//! The file against the API: the same content gets the same verdict and text.

use super::super::http::HttpRequest;
use super::super::router::route;
use super::*;

fn over_api(path: &str, body: &str) -> Result<Request, String> {
    route(&HttpRequest {
        method: "PUT".to_owned(),
        target: path.to_owned(),
        body: body.as_bytes().to_vec(),
        keep_alive: true,
    })
}

#[test]
fn same_bodies_same_verdict_same_text() {
    let table: &[(&str, &str, &[&str])] = &[
        (
            "machine-config",
            "/machine-config",
            &[
                r#"{"vcpu_count":1,"mem_size_mib":64}"#,
                r#"{"vcpu_count":1}"#,
                r#"{"vcpu_count":null,"mem_size_mib":64}"#,
                r#"{"vcpu_count":"1","mem_size_mib":64}"#,
                r#"{"vcpu_count":33,"mem_size_mib":64}"#,
                r#"{"vcpu_count":999,"mem_size_mib":64}"#,
                r#"{"vcpu_count":1,"mem_size_mib":64,"x":1}"#,
                r#"{"vcpu_count":1,"vcpu_count":1,"mem_size_mib":64}"#,
                r#"{"vcpu_count":1,"mem_size_mib":64,"smt":null}"#,
                r#"{"vcpu_count":1,"mem_size_mib":64,"huge_pages":"1G"}"#,
                "[1,64]",
                "7",
            ],
        ),
        (
            "boot-source",
            "/boot-source",
            &[
                r#"{"kernel_image_path":"/k"}"#,
                "{}",
                r#"{"kernel_image_path":[]}"#,
            ],
        ),
        (
            "vsock",
            "/vsock",
            &[
                r#"{"guest_cid":3,"uds_path":"v"}"#,
                r#"{"guest_cid":-3,"uds_path":"v"}"#,
                r#"{"guest_cid":3}"#,
                r#"{"guest_cid":4294967296,"uds_path":"v"}"#,
            ],
        ),
        (
            "entropy",
            "/entropy",
            &["{}", r#"{"rate_limiter":[]}"#, r#"{"rate":1}"#],
        ),
        ("serial", "/serial", &["{}", r#"{"serial_out_path":1}"#]),
        (
            "logger",
            "/logger",
            &["{}", r#"{"level":"loud"}"#, r#"{"show_level":"yes"}"#],
        ),
    ];
    for (section, path, bodies) in table {
        for body in *bodies {
            let file = requests(format!(r#"{{"{section}": {body}}}"#).as_bytes());
            match over_api(path, body) {
                Ok(request) => assert_eq!(file, Ok(vec![request]), "{body}"),
                Err(text) => assert_eq!(file, Err(format!("{section}: {text}")), "{body}"),
            }
        }
    }
}

#[test]
fn drives_are_bodies_too() {
    let good = r#"{"drive_id":"a","path_on_host":"/d","is_root_device":false}"#;
    let bad = r#"{"drive_id":"b","path_on_host":"/d"}"#;
    let file = requests(format!(r#"{{"drives":[{good},{bad}]}}"#).as_bytes());
    let text = over_api("/drives/b", bad).expect_err("lacks a field");
    assert_eq!(file, Err(format!("drives[1]: {text}")));

    let twice = requests(format!(r#"{{"drives":[{good},{good}]}}"#).as_bytes());
    assert!(
        twice
            .expect_err("same id")
            .contains("drives[1]: another drive has the drive_id \"a\"")
    );
    let once = requests(format!(r#"{{"drives":[{good}]}}"#).as_bytes());
    assert_eq!(
        once,
        over_api("/drives/a", good).map(|request| vec![request])
    );
}

#[test]
fn empty_sections_are_harmless_and_others_are_not() {
    assert_eq!(
        requests(
            br#"{"network-interfaces":[],"balloon":null,"metrics":null,"vsock":null,"drives":[]}"#
        ),
        Ok(Vec::new())
    );
    for section in [
        r#""balloon":{}"#,
        r#""network-interfaces":[{}]"#,
        r#""pmem":[1]"#,
    ] {
        let text = requests(format!("{{{section}}}").as_bytes()).expect_err(section);
        assert!(text.contains("not available yet in this version"), "{text}");
    }
}

#[test]
fn files_that_are_none() {
    for (file, part) in [
        ("", "does not contain a JSON object"),
        ("[]", "does not contain a JSON object"),
        ("{", "EOF"),
        ("{}x", "trailing characters"),
        (r#"{"machine":{}}"#, "unknown field `machine`"),
        (r#"{"vsock":null,"vsock":null}"#, "duplicate field `vsock`"),
        (r#"{"drives":{}}"#, "expected a sequence"),
    ] {
        let text = requests(file.as_bytes()).expect_err(file);
        assert!(text.contains(part), "{file}: {text}");
    }
}

#[test]
fn the_logger_comes_first_and_the_root_drive_is_kept() {
    let file = br#"{
        "boot-source": {"kernel_image_path": "/vmlinux", "boot_args": "console=ttyS0"},
        "drives": [{"drive_id": "rootfs", "path_on_host": "/r", "is_root_device": true}],
        "machine-config": {"vcpu_count": 2, "mem_size_mib": 1024},
        "logger": {"level": "Debug"}
    }"#;
    let requests = requests(file).expect("is right");
    assert!(matches!(
        requests.as_slice(),
        [
            Request::PutLogger(_),
            Request::PutMachineConfig(_),
            Request::PutBootSource(_),
            Request::PutDrive(_)
        ]
    ));
}
