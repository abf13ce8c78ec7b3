//! The file layer: the operations that the engine needs of a disk. Tests replace it (a disk that
//! loses unsynced data, one that fails on demand, one that is full).

use std::{
    fs, io,
    os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use rustix::fs::{FallocateFlags, FlockOperation};

use super::{direct::DirectFile, frame::BLOCK};

/// One directory of files.
pub trait Disk: Send + Sync + 'static {
    /// Locks the directory against other processes until the guard is dropped.
    fn lock(&self) -> io::Result<Box<dyn Send + Sync>>;
    /// The names of all files.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Creates an empty file, replacing one of that name.
    fn create(&self, name: &str) -> io::Result<Box<dyn File>>;
    /// Opens an existing file.
    fn open(&self, name: &str) -> io::Result<Box<dyn File>>;
    /// The block size of log files.
    fn block(&self) -> u32;
    /// [`Disk::create`] for a file that is written in aligned blocks.
    fn create_log(&self, name: &str) -> io::Result<Box<dyn File>> {
        self.create(name)
    }
    /// [`Disk::open`] for a file that is written in aligned blocks.
    fn open_log(&self, name: &str) -> io::Result<Box<dyn File>> {
        self.open(name)
    }
    /// Renames a file, replacing the target.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes creations, renames and removals durable.
    fn sync(&self) -> io::Result<()>;
    /// The path of a file, for messages.
    fn path(&self, name: &str) -> PathBuf;
}

/// One file.
pub trait File: Send {
    /// Its length, including reserved space.
    fn size(&self) -> io::Result<u64>;
    /// Fills the buffer; a short file is an error.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    /// Writes all bytes.
    fn write_all_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Allocates space for `length` bytes at `offset`, reading as zeros.
    fn reserve(&mut self, offset: u64, length: u64) -> io::Result<()>;
    /// Truncates the file to this length and syncs it, with everything before.
    fn cut(&mut self, length: u64) -> io::Result<()>;
    /// Makes content and length durable.
    fn sync(&mut self) -> io::Result<()>;
}

/// A real directory, readable only by its owner.
pub struct Directory {
    path: PathBuf,
}

impl Directory {
    /// Creates the directory if it is missing.
    pub fn open(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        fs::create_dir_all(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700))?;
        if let Some(parent) = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty())
        {
            fs::File::open(parent)?.sync_all()?;
        }
        Ok(Self { path })
    }

    /// An existing directory, left as it is.
    pub fn existing(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }
}

impl Disk for Directory {
    fn lock(&self) -> io::Result<Box<dyn Send + Sync>> {
        let file = open_options()
            .create(true)
            .truncate(false)
            .open(self.path("lock"))?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Box::new(file))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let names = fs::read_dir(&self.path)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        names.collect()
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn File>> {
        Ok(Box::new(
            open_options()
                .create(true)
                .truncate(true)
                .open(self.path(name))?,
        ))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn File>> {
        Ok(Box::new(open_options().open(self.path(name))?))
    }

    fn block(&self) -> u32 {
        BLOCK as u32
    }

    fn create_log(&self, name: &str) -> io::Result<Box<dyn File>> {
        let file = open_options()
            .create(true)
            .truncate(true)
            .open(self.path(name))?;
        Ok(Box::new(DirectFile::new(file)))
    }

    fn open_log(&self, name: &str) -> io::Result<Box<dyn File>> {
        let file = open_options().open(self.path(name))?;
        Ok(Box::new(DirectFile::new(file)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path(from), self.path(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path(name))
    }

    fn sync(&self) -> io::Result<()> {
        fs::File::open(&self.path)?.sync_all()
    }

    fn path(&self, name: &str) -> PathBuf {
        Path::join(&self.path, name)
    }
}

fn open_options() -> fs::OpenOptions {
    let mut options = fs::OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    options
}

impl File for fs::File {
    fn size(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        FileExt::read_exact_at(self, buffer, offset)
    }

    fn write_all_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        FileExt::write_all_at(self, bytes, offset)
    }

    fn reserve(&mut self, offset: u64, length: u64) -> io::Result<()> {
        allocate(self, offset, length)?;
        FileExt::write_all_at(self, &vec![0; length as usize], offset)
    }

    fn cut(&mut self, length: u64) -> io::Result<()> {
        self.set_len(length)?;
        self.sync_all()
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }
}

/// Allocates space; contents are unspecified until written. The caller writes zeros, because
/// syncing blocks that were written before changes no metadata: it needs neither the filesystem's
/// journal nor its worker threads, and takes half the time.
pub(crate) fn allocate(file: &fs::File, offset: u64, length: u64) -> io::Result<()> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), offset, length) {
        // Without fallocate, writing the zeros allocates the space.
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Whether the disk is full.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}
