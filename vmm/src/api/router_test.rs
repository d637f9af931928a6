//! Every method on every path, and bodies that are not what a path takes.

use super::*;

fn ask(method: &str, target: &str, body: &str) -> Result<Request, String> {
    route(&HttpRequest {
        method: method.to_owned(),
        target: target.to_owned(),
        body: body.as_bytes().to_vec(),
        keep_alive: true,
    })
}

#[test]
fn each_route_leads_somewhere() {
    use Request::*;
    let machine = r#"{"vcpu_count":2,"mem_size_mib":64}"#;
    let drive = r#"{"drive_id":"a","path_on_host":"/d","is_root_device":false}"#;
    let matches = [
        matches!(ask("GET", "/", ""), Ok(GetInstance)),
        matches!(ask("GET", "/version", ""), Ok(GetVersion)),
        matches!(ask("GET", "/vm/config", ""), Ok(GetSpec)),
        matches!(ask("GET", "/machine-config", ""), Ok(GetMachineConfig)),
        matches!(
            ask("PUT", "/machine-config", machine),
            Ok(PutMachineConfig(_))
        ),
        matches!(
            ask("PATCH", "/machine-config", machine),
            Ok(PatchMachineConfig(_))
        ),
        matches!(
            ask("PUT", "/boot-source", r#"{"kernel_image_path":"/k"}"#),
            Ok(PutBootSource(_))
        ),
        matches!(ask("PUT", "/drives/a", drive), Ok(PutDrive(_))),
        matches!(
            ask("PATCH", "/drives/a", r#"{"drive_id":"a"}"#),
            Ok(PatchDrive(_))
        ),
        matches!(
            ask("PUT", "/vsock", r#"{"guest_cid":3,"uds_path":"v"}"#),
            Ok(PutVsock(_))
        ),
        matches!(ask("PUT", "/entropy", "{}"), Ok(PutEntropy(_))),
        matches!(ask("PUT", "/serial", "{}"), Ok(PutSerial(_))),
        matches!(ask("PUT", "/logger", "{}"), Ok(PutLogger(_))),
        matches!(
            ask("PUT", "/actions", r#"{"action_type":"InstanceStart"}"#),
            Ok(Act(ActionType::InstanceStart))
        ),
        matches!(
            ask("PATCH", "/vm", r#"{"state":"Paused"}"#),
            Ok(SetState(StateWanted::Paused))
        ),
    ];
    assert_eq!(matches, [true; 15]);
    assert!(matches!(
        ask("GET", "http://localhost/version", ""),
        Ok(GetVersion)
    ));
}

#[test]
fn other_methods_name_those_that_there_are() {
    for (template, methods) in ROUTES {
        let path = template.replace("{drive_id}", "a");
        for method in [
            "GET", "PUT", "PATCH", "POST", "DELETE", "HEAD", "OPTIONS", "get", "X",
        ] {
            let Err(text) = ask(method, &path, "") else {
                assert!(methods.contains(&method), "{method} {path}");
                continue;
            };
            let known = methods.contains(&method);
            assert_eq!(
                text.contains("is not a method of"),
                !known,
                "{method} {path}: {text}"
            );
            if !known {
                assert!(text.contains(&methods.join(", ")), "{text}");
            }
        }
    }
}

#[test]
fn paths_that_are_not_there() {
    for path in [
        "/machine-config/",
        "/drives",
        "/drives/",
        "/drives/a/b",
        "//",
        "/vm/",
        "/../vm",
        "/VM",
        "/nonsense",
        "/machine%2dconfig",
        "*",
        "vm",
        "http://localhost",
    ] {
        for method in ["GET", "PUT", "PATCH", "DELETE"] {
            let text = ask(method, path, "").expect_err(path);
            assert!(text.contains(path), "{method} {path}: {text}");
        }
    }
    assert!(
        ask("GET", "/version?x=1", "")
            .expect_err("query")
            .contains("query")
    );
    for path in ["/network-interfaces/eth0", "/balloon", "/mmds", "/metrics"] {
        let text = ask("PUT", path, "{}").expect_err(path);
        assert!(text.contains("not available yet in this version"), "{text}");
    }
    let text = ask("GET", &format!("/{}", "x".repeat(8000)), "").expect_err("no such path");
    assert!(text.len() < 300, "{text}");
}

#[test]
fn path_and_body_agree() {
    let body = r#"{"drive_id":"b","path_on_host":"/d","is_root_device":false}"#;
    for method in ["PUT", "PATCH"] {
        let body = if method == "PUT" {
            body
        } else {
            r#"{"drive_id":"b"}"#
        };
        let text = ask(method, "/drives/a", body).expect_err("differs");
        assert!(text.contains("\"a\" and the body says \"b\""), "{text}");
    }
}

#[test]
fn bodies_where_they_belong() {
    assert!(
        ask("GET", "/version", "{}")
            .expect_err("body")
            .contains("takes no body")
    );
    for (method, path) in [
        ("PUT", "/vsock"),
        ("PATCH", "/machine-config"),
        ("PUT", "/drives/a"),
    ] {
        assert!(
            ask(method, path, "")
                .expect_err("none")
                .contains("the body is empty")
        );
        for body in ["null", "1", "\"x\"", "[]", "[3,\"v\"]", "{", "{]", "\u{1}"] {
            ask(method, path, body).expect_err(body);
        }
        let deep = format!("{}{}", "[".repeat(20_000), "]".repeat(20_000));
        ask(method, path, &format!("{{\"guest_cid\":{deep}}}")).expect_err("deep");
    }
    let text = ask("PUT", "/actions", r#"{"action_type":"Explode"}"#).expect_err("no action");
    assert!(text.contains("InstanceStart"), "{text}");
    let text = ask(
        "PUT",
        "/actions",
        r#"{"action_type":"InstanceStart","x":1}"#,
    )
    .expect_err("x");
    assert!(text.contains("unknown field `x`"), "{text}");
}
