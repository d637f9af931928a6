//! Who a command runs as, from the guest's own `/etc/passwd` and `/etc/group`.
//!
//! A static program cannot use the C library's name services, and the guest's
//! files are the only source that a container image has anyway.

use coppice_agent_protocol::{AgentError, ErrorKind};

/// A user with everything that a login would give it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Account {
    /// The name; the number if the guest knows none.
    pub(crate) name: Vec<u8>,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// All groups, the primary one first.
    pub(crate) groups: Vec<u32>,
    pub(crate) home: Vec<u8>,
    pub(crate) shell: Vec<u8>,
}

/// The two files, or nothing where one is missing.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    pub(crate) passwd: Vec<u8>,
    pub(crate) group: Vec<u8>,
}

impl Accounts {
    /// Reads the files of this root.
    pub(crate) fn load() -> Self {
        Self {
            passwd: std::fs::read("/etc/passwd").unwrap_or_default(),
            group: std::fs::read("/etc/group").unwrap_or_default(),
        }
    }

    /// Looks up `NAME`, `UID`, `NAME:GROUP` or `UID:GID`. A number needs no
    /// entry; a group given by hand is the only one that the user then has.
    pub(crate) fn resolve(&self, spec: &[u8]) -> Result<Account, AgentError> {
        let (user, group) = match spec.iter().position(|b| *b == b':') {
            Some(at) => (&spec[..at], Some(&spec[at + 1..])),
            None => (spec, None),
        };
        let mut account = self.user(user).ok_or_else(|| unknown("user", user))?;
        match group {
            None => {
                let gid = account.gid;
                let more = self.memberships(&account.name).filter(|g| *g != gid);
                account.groups.extend(more);
            }
            Some(group) => {
                account.gid = self.group(group).ok_or_else(|| unknown("group", group))?;
                account.groups = vec![account.gid];
            }
        }
        Ok(account)
    }

    fn user(&self, user: &[u8]) -> Option<Account> {
        let entries = || records::<7>(&self.passwd);
        let number = parse(user);
        let entry = entries()
            .find(|[name, ..]| *name == user)
            .or_else(|| entries().find(|[_, _, uid, ..]| number.is_some() && parse(uid) == number));
        if let Some([name, _, uid, gid, _, home, shell]) = entry {
            let or = |value: &[u8], default: &[u8]| match value {
                [] => default.to_vec(),
                value => value.to_vec(),
            };
            let gid = parse(gid)?;
            return Some(Account {
                name: name.to_vec(),
                uid: parse(uid)?,
                gid,
                groups: vec![gid],
                home: or(home, b"/"),
                shell: or(shell, b"/bin/sh"),
            });
        }
        // An image without /etc/passwd still has a root.
        let uid = if user == b"root" { Some(0) } else { number };
        uid.map(|uid| Account {
            name: if uid == 0 {
                b"root".to_vec()
            } else {
                user.to_vec()
            },
            uid,
            gid: 0,
            groups: vec![0],
            home: if uid == 0 {
                b"/root".to_vec()
            } else {
                b"/".to_vec()
            },
            shell: b"/bin/sh".to_vec(),
        })
    }

    fn group(&self, group: &[u8]) -> Option<u32> {
        let entry = records::<4>(&self.group).find(|[name, ..]| *name == group);
        match entry {
            Some([_, _, gid, _]) => parse(gid),
            None => parse(group),
        }
    }

    fn memberships<'a>(&'a self, name: &'a [u8]) -> impl Iterator<Item = u32> + 'a {
        records::<4>(&self.group)
            .filter(move |[.., members]| members.split(|b| *b == b',').any(|m| m == name))
            .filter_map(|[_, _, gid, _]| parse(gid))
    }
}

fn unknown(what: &str, name: &[u8]) -> AgentError {
    AgentError::new(
        ErrorKind::UnknownUser,
        format!(
            "the guest has no {what} `{}`; give one of its /etc/{} or a number",
            name.escape_ascii(),
            if what == "user" { "passwd" } else { "group" }
        ),
    )
}

/// The lines that have exactly `N` fields.
fn records<const N: usize>(file: &[u8]) -> impl Iterator<Item = [&[u8]; N]> {
    file.split(|b| *b == b'\n').filter_map(|line| {
        let mut fields = line.split(|b| *b == b':');
        let mut record = [&line[..0]; N];
        for field in &mut record {
            *field = fields.next()?;
        }
        fields.next().is_none().then_some(record)
    })
}

/// A number as chown(1) takes it: digits only, and not the "no change" value.
fn parse(number: &[u8]) -> Option<u32> {
    if !number.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let value = std::str::from_utf8(number).ok()?.parse().ok()?;
    (value != u32::MAX).then_some(value)
}

#[cfg(test)]
#[path = "user_test.rs"]
mod tests;
