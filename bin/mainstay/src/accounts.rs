//! Users of this machine. The binary is static: libc's functions would load the machine's NSS modules into it, which
//! ends in a segmentation fault. The files of accounts are read here; other sources, such as LDAP or systemd's own users,
//! are asked by `getent` and `id`.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Result, anyhow};
use nix::unistd::{Gid, Uid};

/// A user, as a line of `/etc/passwd` describes it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Account {
    pub name: String,
    pub uid: Uid,
    pub gid: Gid,
    pub home: PathBuf,
}

impl Account {
    pub(crate) fn by_uid(uid: Uid) -> Result<Self> {
        let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let known = passwd
            .lines()
            .filter_map(parse)
            .find(|user| user.uid == uid);
        let other = || parse(&output("getent", &["passwd", &uid.to_string()])?);
        known
            .or_else(other)
            .filter(|user| user.uid == uid)
            .ok_or_else(|| anyhow!("user {uid} is not in the user database"))
    }

    /// All groups of the user, its own among them.
    pub(crate) fn groups(&self) -> Vec<Gid> {
        // A name that begins with a hyphen would be an option.
        let other = (!self.name.starts_with('-'))
            .then(|| output("id", &["-G", &self.name]))
            .flatten();
        let mut groups = match other {
            Some(ids) => ids.split_whitespace().filter_map(gid).collect(),
            None => {
                let file = std::fs::read_to_string("/etc/group").unwrap_or_default();
                listed(&file, &self.name)
            }
        };
        if !groups.contains(&self.gid) {
            groups.push(self.gid);
        }
        groups
    }
}

/// The first line that a program prints, if it succeeds.
fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    let output = output.ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.lines().next().map(str::to_owned)
}

fn gid(text: &str) -> Option<Gid> {
    text.parse().ok().map(Gid::from_raw)
}

/// `name:password:uid:gid:description:home:shell`
fn parse(line: &str) -> Option<Account> {
    let fields: Vec<&str> = line.split(':').collect();
    let &[name, _, uid, group, _, home, ..] = fields.as_slice() else {
        return None;
    };
    let is_valid = !name.is_empty() && Path::new(home).is_absolute();
    is_valid.then_some(())?;
    Some(Account {
        name: name.to_owned(),
        uid: Uid::from_raw(uid.parse().ok()?),
        gid: gid(group)?,
        home: home.into(),
    })
}

/// The groups with this member, from lines `name:password:gid:members`.
fn listed(file: &str, user: &str) -> Vec<Gid> {
    let group = |line: &str| {
        let mut fields = line.split(':').skip(2);
        let group = gid(fields.next()?)?;
        let mut members = fields.next()?.split(',');
        members.any(|member| member == user).then_some(group)
    };
    file.lines().filter_map(group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_accounts_are_read() {
        let jane = Account {
            name: "jane".into(),
            uid: Uid::from_raw(1000),
            gid: Gid::from_raw(100),
            home: "/home/jane".into(),
        };
        for (line, account) in [
            ("jane:x:1000:100:Jane,,,:/home/jane:/bin/sh", Some(&jane)),
            ("jane:x:1000:100::/home/jane", Some(&jane)),
            ("jane:x:1000:100::relative:/bin/sh", None),
            ("jane:x:many:100::/home/jane:/bin/sh", None),
            (":x:1000:100::/home/jane:/bin/sh", None),
            ("+::::::", None),
            ("", None),
        ] {
            assert_eq!(parse(line).as_ref(), account, "{line}");
        }
    }

    #[test]
    fn groups_are_those_that_name_the_user() {
        let file =
            "root:x:0:\nsudo:x:27:jane,john\nusers:x:100:janet\nbroken\nstaff:x:50:john,jane\n";
        assert_eq!(listed(file, "jane"), [27, 50].map(Gid::from_raw));
        assert_eq!(listed(file, "guest"), []);
    }

    #[test]
    fn the_running_user_is_found_and_an_absent_one_is_an_error() {
        let own = Account::by_uid(Uid::effective()).unwrap();
        assert!(own.groups().contains(&own.gid));
        let absent = Account::by_uid(Uid::from_raw(4_000_000_000)).unwrap_err();
        assert!(absent.to_string().contains("4000000000"), "{absent}");
    }
}
