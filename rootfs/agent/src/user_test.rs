use super::*;

fn accounts() -> Accounts {
    Accounts {
        passwd: b"root:x:0:0:root:/root:/bin/bash\n\
            broken line\n\
            daemon:x:1:1::/usr/sbin:\n\
            1000:x:77:77:a name of digits:/n:/bin/sh\n\
            dev:x:1000:1001:Dev,,,:/home/dev:/bin/zsh\n\
            nogid:x:5:x::/:/bin/sh\n"
            .to_vec(),
        group: b"root:x:0:\nwheel:x:10:dev,root\nvideo:x:44:other,dev\ndev:x:1001:dev\n".to_vec(),
    }
}

#[test]
fn a_name_gets_everything_that_a_login_would_give() {
    assert_eq!(
        accounts().resolve(b"dev").unwrap(),
        Account {
            name: b"dev".to_vec(),
            uid: 1000,
            gid: 1001,
            groups: vec![1001, 10, 44],
            home: b"/home/dev".to_vec(),
            shell: b"/bin/zsh".to_vec(),
        }
    );
    let daemon = accounts().resolve(b"daemon").unwrap();
    assert_eq!(daemon.shell, b"/bin/sh");
}

#[test]
fn numbers_need_no_entry() {
    let account = accounts().resolve(b"4242").unwrap();
    assert_eq!((account.uid, account.gid), (4242, 0));
    assert_eq!(account.home, b"/");
    let known = accounts().resolve(b"1").unwrap();
    assert_eq!(known.name, b"daemon");
    // A name made of digits comes before the number.
    assert_eq!(accounts().resolve(b"1000").unwrap().uid, 77);
}

#[test]
fn a_group_by_hand_is_the_only_one() {
    let account = accounts().resolve(b"dev:video").unwrap();
    assert_eq!((account.gid, account.groups), (44, vec![44]));
    let account = accounts().resolve(b"7:8").unwrap();
    assert_eq!((account.uid, account.gid, account.groups), (7, 8, vec![8]));
}

#[test]
fn an_image_without_files_has_a_root() {
    let account = Accounts::default().resolve(b"root").unwrap();
    assert_eq!((account.uid, account.home), (0, b"/root".to_vec()));
    assert_eq!(Accounts::default().resolve(b"0").unwrap().name, b"root");
}

#[test]
fn the_unknown_and_the_malformed_are_refused_by_name() {
    for spec in [
        &b"nobody2"[..],
        b"",
        b"-1",
        b"+1",
        b"4294967295",
        b"99999999999",
        b"nogid",
        b":0",
    ] {
        let error = accounts().resolve(spec).unwrap_err();
        assert_eq!(error.kind, ErrorKind::UnknownUser, "{spec:?}");
    }
    let error = accounts().resolve(b"dev:none").unwrap_err();
    assert_eq!(
        error.message,
        "the guest has no group `none`; give one of its /etc/group or a number"
    );
}
