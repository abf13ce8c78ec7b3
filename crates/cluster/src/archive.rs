//! The file of a backup: the cluster's keys followed by its objects, readable by its owner only,
//! optionally encrypted. It ends with the SHA-256 of everything before, so that restoring a damaged
//! file changes nothing. Archives without a checksum, and files with only objects, from earlier
//! versions, can be read too.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, BufReader, BufWriter, Read},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use pki::{Identity, sealed};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{Error, agreed::Agreed, skew::Writer};

/// The prefix of an archive.
const MAGIC: &[u8; 18] = b"mainstay-backup-2\n";
/// The prefix of an archive without a checksum.
const UNCHECKED_MAGIC: &[u8; 18] = b"mainstay-backup-1\n";
/// Length of the checksum at the end.
const CHECKSUM: usize = 32;
/// Maximum length of the head; keys are a few kilobytes.
const LONGEST: u32 = 1 << 20;

/// The part before the objects, preceded by its length and SHA-256.
#[derive(Serialize, Deserialize)]
struct Head {
    identity: serde_json::Value,
    /// Absent in archives of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    writer: Option<Writer>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    agreed: Option<Agreed>,
}

/// The part of an archive that is about the cluster and not in its objects.
#[derive(Debug, Clone)]
pub(crate) struct Cluster<'a> {
    pub identity: &'a Identity,
    /// The last writer of the objects.
    pub writer: Option<Writer>,
    /// The settings that the cluster keeps.
    pub agreed: Option<Agreed>,
}

/// An archive without its objects.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Content {
    /// The cluster's keys; absent in files with only objects.
    pub identity: Option<Identity>,
    /// The last writer of the objects.
    pub writer: Option<Writer>,
    /// The settings that the cluster keeps; absent in archives of earlier versions.
    pub agreed: Option<Agreed>,
}

/// Hashes what is read through it.
struct Hashing<'a, R>(R, &'a mut Sha256);

impl<R: Read> Read for Hashing<'_, R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read(bytes)?;
        self.1.update(&bytes[..read]);
        Ok(read)
    }
}

/// A file that is removed on drop.
pub(crate) struct Temporary(PathBuf);

impl Temporary {
    /// A file beside `path`, not created yet.
    pub(crate) fn beside(path: &Path, ending: &str) -> Self {
        let mut name = path.as_os_str().to_owned();
        name.push(ending);
        Self(name.into())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// The prefix of private directories, in the data directory.
const PRIVATE: &str = "backup.";

/// Whether an entry of the data directory has the name of a private directory. Users may keep backups beside them.
pub(crate) fn is_private(name: &str) -> bool {
    name.strip_prefix(PRIVATE)
        .is_some_and(|id| id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// How old a private directory is that no running backup can have.
const LEFTOVER: Duration = Duration::from_secs(24 * 3600);

/// Removes what interrupted backups left in the data directory.
pub(crate) fn remove_leftovers(data_dir: &Path) {
    let is_old = |entry: &fs::DirEntry| {
        let changed = entry.metadata().and_then(|metadata| metadata.modified());
        let age = changed.ok().and_then(|changed| changed.elapsed().ok());
        age.is_some_and(|age| age > LEFTOVER)
    };
    for entry in fs::read_dir(data_dir).into_iter().flatten().flatten() {
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let has_name = is_private(&entry.file_name().to_string_lossy());
        if is_directory && has_name && is_old(&entry) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// A directory that only its owner can enter; removed with its content on drop.
pub(crate) struct PrivateDirectory(PathBuf);

impl PrivateDirectory {
    /// A new directory in the data directory.
    pub(crate) fn inside(data_dir: &Path) -> Result<Self, Error> {
        let path = data_dir.join(format!("{PRIVATE}{:016x}", rand::random::<u64>()));
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.map_err(failed(&path))?;
        Ok(Self(path))
    }

    /// The path of a file in it.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn failed(path: &Path) -> impl Fn(io::Error) -> Error + '_ {
    move |error| Error::Backup(format!("{}: {error}", path.display()))
}

/// A new file that only its owner can read.
fn create(path: &Path) -> Result<File, Error> {
    let removed = fs::remove_file(path);
    if let Err(error) = removed.or_else(ignore_missing) {
        return Err(failed(path)(error));
    }
    let mut options = OpenOptions::new();
    let options = options.write(true).create_new(true).mode(0o600);
    options.open(path).map_err(failed(path))
}

fn ignore_missing(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    }
}

/// Writes an archive from a file of objects and the cluster's keys. A crash leaves the old or the
/// new file.
pub(crate) fn write(
    file: &Path,
    cluster: Cluster<'_>,
    objects: &Path,
    password: Option<&str>,
) -> Result<(), Error> {
    let head = Head {
        identity: cluster.identity.to_json(),
        writer: cluster.writer,
        agreed: cluster.agreed,
    };
    let head = serde_json::to_vec(&head).unwrap_or_default();
    let length = u32::try_from(head.len()).unwrap_or(u32::MAX).to_be_bytes();
    let begin = [MAGIC, &length[..], &Sha256::digest(&head), &head].concat();
    let checksum = checksum(&begin, objects)?;
    let objects = File::open(objects).map_err(failed(objects))?;
    let mut content = begin.chain(BufReader::new(objects)).chain(&checksum[..]);
    let fresh = Temporary::beside(file, ".new");
    let mut to = BufWriter::new(create(fresh.path())?);
    match password {
        Some(password) => sealed::seal(password, &mut content, &mut to)
            .map_err(|error| Error::Backup(error.to_string()))?,
        None => drop(io::copy(&mut content, &mut to).map_err(failed(file))?),
    }
    let done = to.into_inner().map_err(io::IntoInnerError::into_error);
    done.and_then(|file| file.sync_all())
        .map_err(failed(file))?;
    fs::rename(fresh.path(), file).map_err(failed(file))
}

/// The SHA-256 of a prefix and a file.
fn checksum(begin: &[u8], file: &Path) -> Result<[u8; CHECKSUM], Error> {
    let content = begin.chain(File::open(file).map_err(failed(file))?);
    let mut digest = Sha256::new();
    io::copy(&mut Hashing(content, &mut digest), &mut io::sink()).map_err(failed(file))?;
    Ok(digest.finalize().into())
}

/// Reads an archive: writes its objects to `objects`, and returns the rest.
pub(crate) fn read(file: &Path, objects: &Path, password: Option<&str>) -> Result<Content, Error> {
    let mut from = File::open(file).map_err(failed(file))?;
    let plain = Temporary::beside(objects, ".plain");
    if begins_with(file, sealed::MAGIC)? {
        let Some(password) = password else {
            let why = format!("{} is encrypted: --password-file is needed", file.display());
            return Err(Error::Backup(why));
        };
        let mut to = BufWriter::new(create(plain.path())?);
        sealed::open(password, &mut BufReader::new(from), &mut to)
            .map_err(|error| Error::Backup(format!("{}: {error}", file.display())))?;
        drop(to);
        from = File::open(plain.path()).map_err(failed(plain.path()))?;
    }
    let length = from.metadata().map_err(failed(file))?.len();
    let mut from = BufReader::new(from);
    let mut begin = Vec::new();
    let read = (&mut from).take(MAGIC.len() as u64).read_to_end(&mut begin);
    read.map_err(failed(file))?;
    if begin == MAGIC {
        return checked(from, length, file, objects);
    }
    // Without the prefix, the file has only objects, from the first byte on.
    let (content, begin) = match begin == UNCHECKED_MAGIC {
        true => (head(&mut from, file)?, Vec::new()),
        false => (Content::default(), begin),
    };
    let mut to = create(objects)?;
    io::copy(&mut begin.chain(from), &mut to).map_err(failed(objects))?;
    Ok(content)
}

/// Reads the rest of an archive of this `length` that ends with its checksum.
fn checked(
    mut from: impl Read,
    length: u64,
    file: &Path,
    objects: &Path,
) -> Result<Content, Error> {
    let damaged = || Error::Backup(format!("{}: damaged or incomplete", file.display()));
    let rest = length.checked_sub((MAGIC.len() + CHECKSUM) as u64);
    let rest = (&mut from).take(rest.ok_or_else(damaged)?);
    let mut digest = Sha256::new_with_prefix(MAGIC);
    let mut rest = Hashing(rest, &mut digest);
    let content = head(&mut rest, file)?;
    io::copy(&mut rest, &mut create(objects)?).map_err(failed(objects))?;
    let mut expected = [0; CHECKSUM];
    from.read_exact(&mut expected).map_err(|_| damaged())?;
    match digest.finalize()[..] == expected {
        true => Ok(content),
        false => Err(damaged()),
    }
}

fn begins_with(file: &Path, magic: &[u8]) -> Result<bool, Error> {
    let mut begin = Vec::new();
    let opened = File::open(file).map_err(failed(file))?;
    let read = opened.take(magic.len() as u64).read_to_end(&mut begin);
    read.map_err(failed(file))?;
    Ok(begin == magic)
}

fn head(from: &mut impl Read, file: &Path) -> Result<Content, Error> {
    let damaged = || Error::Backup(format!("{}: its header is damaged", file.display()));
    let (mut length, mut digest) = ([0; 4], [0; 32]);
    let read = from
        .read_exact(&mut length)
        .and_then(|()| from.read_exact(&mut digest));
    let length = u32::from_be_bytes(length);
    if read.is_err() || length > LONGEST {
        return Err(damaged());
    }
    let mut head = vec![0; length as usize];
    from.read_exact(&mut head).map_err(|_| damaged())?;
    if Sha256::digest(&head)[..] != digest {
        return Err(damaged());
    }
    let head: Head = serde_json::from_slice(&head).map_err(|_| damaged())?;
    Ok(Content {
        identity: Some(Identity::from_json(&head.identity)?),
        writer: head.writer,
        agreed: head.agreed,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use pki::{Names, Pki};

    use super::*;

    fn only(identity: &Identity) -> Cluster<'_> {
        Cluster {
            identity,
            writer: None,
            agreed: None,
        }
    }

    #[test]
    fn an_archive_holds_keys_and_objects_and_is_its_owners_alone() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        Pki::ensure(&at("pki"), &Names::default()).unwrap();
        let identity = Identity::read(&at("pki")).unwrap().unwrap();
        fs::write(at("objects"), "the objects").unwrap();
        let writer = Writer {
            format: 1,
            version: "v1.36.4".into(),
        };
        let agreed: Agreed = serde_json::from_value(serde_json::json!({
            "clusterCidr": "10.42.0.0/16", "serviceCidr": "10.60.0.0/16", "nodeCidrMask": 24,
            "clusterDomain": "cluster.local",
        }))
        .unwrap();
        for password in [None, Some("secret")] {
            let begin = Cluster {
                writer: Some(writer.clone()),
                agreed: Some(agreed.clone()),
                ..only(&identity)
            };
            write(&at("file"), begin, &at("objects"), password).unwrap();
            let mode = fs::metadata(at("file")).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
            let text = fs::read(at("file")).unwrap();
            let is_readable = text.windows(11).any(|part| part == b"the objects");
            assert_eq!(is_readable, password.is_none());
            let found = read(&at("file"), &at("out"), password).unwrap();
            assert_eq!(found.identity.as_ref(), Some(&identity));
            assert_eq!(found.writer.as_ref(), Some(&writer));
            assert_eq!(found.agreed.as_ref(), Some(&agreed));
            assert_eq!(fs::read(at("out")).unwrap(), b"the objects");
        }
        let refused = read(&at("file"), &at("out"), None).unwrap_err();
        assert!(refused.to_string().contains("--password-file"), "{refused}");
        assert!(read(&at("file"), &at("out"), Some("other")).is_err());
        // No decrypted data remains.
        assert!(!at("out.plain").exists() && !at("file.new").exists());
    }

    #[test]
    fn archives_of_earlier_versions_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for content in ["", "x", "objects of an earlier version, as they are"] {
            fs::write(at("old"), content).unwrap();
            let found = read(&at("old"), &at("out"), None).unwrap();
            assert_eq!(found, Content::default());
            assert_eq!(fs::read_to_string(at("out")).unwrap(), content);
        }
        Pki::ensure(&at("pki"), &Names::default()).unwrap();
        let identity = Identity::read(&at("pki")).unwrap().unwrap();
        write(&at("file"), only(&identity), &at("old"), None).unwrap();
        let bytes = fs::read(at("file")).unwrap();
        // From before archives had a checksum.
        let unchecked = [UNCHECKED_MAGIC, &bytes[MAGIC.len()..bytes.len() - CHECKSUM]].concat();
        fs::write(at("file"), &unchecked).unwrap();
        let found = read(&at("file"), &at("out"), None).unwrap();
        assert_eq!(found.identity, Some(identity));
        assert_eq!(fs::read(at("out")).unwrap(), fs::read(at("old")).unwrap());
    }

    #[test]
    fn an_archive_with_one_bit_changed_or_a_byte_more_or_less_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        Pki::ensure(&at("pki"), &Names::default()).unwrap();
        let identity = Identity::read(&at("pki")).unwrap().unwrap();
        fs::write(at("objects"), "the objects").unwrap();
        for password in [None, Some("secret")] {
            write(&at("file"), only(&identity), &at("objects"), password).unwrap();
            let bytes = fs::read(at("file")).unwrap();
            let is_read = |bytes: &[u8]| {
                fs::write(at("damaged"), bytes).unwrap();
                read(&at("damaged"), &at("out"), password).is_ok()
            };
            // Deriving a key from a password is slow: only some positions are tested then.
            let places = if password.is_some() { 601 } else { 1 };
            // Without a valid prefix it counts as a file of objects, which the store rejects.
            for place in (MAGIC.len()..bytes.len()).rev().step_by(places) {
                let mut damaged = bytes.clone();
                damaged[place] ^= 1 << (place % 8);
                assert!(!is_read(&damaged), "byte {place} of {}", bytes.len());
            }
            assert!(!is_read(&bytes[..bytes.len() - 1]));
            assert!(!is_read(&[&bytes[..], b"x"].concat()));
            assert!(is_read(&bytes));
        }
    }
}
