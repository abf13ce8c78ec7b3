//! `mainstay backup` and `mainstay restore`. A running cluster writes the file itself: it is asked
//! over a socket in the state directory, which only its owner can enter. A stopped one is read from
//! disk. A backup holds the objects and the cluster's keys, so that restoring it on an empty
//! machine gives the same cluster, which knows its administrators, nodes and service accounts.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use lifecycle::{Context, Run, Service};
use pki::Identity;
use store::{Plain, embedded};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
};

use crate::{
    Error,
    archive::{self, PrivateDirectory, Temporary},
    founding,
    lock::DataLock,
    marker::Marker,
    settings, skew,
    storage::Storage,
};

/// A restored store continues this many revisions later, which no client has seen.
const BUMP: u64 = 1_000_000_000;
/// The store of a restore that is not complete yet, in the data directory.
pub(crate) const RESTORING: &str = "store.restoring";
/// Requests other than a backup's path, which begins with a slash.
const ROTATE: &str = "rotate-server-token";
const REFRESH: &str = "refresh-server-token";
/// Maximum length of a request.
const QUESTION: u64 = 8 << 10;
/// How long a client may take for its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The socket of the cluster in this data directory.
fn socket(data_dir: &Path) -> PathBuf {
    settings::state_dir(&settings::id(data_dir)).join("backup.sock")
}

/// Serves backup requests.
pub struct Backups {
    pub storage: Storage,
    pub data_dir: PathBuf,
}

impl Service for Backups {
    fn name(&self) -> &'static str {
        "backup"
    }

    fn run(self: Arc<Self>, context: Context) -> Run {
        Box::pin(async move {
            let path = socket(&self.data_dir);
            // A leftover of a killed daemon; the data directory's lock excludes another one.
            let _ = fs::remove_file(&path);
            let listener = UnixListener::bind(&path)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
            context.ready();
            loop {
                let stream = tokio::select! {
                    () = context.shutdown() => break,
                    accepted = listener.accept() => accepted?.0,
                };
                if let Err(error) = self.answer(stream).await {
                    tracing::warn!(%error, "cannot answer a backup request");
                }
            }
            fs::remove_file(&path)?;
            Ok(())
        })
    }
}

impl Backups {
    /// The request is a path or a word, the response a line.
    async fn answer(&self, mut stream: UnixStream) -> io::Result<()> {
        let mut question = String::new();
        let mut limited = (&mut stream).take(QUESTION);
        let read = limited.read_to_string(&mut question);
        tokio::time::timeout(REQUEST_TIMEOUT, read).await??;
        let answer = match &self.storage {
            _ if question == ROTATE => {
                settled(founding::rotate(&self.storage, &self.data_dir).await)
            }
            _ if question == REFRESH => {
                settled(founding::refresh(&self.storage, &self.data_dir).await)
            }
            Storage::Embedded(store) => match store.backup(Path::new(&question)).await {
                Ok(revision) => format!("ok {revision}"),
                Err(error) => format!("error {error}"),
            },
            Storage::Etcd(_) => {
                "error the objects are in etcd: back it up with etcdctl snapshot save".to_owned()
            }
        };
        stream.write_all(answer.as_bytes()).await
    }
}

fn settled(outcome: Result<(), Error>) -> String {
    match outcome {
        Ok(()) => "ok 0".to_owned(),
        Err(error) => format!("error {error}"),
    }
}

/// Makes the server of a data directory replace the token for further servers.
pub async fn rotate_server_token(data_dir: &Path) -> Result<(), Error> {
    match UnixStream::connect(socket(data_dir)).await {
        Ok(stream) => expect_answer(data_dir, stream, ROTATE).await,
        Err(error) if is_nobody(&error) => Err(Error::NotAServer(format!(
            "no server is running with the data directory {}",
            data_dir.display()
        ))),
        Err(error) => Err(failed(&socket(data_dir), &error)),
    }
}

/// Makes the server of a data directory, if it runs, check whether the token was replaced.
pub async fn refresh_server_token(data_dir: &Path) -> Result<(), Error> {
    match UnixStream::connect(socket(data_dir)).await {
        Ok(stream) => expect_answer(data_dir, stream, REFRESH).await,
        Err(error) if is_nobody(&error) => Ok(()),
        Err(error) => Err(failed(&socket(data_dir), &error)),
    }
}

async fn expect_answer(data_dir: &Path, stream: UnixStream, question: &str) -> Result<(), Error> {
    match ask(stream, question).await {
        Ok(_) => Ok(()),
        Err(Asked::Refused(why)) => Err(Error::NotAServer(why)),
        Err(Asked::Failed(error)) => Err(failed(&socket(data_dir), &error)),
    }
}

/// Writes all objects of a cluster, running or not, and its keys to a file, encrypted if there is a
/// password. Returns the revision of the objects.
pub async fn backup(data_dir: &Path, file: &Path, password: Option<&str>) -> Result<u64, Error> {
    let file = std::path::absolute(file).map_err(|error| failed(file, &error))?;
    if !data_dir.is_dir() {
        return Err(no_objects(data_dir));
    }
    // Not beside the file: they are not encrypted yet.
    archive::remove_leftovers(data_dir);
    let private = PrivateDirectory::inside(data_dir)?;
    let objects = private.file("objects");
    let revision = backup_objects(data_dir, &objects).await?;
    let keys = data_dir.join("pki");
    let identity = Identity::read(&keys)?;
    let identity = identity.ok_or_else(|| {
        let why = format!("{} does not contain the keys of a cluster", keys.display());
        Error::Backup(why)
    })?;
    let marker = Marker::read(data_dir)?.unwrap_or_default();
    let cluster = archive::Cluster {
        identity: &identity,
        writer: marker.writer,
        agreed: marker.agreed,
    };
    archive::write(&file, cluster, &objects, password)?;
    Ok(revision)
}

async fn backup_objects(data_dir: &Path, file: &Path) -> Result<u64, Error> {
    match UnixStream::connect(socket(data_dir)).await {
        Ok(stream) => {
            let question = file.to_str().ok_or_else(|| {
                let why = format!("{} is not UTF-8", file.display());
                Error::Backup(why)
            })?;
            ask(stream, question).await.map_err(|error| match error {
                Asked::Refused(why) => Error::Backup(why),
                Asked::Failed(error) => failed(&socket(data_dir), &error),
            })
        }
        Err(error) if is_nobody(&error) => {
            let (data_dir, file) = (data_dir.to_owned(), file.to_owned());
            let offline = tokio::task::spawn_blocking(move || backup_stopped(&data_dir, &file));
            offline
                .await
                .map_err(|error| Error::Backup(error.to_string()))?
        }
        Err(error) => Err(failed(&socket(data_dir), &error)),
    }
}

enum Asked {
    Refused(String),
    Failed(io::Error),
}

impl From<io::Error> for Asked {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

async fn ask(mut stream: UnixStream, question: &str) -> Result<u64, Asked> {
    stream.write_all(question.as_bytes()).await?;
    stream.shutdown().await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    match answer.split_once(' ') {
        Some(("ok", revision)) => revision
            .parse()
            .map_err(|_| Asked::Refused(format!("unexpected response: {answer}"))),
        Some(("error", why)) => Err(Asked::Refused(why.to_owned())),
        _ => Err(Asked::Refused(
            "the cluster stopped during the backup".to_owned(),
        )),
    }
}

fn is_nobody(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
    )
}

fn failed(path: &Path, error: &io::Error) -> Error {
    Error::Backup(format!("{}: {error}", path.display()))
}

fn no_objects(data_dir: &Path) -> Error {
    let place = data_dir.display();
    Error::Backup(format!("{place} contains no objects of a cluster"))
}

fn backup_stopped(data_dir: &Path, file: &Path) -> Result<u64, Error> {
    let directory = data_dir.join("store");
    if !directory.is_dir() {
        return Err(no_objects(data_dir));
    }
    let _lock = DataLock::take(data_dir)?;
    let store = embedded::Embedded::open(directory, Plain)?;
    Ok(store.backup_now(file)?)
}

/// The result of a restore.
#[derive(Debug)]
pub struct Restored {
    pub objects: u64,
    /// The revision that the cluster continues from.
    pub revision: u64,
    /// Whether the file holds the cluster's keys.
    pub has_keys: bool,
    /// The new paths of previous data: objects, and keys of another cluster.
    pub set_aside: Vec<PathBuf>,
}

/// Restores a backup's objects and keys into a stopped cluster. Existing data is an error or, with
/// `force`, set aside.
pub fn restore(
    data_dir: &Path,
    file: &Path,
    password: Option<&str>,
    force: bool,
) -> Result<Restored, Error> {
    let directory = data_dir.join("store");
    let _lock = DataLock::take(data_dir)?;
    let objects = Temporary::beside(&data_dir.join("objects"), ".restoring");
    let content = archive::read(file, objects.path(), password)?;
    let archive::Content {
        identity,
        writer,
        agreed,
    } = content;
    skew::check(writer.as_ref())?;
    let keys = data_dir.join("pki");
    let own = Identity::read(&keys)?;
    let other_keys = identity.is_some() && own.is_some() && own != identity;
    if other_keys && !force {
        let why = format!(
            "{} contains the keys of another cluster; --force moves them aside",
            keys.display()
        );
        return Err(Error::Backup(why));
    }
    let is_empty = fs::read_dir(&directory).map_or(true, |mut entries| entries.next().is_none());
    if !is_empty && !force {
        let why = format!(
            "{} already contains the objects of a cluster; --force moves them aside",
            directory.display()
        );
        return Err(Error::Backup(why));
    }
    // Written beside first: a bad file changes nothing.
    let fresh = data_dir.join(RESTORING);
    if fresh.exists() {
        fs::remove_dir_all(&fresh).map_err(|error| failed(&fresh, &error))?;
    }
    let restored = embedded::restore(objects.path(), &fresh, BUMP).inspect_err(|_| {
        let _ = fs::remove_dir_all(&fresh);
    })?;
    // From here on the directory is ours, for `reset` too, and a missing store is data loss.
    Marker::update(data_dir, |marker| {
        marker.store = true;
        marker.in_etcd = false;
        marker.writer = writer;
        marker.agreed = agreed;
        // Those of the cluster that was here before.
        marker.servers.clear();
    })?;
    let mut set_aside = Vec::new();
    for (path, _) in [(&directory, !is_empty), (&keys, other_keys)]
        .iter()
        .filter(|(_, moves)| *moves)
    {
        let aside = unused(path, "before-restore");
        fs::rename(path, &aside).map_err(|error| failed(&aside, &error))?;
        set_aside.push(aside);
    }
    if let Some(identity) = &identity {
        identity.install(&keys)?;
    }
    fs::rename(&fresh, &directory).map_err(|error| failed(&directory, &error))?;
    let synced = fs::File::open(data_dir).and_then(|parent| parent.sync_all());
    synced.map_err(|error| failed(data_dir, &error))?;
    Ok(Restored {
        objects: restored.entries,
        revision: restored.revision,
        has_keys: identity.is_some(),
        set_aside,
    })
}

/// An unused name beside `path`.
pub(crate) fn unused(path: &Path, why: &str) -> PathBuf {
    let name = |n: u32| path.with_extension(format!("{why}-{n}"));
    let mut n = 1;
    while name(n).exists() {
        n += 1;
    }
    name(n)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use store::{Action, Durability, Freshness, Op, Precondition, Store};

    use super::*;

    async fn put(store: &embedded::Embedded<Plain>, key: &'static str, value: &'static str) -> u64 {
        let op = Op {
            key: Bytes::from_static(key.as_bytes()),
            precondition: Precondition::Any,
            action: Action::Put {
                draft: Bytes::from_static(value.as_bytes()),
                expires_in: None,
            },
        };
        let committed = store.commit(vec![op], Durability::Synced).await;
        committed.unwrap().revision
    }

    #[tokio::test]
    async fn a_stopped_cluster_is_backed_up_and_restored_into_an_empty_directory_only() {
        let directory = tempfile::tempdir().unwrap();
        let (one, two) = (directory.path().join("one"), directory.path().join("two"));
        let file = directory.path().join("backup");
        let none = backup(&one, &file, None).await.unwrap_err();
        assert!(none.to_string().contains("contains no objects"), "{none}");
        let store = embedded::Embedded::open(one.join("store"), Plain).unwrap();
        let revision = put(&store, "/registry/a", "1").await;
        store.close();
        let without = backup(&one, &file, None).await.unwrap_err().to_string();
        assert!(without.contains("does not contain the keys"), "{without}");
        pki::Pki::ensure(&one.join("pki"), &pki::Names::default()).unwrap();
        assert_eq!(backup(&one, &file, None).await.unwrap(), revision);

        let restored = restore(&two, &file, None, false).unwrap();
        assert_eq!(restored.objects, 1);
        assert!(restored.has_keys && restored.set_aside.is_empty());
        let keys = |dir: &Path| Identity::read(&dir.join("pki")).unwrap();
        assert_eq!(keys(&one), keys(&two));
        assert_eq!(restored.revision, revision + BUMP);
        let marker = Marker::read(&two).unwrap();
        assert!(marker.is_some_and(|marker| marker.store));
        let again = restore(&two, &file, None, false).unwrap_err();
        assert!(again.to_string().contains("--force"), "{again}");
        let store = embedded::Embedded::open(two.join("store"), Plain).unwrap();
        put(&store, "/registry/b", "1").await;
        store.close();
        // Also if the objects had been moved to etcd.
        Marker::update(&two, |marker| marker.in_etcd = true).unwrap();
        let forced = restore(&two, &file, None, true).unwrap();
        assert!(!Marker::read(&two).unwrap().unwrap().in_etcd);
        assert!(forced.set_aside[0].join("lock").exists());
        assert_eq!(forced.set_aside.len(), 1, "the keys are the same");
        let three = directory.path().join("three");
        pki::Pki::ensure(&three.join("pki"), &pki::Names::default()).unwrap();
        let other = restore(&three, &file, None, false).unwrap_err().to_string();
        assert!(other.contains("keys of another cluster"), "{other}");
        let forced = restore(&three, &file, None, true).unwrap();
        assert_eq!(forced.set_aside, [three.join("pki.before-restore-1")]);
        assert_eq!(keys(&one), keys(&three));
        let store = embedded::Embedded::open(two.join("store"), Plain).unwrap();
        let listed = store.list(store::ListRequest {
            prefix: Bytes::new(),
            from: None,
            limit: None,
            freshness: Freshness::Newest,
            skip_unreadable: false,
        });
        let keys: Vec<_> = listed
            .await
            .unwrap()
            .entries
            .into_iter()
            .map(|entry| entry.key)
            .collect();
        assert_eq!(keys, ["/registry/a"]);
    }

    #[tokio::test]
    async fn a_backup_is_restored_by_the_versions_that_can_read_it() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let store = embedded::Embedded::open(at("one/store"), Plain).unwrap();
        put(&store, "/registry/a", "1").await;
        store.close();
        pki::Pki::ensure(&at("one/pki"), &pki::Names::default()).unwrap();
        let writer = |version: &str| {
            Some(skew::Writer {
                format: 1,
                version: version.to_owned(),
            })
        };
        let own = stdx::Version::own().to_string();
        for (made_by, is_readable) in [(own.as_str(), true), ("v1.0.0", false)] {
            Marker::update(&at("one"), |marker| marker.writer = writer(made_by)).unwrap();
            backup(&at("one"), &at("file"), None).await.unwrap();
            // Another cluster was here, long ago.
            let two = at(&format!("two-{made_by}"));
            fs::create_dir(&two).unwrap();
            Marker::update(&two, |marker| marker.writer = writer("v1.2.0")).unwrap();
            let restored = restore(&two, &at("file"), None, true);
            let marker = Marker::read(&two).unwrap().unwrap();
            match is_readable {
                true => assert_eq!(
                    (restored.unwrap().objects, marker.writer),
                    (1, writer(&own))
                ),
                false => {
                    let refused = restored.unwrap_err().to_string();
                    assert!(refused.contains("one minor version"), "{refused}");
                    assert!(!marker.store && !two.join("store").exists());
                }
            }
        }
    }

    #[tokio::test]
    async fn planted_links_beside_a_backup_are_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let store = embedded::Embedded::open(at("one/store"), Plain).unwrap();
        put(&store, "/registry/a", "some value").await;
        store.close();
        pki::Pki::ensure(&at("one/pki"), &pki::Names::default()).unwrap();
        fs::create_dir(at("shared")).unwrap();
        fs::write(at("theirs"), "theirs").unwrap();
        let planted = ["", ".new", ".tmp", ".objects", ".objects.tmp"].map(|ending| {
            let link = at(&format!("shared/backup{ending}"));
            std::os::unix::fs::symlink(at("theirs"), &link).unwrap();
            link
        });
        backup(&at("one"), &planted[0], Some("secret"))
            .await
            .unwrap();
        assert_eq!(fs::read_to_string(at("theirs")).unwrap(), "theirs");
        assert!(fs::symlink_metadata(&planted[0]).unwrap().is_file());
        // Nothing remains beside it, and nothing unencrypted.
        let mut left = Vec::new();
        for entry in fs::read_dir(at("shared")).unwrap() {
            left.push(entry.unwrap().path());
        }
        left.sort_unstable();
        let [file, _, tmp, objects, objects_tmp] = planted;
        assert_eq!(left, [file, objects, objects_tmp, tmp]);
        let restored = restore(&at("two"), &left[0], Some("secret"), false).unwrap();
        assert_eq!(restored.objects, 1);
    }

    #[tokio::test]
    async fn a_damaged_backup_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let (one, file) = (
            directory.path().join("one"),
            directory.path().join("backup"),
        );
        let store = embedded::Embedded::open(one.join("store"), Plain).unwrap();
        put(&store, "/registry/a", "some value").await;
        store.close();
        pki::Pki::ensure(&one.join("pki"), &pki::Names::default()).unwrap();
        backup(&one, &file, None).await.unwrap();
        let mut bytes = fs::read(&file).unwrap();
        let value = bytes.windows(10).position(|part| part == b"some value");
        bytes[value.unwrap()] ^= 1;
        fs::write(&file, bytes).unwrap();
        let two = directory.path().join("two");
        let error = restore(&two, &file, None, true).unwrap_err().to_string();
        assert!(error.contains("damaged"), "{error}");
        assert!(!two.join("store").exists() && !two.join("store.restoring").exists());
        assert_eq!(Marker::read(&two).unwrap(), None);
    }

    #[tokio::test]
    async fn a_restore_that_was_killed_is_completed_by_the_next_one() {
        let directory = tempfile::tempdir().unwrap();
        let (one, file) = (
            directory.path().join("one"),
            directory.path().join("backup"),
        );
        let store = embedded::Embedded::open(one.join("store"), Plain).unwrap();
        put(&store, "/registry/a", "1").await;
        store.close();
        pki::Pki::ensure(&one.join("pki"), &pki::Names::default()).unwrap();
        backup(&one, &file, None).await.unwrap();
        let done = directory.path().join("done");
        restore(&done, &file, None, false).unwrap();
        // What is left of a restore into an empty directory, step by step.
        for step in 0..4 {
            let two = directory.path().join(format!("two-{step}"));
            fs::create_dir_all(two.join(RESTORING)).unwrap();
            fs::write(two.join("objects.restoring"), "half").unwrap();
            if step > 0 {
                Marker::update(&two, |marker| marker.store = true).unwrap();
                fs::create_dir(two.join("pki")).unwrap();
            }
            let keys: &[&str] = match step {
                0 | 1 => &[],
                2 => &["ca.key", "front-proxy-ca.crt"],
                _ => &[
                    "ca.key",
                    "front-proxy-ca.crt",
                    "front-proxy-ca.key",
                    "sa.key",
                    "sa.pub",
                    "ca.crt",
                ],
            };
            for name in keys {
                fs::copy(done.join("pki").join(name), two.join("pki").join(name)).unwrap();
            }
            let restored = restore(&two, &file, None, false).unwrap();
            assert_eq!(restored.objects, 1, "step {step}");
            let keys = |dir: &Path| Identity::read(&dir.join("pki")).unwrap();
            assert_eq!(keys(&two), keys(&one), "step {step}");
            assert!(!two.join(RESTORING).exists() && !two.join("objects.restoring").exists());
        }
    }

    #[tokio::test]
    async fn a_cluster_that_runs_is_not_restored_over() {
        let directory = tempfile::tempdir().unwrap();
        let _running = DataLock::take(directory.path()).unwrap();
        let refused = restore(directory.path(), Path::new("any"), None, true);
        assert!(matches!(refused, Err(Error::InUse(_))), "{refused:?}");
    }
}
