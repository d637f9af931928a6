use super::*;

fn accounts() -> Accounts {
    Accounts {
        passwd: b"dev:x:1000:1000::/home/dev:/bin/bash\n".to_vec(),
        group: Vec::new(),
    }
}

fn plan(request: &ExecRequest) -> Result<Plan, AgentError> {
    Plan::new(request, &accounts())
}

fn shown(strings: &[CString]) -> Vec<&str> {
    strings.iter().map(|s| s.to_str().unwrap()).collect()
}

#[test]
fn a_bare_name_is_looked_up_in_the_commands_own_path() {
    let mut request = ExecRequest::argv(["ls", "-l"]);
    request.env = vec![(b"PATH".to_vec(), b"/a::/b".to_vec())];
    let plan = plan(&request).unwrap();
    assert_eq!(shown(&plan.candidates), ["/a/ls", "./ls", "/b/ls"]);
    assert_eq!(shown(&plan.argv), ["ls", "-l"]);
}

#[test]
fn a_cleared_environment_still_finds_programs() {
    let mut request = ExecRequest::argv(["ls"]);
    request.clear_env = true;
    let plan = plan(&request).unwrap();
    assert!(plan.env.is_empty());
    assert!(shown(&plan.candidates).contains(&"/usr/bin/ls"));
}

#[test]
fn a_path_is_taken_as_it_is() {
    let plan = plan(&ExecRequest::argv(["./run.sh"])).unwrap();
    assert_eq!(shown(&plan.candidates), ["./run.sh"]);
}

#[test]
fn a_user_starts_at_home() {
    let mut request = ExecRequest::shell("pwd");
    request.user = Some(b"dev".to_vec());
    let plan = plan(&request).unwrap();
    assert_eq!(plan.cwd.path(), c"/home/dev");
    assert!(matches!(plan.cwd, Cwd::Home(_)));
    assert_eq!(shown(&plan.argv), ["/bin/sh", "-c", "pwd"]);
    assert!(shown(&plan.env).contains(&"SHELL=/bin/bash"));
}

#[test]
fn impossible_requests_are_refused() {
    let with = |change: fn(&mut ExecRequest)| {
        let mut request = ExecRequest::argv(["true"]);
        change(&mut request);
        plan(&request).unwrap_err().kind
    };
    assert_eq!(
        with(|r| r.command = Command::Argv(vec![])),
        ErrorKind::BadRequest
    );
    assert_eq!(
        with(|r| r.command = Command::Shell(b"a\0b".to_vec())),
        ErrorKind::BadRequest
    );
    assert_eq!(
        with(|r| r.cwd = Some(b"/\0".to_vec())),
        ErrorKind::BadRequest
    );
    assert_eq!(with(|r| r.timeout_ms = Some(0)), ErrorKind::BadRequest);
    assert_eq!(
        with(|r| r.user = Some(b"nobody2".to_vec())),
        ErrorKind::UnknownUser
    );
}

#[test]
fn reports_survive_the_pipe() {
    for step in [
        Step::Setup,
        Step::Terminal,
        Step::User,
        Step::Cwd,
        Step::Exec,
    ] {
        let failure = Failure {
            step,
            errno: Errno::E2BIG,
        };
        assert_eq!(Failure::from_bytes(&failure.to_bytes()), Some(failure));
    }
    assert_eq!(Failure::from_bytes(&[]), None);
    assert_eq!(Failure::from_bytes(&[9, 0, 0, 0, 0]), None);
}
