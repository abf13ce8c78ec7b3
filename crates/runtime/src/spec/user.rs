//! The user and groups of a container: numbers from the pod, or names looked up in the image's
//! files.

use std::{collections::BTreeSet, path::Path};

use cri::v1::{Int64Value, LinuxContainerSecurityContext, SupplementalGroupsPolicy};
use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Result},
    rooted,
};

/// Numeric user and groups.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// The user.
    pub uid: u32,
    /// The primary group.
    pub gid: u32,
    /// The supplementary groups.
    pub groups: Vec<u32>,
}

/// Resolves user and groups. The image's user counts only if the pod sets none.
pub(super) fn identify(
    security: &LinuxContainerSecurityContext,
    image_user: &str,
    rootfs: &Path,
) -> Result<Identity> {
    let number = |value: &Option<Int64Value>| -> Result<Option<u32>> {
        let number = value.as_ref().map(|value| u32::try_from(value.value));
        number
            .transpose()
            .map_err(|_| Error::Invalid("a user or group id is out of range".into()))
    };
    let mut wanted = image_user.to_owned();
    if !security.run_as_username.is_empty() {
        wanted = security.run_as_username.clone();
    }
    let run_as_user = number(&security.run_as_user)?;
    if let Some(uid) = run_as_user {
        wanted = uid.to_string();
    }
    let files = Files {
        passwd: rooted::read_to_string(rootfs, "/etc/passwd").unwrap_or_default(),
        group: rooted::read_to_string(rootfs, "/etc/group").unwrap_or_default(),
    };
    let mut identity = files.resolve(&wanted)?;
    if let Some(gid) = number(&security.run_as_group)? {
        identity.gid = gid;
    }
    if security.supplemental_groups_policy == i32::from(SupplementalGroupsPolicy::Strict) {
        identity.groups.clear();
    }
    let mut groups: BTreeSet<u32> = identity.groups.iter().copied().collect();
    for group in &security.supplemental_groups {
        let group = u32::try_from(*group);
        groups.insert(group.map_err(|_| Error::Invalid("a group id is out of range".into()))?);
    }
    groups.insert(identity.gid);
    identity.groups = groups.into_iter().collect();
    Ok(identity)
}

/// The home directory of a user in the image's files; `/` if there is none.
pub(super) fn home(uid: u32, rootfs: &Path) -> String {
    let passwd = rooted::read_to_string(rootfs, "/etc/passwd").unwrap_or_default();
    let mut entries = fields(&passwd);
    let entry = entries.find(|fields| fields.get(2).is_some_and(|id| id.parse() == Ok(uid)));
    let home = entry.and_then(|fields| fields.get(5).map(ToString::to_string));
    home.filter(|home| !home.is_empty())
        .unwrap_or_else(|| "/".to_owned())
}

struct Files {
    passwd: String,
    group: String,
}

impl Files {
    /// `user`, `uid`, `user:group`, in any mix of names and numbers; empty means root.
    fn resolve(&self, wanted: &str) -> Result<Identity> {
        let (user, group) = wanted.split_once(':').unwrap_or((wanted, ""));
        let user = if user.is_empty() { "0" } else { user };
        let number = user.parse::<u32>().ok();
        let entry = fields(&self.passwd).find(|fields| {
            fields.first() == Some(&user)
                || number.is_some() && fields.get(2).and_then(|uid| uid.parse().ok()) == number
        });
        let field = |index: usize| {
            entry
                .as_ref()
                .and_then(|f| f.get(index)?.parse::<u32>().ok())
        };
        let uid = number
            .or_else(|| field(2))
            .ok_or_else(|| Error::Invalid(format!("no user {user:?} in the image")))?;
        let name = entry
            .as_ref()
            .and_then(|fields| fields.first().copied())
            .unwrap_or(user);
        let gid = if group.is_empty() {
            field(3).unwrap_or(0)
        } else {
            self.gid(group)?
        };
        let groups = if group.is_empty() {
            self.groups_of(name)
        } else {
            Vec::new()
        };
        Ok(Identity { uid, gid, groups })
    }

    fn gid(&self, wanted: &str) -> Result<u32> {
        if let Ok(number) = wanted.parse() {
            return Ok(number);
        }
        let entry = fields(&self.group).find(|fields| fields.first() == Some(&wanted));
        let gid = entry.and_then(|fields| fields.get(2)?.parse().ok());
        gid.ok_or_else(|| Error::Invalid(format!("no group {wanted:?} in the image")))
    }

    fn groups_of(&self, user: &str) -> Vec<u32> {
        let member = |fields: &Vec<&str>| {
            fields
                .get(3)
                .is_some_and(|m| m.split(',').any(|m| m == user))
        };
        fields(&self.group)
            .filter(member)
            .filter_map(|fields| fields.get(2)?.parse().ok())
            .collect()
    }
}

fn fields(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.trim().split(':').collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(user: &str, security: LinuxContainerSecurityContext) -> Result<Identity> {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("etc")).unwrap();
        let write = |file: &str, text: &str| std::fs::write(root.path().join(file), text).unwrap();
        write(
            "etc/passwd",
            "root:x:0:0::/root:/bin/sh\nweb:x:33:34::/:/bin/false\n",
        );
        write("etc/group", "root:x:0:\nweb:x:34:\nmedia:x:50:web,root\n");
        identify(&security, user, root.path())
    }

    #[test]
    fn names_and_numbers_of_the_image_are_resolved() {
        let of = |user| identity(user, LinuxContainerSecurityContext::default());
        let web = Identity {
            uid: 33,
            gid: 34,
            groups: vec![34, 50],
        };
        assert_eq!(of("web").unwrap(), web);
        assert_eq!(of("33").unwrap(), web);
        assert_eq!(
            of("web:media").unwrap(),
            Identity {
                uid: 33,
                gid: 50,
                groups: vec![50]
            }
        );
        assert_eq!(
            of("1000").unwrap(),
            Identity {
                uid: 1000,
                gid: 0,
                groups: vec![0]
            }
        );
        assert_eq!(
            of("").unwrap(),
            Identity {
                uid: 0,
                gid: 0,
                groups: vec![0, 50]
            }
        );
        assert!(of("nobody-here").is_err());
    }

    #[test]
    fn the_home_is_that_of_the_uid_and_a_pipe_is_not_read() {
        let root = tempfile::tempdir().unwrap();
        let etc = root.path().join("etc");
        std::fs::create_dir(&etc).unwrap();
        let passwd = "root:x:0:0::/root:/bin/sh\nbare:x:5:5:::/bin/sh\nweb:x:33:34::/srv:\n";
        std::fs::write(etc.join("passwd"), passwd).unwrap();
        let homes = [0, 5, 33, 1000].map(|uid| home(uid, root.path()));
        assert_eq!(homes, ["/root", "/", "/srv", "/"]);
        std::fs::remove_file(etc.join("passwd")).unwrap();
        let mode = nix::sys::stat::Mode::from_bits_retain(0o666);
        nix::unistd::mkfifo(&etc.join("passwd"), mode).unwrap();
        assert_eq!(home(0, root.path()), "/");
    }

    #[test]
    fn the_pod_overrides_the_image() {
        let security = LinuxContainerSecurityContext {
            run_as_user: Some(Int64Value { value: 33 }),
            run_as_group: Some(Int64Value { value: 7 }),
            supplemental_groups: vec![9],
            ..Default::default()
        };
        let merged = identity("root", security.clone()).unwrap();
        assert_eq!(
            merged,
            Identity {
                uid: 33,
                gid: 7,
                groups: vec![7, 9, 50]
            }
        );
        let strict = LinuxContainerSecurityContext {
            supplemental_groups_policy: SupplementalGroupsPolicy::Strict.into(),
            ..security
        };
        assert_eq!(identity("root", strict).unwrap().groups, [7, 9]);
    }
}
