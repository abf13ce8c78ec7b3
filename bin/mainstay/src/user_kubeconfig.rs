//! The administrator's context in the kubeconfig of the person who runs the cluster: with `sudo mainstay up`, kubectl works
//! without sudo. The files of users are read and written with their rights, so that links in a home directory lead root nowhere.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, anyhow};
use cluster::marker::Marker;
use nix::unistd::{Gid, Uid, User, setfsgid, setfsuid};

/// The name of the context of the cluster in the default data directory.
pub(crate) const CONTEXT: &str = "mainstay";

/// Certificates are renewed weeks before they expire.
const REFRESH: Duration = Duration::from_secs(12 * 3600);

/// What became of a user's kubeconfig.
pub(crate) struct Added {
    pub file: PathBuf,
    pub context: String,
    pub is_current: bool,
}

impl Added {
    /// What a person has to know about it.
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

/// The cluster's context: further clusters of a machine have their own names.
pub(crate) fn context(data_dir: &Path) -> String {
    if data_dir == Path::new(cluster::settings::DATA_DIR) {
        return CONTEXT.to_owned();
    }
    format!("{CONTEXT}-{}", cluster::settings::id(data_dir))
}

/// Adds the context for the user who called, and remembers them.
pub(crate) fn add_for_caller(data_dir: &Path) -> Result<Added> {
    let user = caller()?;
    // Others may have got new certificates since the last start.
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

/// Keeps the contexts of all remembered users current, also after certificates were renewed. Never ends.
pub(crate) async fn keep_current(data_dir: &Path) {
    loop {
        tokio::time::sleep(REFRESH).await;
        let data_dir = data_dir.to_owned();
        // A home directory may be far away.
        let refreshed = tokio::task::spawn_blocking(move || refresh(&data_dir)).await;
        if refreshed.is_err() {
            tracing::warn!("cannot refresh kubeconfigs");
        }
    }
}

fn refresh(data_dir: &Path) {
    for user in remembered(data_dir) {
        if let Err(error) = add(data_dir, &user) {
            complain(&user, &error);
        }
    }
}

fn complain(user: &User, error: &anyhow::Error) {
    let error = format!("{error:#}");
    tracing::warn!(user = user.name, error, "cannot change the kubeconfig");
}

/// The contexts of a cluster that is about to be removed, and with it what says which they are.
pub(crate) struct Contexts {
    admin: Option<String>,
    name: String,
    users: Vec<User>,
}

impl Contexts {
    pub(crate) fn read(data_dir: &Path) -> Self {
        Self {
            admin: admin(data_dir).ok(),
            name: context(data_dir),
            users: remembered(data_dir),
        }
    }

    /// Takes the contexts away; returns the files that had one.
    pub(crate) fn remove(self) -> Vec<PathBuf> {
        let Some(admin) = self.admin else {
            return Vec::new();
        };
        let mut removed = Vec::new();
        for user in self.users {
            let file = file(&user);
            let done = as_user(&user, || kubectl::remove_context(&file, &admin, &self.name));
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
            "cannot read {}; it is there once a server has run from this directory, for root",
            path.display()
        )
    })
}

fn add(data_dir: &Path, user: &User) -> Result<Added> {
    let (text, context, file) = (admin(data_dir)?, context(data_dir), file(user));
    let is_current = as_user(user, || kubectl::add_context(&file, &text, &context))?;
    Ok(Added {
        file,
        context,
        is_current,
    })
}

fn file(user: &User) -> PathBuf {
    user.dir.join(".kube/config")
}

/// The person at the keyboard, also behind sudo.
fn caller() -> Result<User> {
    let own = Uid::effective();
    let behind = std::env::var("SUDO_UID").ok().filter(|_| own.is_root());
    let uid = match behind {
        Some(uid) => Uid::from_raw(uid.parse().context("SUDO_UID")?),
        None => own,
    };
    User::from_uid(uid)?.ok_or_else(|| anyhow!("user {uid} has no entry in the list of users"))
}

fn remembered(data_dir: &Path) -> Vec<User> {
    let marker = Marker::read(data_dir).ok().flatten().unwrap_or_default();
    let users = marker.kubeconfig_users.into_iter().map(Uid::from_raw);
    users
        .filter_map(|uid| User::from_uid(uid).ok().flatten())
        .collect()
}

/// Runs something with a user's rights on files. The kernel keeps these rights for each thread, so a thread that ends
/// afterwards has them.
fn as_user<T: Send>(user: &User, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    if user.uid == Uid::effective() {
        return work();
    }
    let done = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            setfsgid(user.gid);
            setfsuid(user.uid);
            // Neither call reports failure; both return what was set before.
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
        let Some(mut user) = User::from_name("nobody").unwrap() else {
            return;
        };
        let home = tempfile::tempdir().unwrap();
        user.dir = home.path().to_owned();
        let data = tempfile::tempdir().unwrap();
        std::fs::write(data.path().join("admin.kubeconfig"), ADMIN).unwrap();
        // A home of somebody else: nothing may be made there.
        assert!(add(data.path(), &user).is_err());
        nix::unistd::chown(home.path(), Some(user.uid), Some(user.gid)).unwrap();
        let added = add(data.path(), &user).unwrap();
        assert!(added.is_current && added.context.starts_with("mainstay-"));
        let metadata = std::fs::metadata(&added.file).unwrap();
        assert_eq!(metadata.uid(), user.uid.as_raw());
        assert_eq!(metadata.mode() & 0o777, 0o600);

        // A link to a file of root's is not followed to it.
        let secret = data.path().join("admin.kubeconfig");
        std::fs::set_permissions(
            data.path(),
            std::os::unix::fs::PermissionsExt::from_mode(0o755),
        )
        .unwrap();
        std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600))
            .unwrap();
        std::fs::remove_file(&added.file).unwrap();
        symlink(&secret, &added.file).unwrap();
        assert!(add(data.path(), &user).is_err());
        assert_eq!(std::fs::read_to_string(&secret).unwrap(), ADMIN);
    }
}
