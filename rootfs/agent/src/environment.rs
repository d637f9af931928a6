//! The environment of a command.

use std::ffi::CString;

use coppice_agent_protocol::{AgentError, ErrorKind};

use crate::user::Account;

/// Where programs are looked up if the command's environment does not say.
pub(crate) const DEFAULT_PATH: &[u8] =
    b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Names and values in the order in which the command will see them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Environment(Vec<(Vec<u8>, Vec<u8>)>);

impl Environment {
    /// What every command of this user starts from.
    pub(crate) fn defaults(account: &Account, terminal: bool) -> Self {
        let mut env = Self::default();
        env.set(b"PATH", DEFAULT_PATH);
        env.set(b"HOME", &account.home);
        env.set(b"USER", &account.name);
        env.set(b"LOGNAME", &account.name);
        env.set(b"SHELL", &account.shell);
        if terminal {
            env.set(b"TERM", b"xterm-256color");
        }
        env
    }

    /// Sets a variable, in place of an earlier one of that name.
    fn set(&mut self, name: &[u8], value: &[u8]) {
        match self.0.iter_mut().find(|(n, _)| n == name) {
            Some((_, old)) => *old = value.to_vec(),
            None => self.0.push((name.to_vec(), value.to_vec())),
        }
    }

    /// Sets what a request asks for.
    pub(crate) fn extend(&mut self, asked: &[(Vec<u8>, Vec<u8>)]) -> Result<(), AgentError> {
        for (name, value) in asked {
            if name.is_empty() || name.contains(&b'=') {
                return Err(AgentError::new(
                    ErrorKind::BadRequest,
                    format!(
                        "`{}` cannot name an environment variable: a name is not empty and has no `=`",
                        name.escape_ascii()
                    ),
                ));
            }
            self.set(name, value);
        }
        Ok(())
    }

    pub(crate) fn get(&self, name: &[u8]) -> Option<&[u8]> {
        let found = self.0.iter().find(|(n, _)| n == name);
        found.map(|(_, value)| value.as_slice())
    }

    /// The `NAME=VALUE` strings that execve(2) takes.
    pub(crate) fn to_strings(&self) -> Result<Vec<CString>, AgentError> {
        let join = |(name, value): &(Vec<u8>, Vec<u8>)| {
            CString::new([name, &b"="[..], value].concat()).map_err(|_| {
                AgentError::new(
                    ErrorKind::BadRequest,
                    format!(
                        "environment variable `{}` contains a NUL byte, which Linux cannot pass on",
                        name.escape_ascii()
                    ),
                )
            })
        };
        self.0.iter().map(join).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dev() -> Account {
        Account {
            name: b"dev".to_vec(),
            uid: 1000,
            gid: 1000,
            groups: vec![1000],
            home: b"/home/dev".to_vec(),
            shell: b"/bin/bash".to_vec(),
        }
    }

    fn shown(env: &Environment) -> Vec<String> {
        let strings = env.to_strings().unwrap();
        strings
            .iter()
            .map(|s| s.to_string_lossy().into_owned())
            .collect()
    }

    #[test]
    fn golden_defaults() {
        let expected = [
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME=/home/dev",
            "USER=dev",
            "LOGNAME=dev",
            "SHELL=/bin/bash",
            "TERM=xterm-256color",
        ];
        assert_eq!(shown(&Environment::defaults(&dev(), true)), expected);
        assert_eq!(shown(&Environment::defaults(&dev(), false)), expected[..5]);
    }

    #[test]
    fn what_is_asked_for_wins_and_keeps_its_bytes() {
        let mut env = Environment::default();
        let pairs: [(&[u8], &[u8]); 4] = [
            (b"A", b"1"),
            (b"B", b"x=y\n\xff"),
            (b"A", b""),
            (b"C", b"3"),
        ];
        env.extend(&pairs.map(|(n, v)| (n.to_vec(), v.to_vec())))
            .unwrap();
        let strings = env.to_strings().unwrap();
        let bytes: Vec<&[u8]> = strings.iter().map(|s| s.as_bytes()).collect();
        assert_eq!(bytes, [&b"A="[..], b"B=x=y\n\xff", b"C=3"]);
        assert_eq!(env.get(b"C"), Some(&b"3"[..]));
    }

    #[test]
    fn impossible_variables_are_refused_by_name() {
        for name in [&b""[..], b"A=B"] {
            let asked = [(name.to_vec(), vec![])];
            let error = Environment::default().extend(&asked).unwrap_err();
            assert_eq!(error.kind, ErrorKind::BadRequest);
        }
        let mut env = Environment::default();
        env.extend(&[(b"NAME".to_vec(), b"a\0b".to_vec())]).unwrap();
        assert!(env.to_strings().unwrap_err().message.contains("`NAME`"));
    }
}
