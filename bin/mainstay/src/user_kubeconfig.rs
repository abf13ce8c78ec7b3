//! The administrator's context in the kubeconfig of the user who runs the cluster: with `sudo
//! mainstay up`, kubectl works without sudo. Users' files are read and written with their
//! permissions, so that root follows no links in a home directory.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, anyhow};
use cluster::marker::Marker;
use nix::unistd::{Gid, Uid, setfsgid, setfsuid};
use tokio::sync::watch;

use crate::accounts::Account;

/// The name of the context of the cluster in the default data directory.
pub(crate) const CONTEXT: &str = "mainstay";

/// How often contexts are written again although nothing changed: a home directory may have been
/// away.
const REFRESH: Duration = Duration::from_secs(12 * 3600);

/// The result of adding a context.
pub(crate) struct Added {
    pub file: PathBuf,
    pub context: String,
    pub is_current: bool,
}

impl Added {
    /// The message about it.
    pub(crate) fn line(&self) -> String {
        let (context, file) = (&self.context, self.file.display());
        if self.is_current {
            return format!(
                "kubectl uses this cluster now: {context} is the current context of {file}."
            );
        }
        format!(
            "{file} has the context {context} now; `kubectl config use-context {context}` makes it the current one."
        )
    }
}

/// The names of the cluster's context, best first: further clusters of a machine have their own
/// names, and so has one whose user has another cluster under the usual name.
pub(crate) fn contexts(data_dir: &Path) -> Vec<String> {
    let own = format!("{CONTEXT}-{}", cluster::settings::id(data_dir));
    match data_dir == Path::new(cluster::settings::DATA_DIR) {
        true => vec![CONTEXT.to_owned(), own],
        false => vec![own],
    }
}

/// Adds the context for the calling user, and remembers the user.
pub(crate) fn add_for_caller(data_dir: &Path) -> Result<Added> {
    let user = caller()?;
    // Certificates of other users' contexts may have changed since the last start.
    refresh(data_dir);
    let added = add(data_dir, &user)?;
    let uid = user.uid.as_raw();
    Marker::update(data_dir, |marker| {
        if !marker.kubeconfig_users.contains(&uid) {
            marker.kubeconfig_users.push(uid);
        }
    })?;
    Ok(added)
}

/// Keeps the contexts of all remembered users up to date when certificates are renewed and servers
/// come and go. Never returns.
pub(crate) async fn keep_current(data_dir: &Path, mut written: Option<watch::Receiver<u64>>) {
    loop {
        let changed = async {
            let is_changed = match &mut written {
                Some(written) => written.changed().await.is_ok(),
                None => false,
            };
            if !is_changed {
                std::future::pending::<()>().await;
            }
        };
        let _ = tokio::time::timeout(REFRESH, changed).await;
        let data_dir = data_dir.to_owned();
        // A home directory may be on a network file system.
        let refreshed = tokio::task::spawn_blocking(move || refresh(&data_dir)).await;
        if refreshed.is_err() {
            tracing::warn!("cannot refresh kubeconfigs");
        }
    }
}

fn refresh(data_dir: &Path) {
    for user in remembered(data_dir) {
        if let Err(error) = update(data_dir, &user) {
            complain(&user, &error);
        }
    }
}

/// Brings a user's context up to date. It is not added again for a user who removed it, nor added for a new user with
/// the uid of a former one.
fn update(data_dir: &Path, user: &Account) -> Result<()> {
    let (text, names, file) = (admin(data_dir)?, contexts(data_dir), file(user));
    as_user(user, || kubectl::refresh_context(&file, &text, &names))
}

fn complain(user: &Account, error: &anyhow::Error) {
    let error = format!("{error:#}");
    tracing::warn!(user = user.name, error, "cannot change the kubeconfig");
}

/// The contexts of a cluster that is about to be removed, together with the data that names them.
pub(crate) struct Contexts {
    admin: Option<String>,
    names: Vec<String>,
    users: Vec<Account>,
}

impl Contexts {
    pub(crate) fn read(data_dir: &Path) -> Self {
        Self {
            admin: admin(data_dir).ok(),
            names: contexts(data_dir),
            users: remembered(data_dir),
        }
    }

    /// Removes the contexts; returns the files that had one.
    pub(crate) fn remove(self) -> Vec<PathBuf> {
        let Some(admin) = self.admin else {
            return Vec::new();
        };
        let mut removed = Vec::new();
        for user in self.users {
            let file = file(&user);
            let done = as_user(&user, || {
                kubectl::remove_context(&file, &admin, &self.names)
            });
            match done {
                Ok(true) => removed.push(file),
                Ok(false) => {}
                Err(error) => complain(&user, &error),
            }
        }
        removed
    }
}

/// The administrator's kubeconfig of a cluster.
pub(crate) fn admin(data_dir: &Path) -> Result<String> {
    let path = data_dir.join("admin.kubeconfig");
    std::fs::read_to_string(&path).with_context(|| {
        format!(
            "cannot read {}; a server writes it at its first start, readable by root only",
            path.display()
        )
    })
}

fn add(data_dir: &Path, user: &Account) -> Result<Added> {
    let (text, names, file) = (admin(data_dir)?, contexts(data_dir), file(user));
    let (context, is_current) = as_user(user, || kubectl::add_context(&file, &text, &names))?;
    Ok(Added {
        file,
        context,
        is_current,
    })
}

fn file(user: &Account) -> PathBuf {
    user.home.join(".kube/config")
}

/// The calling user, also behind sudo.
fn caller() -> Result<Account> {
    let own = Uid::effective();
    let behind = std::env::var("SUDO_UID").ok().filter(|_| own.is_root());
    let uid = match behind {
        Some(uid) => Uid::from_raw(uid.parse().context("SUDO_UID")?),
        None => own,
    };
    Account::by_uid(uid)
}

fn remembered(data_dir: &Path) -> Vec<Account> {
    let marker = Marker::read(data_dir).ok().flatten().unwrap_or_default();
    let users = marker.kubeconfig_users.into_iter().map(Uid::from_raw);
    users.filter_map(|uid| Account::by_uid(uid).ok()).collect()
}

/// Runs something with a user's file permissions. The kernel keeps them and the groups per thread, so
/// they are set on a thread that ends afterwards.
fn as_user<T: Send>(user: &Account, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    if user.uid == Uid::effective() {
        return work();
    }
    let groups = user.groups();
    let group = |group: Gid| rustix::thread::Gid::from_raw(group.as_raw());
    let groups: Vec<_> = groups.into_iter().map(group).collect();
    let done = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // Otherwise the files of root's groups would be the user's.
            rustix::thread::set_thread_groups(&groups)?;
            setfsgid(user.gid);
            setfsuid(user.uid);
            // Neither call reports failure; both return the previous value.
            let is_user = setfsuid(user.uid) == user.uid
                && setfsgid(user.gid) == Gid::from_raw(user.gid.as_raw());
            anyhow::ensure!(is_user, "cannot become user {}", user.name);
            work()
        });
        thread.join()
    });
    done.unwrap_or_else(|_| Err(anyhow!("interrupted")))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    const ADMIN: &str = "clusters: [{name: mainstay, cluster: {server: s, certificate-authority-data: QQ==}}]\n\
                         users: [{name: admin, user: {client-key-data: Sw==}}]\n";

    #[test]
    fn a_users_file_is_written_with_the_users_rights() {
        if !Uid::effective().is_root() {
            return;
        }
        let home = tempfile::tempdir().unwrap();
        let user = Account {
            name: "unprivileged".into(),
            uid: Uid::from_raw(54_321),
            gid: Gid::from_raw(54_321),
            home: home.path().to_owned(),
        };
        let data = tempfile::tempdir().unwrap();
        std::fs::write(data.path().join("admin.kubeconfig"), ADMIN).unwrap();
        // Another user's home: nothing may be created there.
        assert!(add(data.path(), &user).is_err());
        nix::unistd::chown(home.path(), Some(user.uid), Some(user.gid)).unwrap();
        let added = add(data.path(), &user).unwrap();
        assert!(added.is_current && added.context.starts_with("mainstay-"));
        let metadata = std::fs::metadata(&added.file).unwrap();
        assert_eq!(metadata.uid(), user.uid.as_raw());
        assert_eq!(metadata.mode() & 0o777, 0o600);
        // It follows the cluster, until the user removes it.
        let renewed = ADMIN.replace("Sw==", "TmV3");
        std::fs::write(data.path().join("admin.kubeconfig"), &renewed).unwrap();
        update(data.path(), &user).unwrap();
        let read = || std::fs::read_to_string(&added.file).unwrap_or_default();
        assert!(read().contains("TmV3"), "{}", read());
        std::fs::remove_file(&added.file).unwrap();
        update(data.path(), &user).unwrap();
        assert!(!added.file.exists());
        std::fs::write(data.path().join("admin.kubeconfig"), ADMIN).unwrap();
        add(data.path(), &user).unwrap();

        // A link to a file of root is not followed.
        let secret = data.path().join("admin.kubeconfig");
        std::fs::set_permissions(
            data.path(),
            std::os::unix::fs::PermissionsExt::from_mode(0o755),
        )
        .unwrap();
        std::fs::remove_file(&added.file).unwrap();
        symlink(&secret, &added.file).unwrap();
        // Neither one that only root may read, nor one of root's group.
        for mode in [0o600, 0o640] {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(&secret, mode).unwrap();
            let error = add(data.path(), &user).err().expect("not the user's");
            assert!(format!("{error:#}").contains("denied"), "{error:#}");
            assert_eq!(std::fs::read_to_string(&secret).unwrap(), ADMIN);
        }
    }
}
