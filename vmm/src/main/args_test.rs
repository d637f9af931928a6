//! Command lines, good and bad.

use super::*;

fn run(args: &str) -> Result<RunArgs, String> {
    match parse(args.split_whitespace().map(OsString::from))? {
        Command::Run(args) => Ok(*args),
        other => panic!("{other:?}"),
    }
}

#[test]
fn defaults() {
    let args = run("").expect("nothing is needed");
    assert_eq!(args.api_sock, Some(DEFAULT_API_SOCK.into()));
    assert_eq!(args.id, "anonymous-instance");
    assert_eq!(args.max_payload, 51_200);
    assert_eq!(args.logger, LoggerConfig::default());
}

#[test]
fn everything_that_a_launcher_says() {
    let args = run(
        "--id vm-1 --api-sock=/s --config-file /c --http-api-max-payload-size 4096 \
                    --log-path /l --level warning --module coppice_vmm::api --show-level \
                    --show-log-origin --start-time-us 1 --start-time-cpu-us=2 \
                    --parent-cpu-time-us 3 --no-seccomp",
    )
    .expect("is right");
    assert_eq!(
        args,
        RunArgs {
            id: "vm-1".to_owned(),
            api_sock: Some("/s".into()),
            max_payload: 4096,
            restore: None,
            config_file: Some("/c".into()),
            logger: LoggerConfig {
                log_path: Some("/l".into()),
                level: Some(LogLevel::Warning),
                show_level: Some(true),
                show_log_origin: Some(true),
                module: Some("coppice_vmm::api".to_owned()),
            },
        }
    );
    assert_eq!(
        run("--no-api --config-file /c").map(|args| args.api_sock),
        Ok(None)
    );
}

#[test]
fn what_makes_no_sense_is_refused_in_words() {
    for (args, part) in [
        ("--nonsense", "no flag --nonsense"),
        ("-x", "-x"),
        ("vm.json", "vm.json"),
        ("--api-sock", "--api-sock"),
        ("--api-sock=", "needs a path"),
        ("--id a --id b", "--id is given twice"),
        ("--id a_b", "--id is \"a_b\"; it must be"),
        ("--id=", "--id is \"\""),
        ("--level loud", "--level is \"loud\"; it must be Off, Error"),
        ("--http-api-max-payload-size -1", "must be a whole number"),
        ("--http-api-max-payload-size lots", "must be a whole number"),
        ("--start-time-us now", "must be a whole number"),
        ("--no-api", "add --config-file"),
        ("--no-api --config-file c --api-sock s", "contradict"),
        ("--json", "--json belongs to --probe"),
        ("--show-level=yes", "show-level"),
        ("--metadata m", "--metadata is not available yet"),
        ("--boot-timer", "--boot-timer is not available yet"),
    ] {
        let text = run(args).expect_err(args);
        assert!(text.contains(part), "{args}: {text}");
    }
}

#[test]
fn other_commands() {
    let command = |args: &str| parse(args.split_whitespace().map(OsString::from));
    assert_eq!(command("--help"), Ok(Command::Help));
    assert_eq!(command("--id x --version"), Ok(Command::Version));
    assert_eq!(command("--probe"), Ok(Command::Probe { json: false }));
    assert_eq!(command("--json --probe"), Ok(Command::Probe { json: true }));
}

#[test]
fn the_help_text_names_every_flag_and_exit_code() {
    let help = help();
    for line in include_str!("args.rs").lines() {
        let Some((flag, _)) = line
            .trim()
            .strip_prefix('"')
            .and_then(|rest| rest.split_once("\" =>"))
        else {
            continue;
        };
        for flag in flag.split("\" | \"") {
            assert!(help.contains(&format!("--{flag}")), "{flag}");
        }
    }
    for (_, code, meaning) in EXITS {
        assert!(help.contains(&format!("{code}  {meaning}")), "{code}");
    }
    let documented = include_str!("../../../docs/vmm.md");
    for (_, code, meaning) in EXITS {
        assert!(
            documented.contains(&format!("| {code} | {meaning} |")),
            "{code} {meaning}"
        );
    }
}
