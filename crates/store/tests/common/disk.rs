//! A disk in memory that can lose power, be full, fail at a step, and lie about a sync.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard},
};

use rand::{Rng, SeedableRng, rngs::StdRng};
use store::embedded::disk::{Disk, File};

const SECTOR: usize = 512;

/// The steps at which a test can make the log fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    BeforeAppend,
    AfterAppend,
    BeforeSync,
    AfterSync,
}

pub(crate) const STEPS: [Step; 4] = [
    Step::BeforeAppend,
    Step::AfterAppend,
    Step::BeforeSync,
    Step::AfterSync,
];

#[derive(Clone)]
pub(crate) struct MemoryDisk {
    inner: Arc<Mutex<Inner>>,
    /// The boot of the machine that this handle belongs to.
    generation: u64,
}

struct Inner {
    rng: StdRng,
    files: HashMap<u64, Content>,
    names: BTreeMap<String, u64>,
    durable_names: BTreeMap<String, u64>,
    /// Changes of file names since the directory was synced, in order.
    pending_names: Vec<(String, Option<u64>)>,
    next: u64,
    /// Handles of an earlier boot fail: their machine lost power.
    generation: u64,
    locked: bool,
    capacity: usize,
    /// Power is lost after this many more operations.
    fuse: Option<u64>,
    fail: Option<Step>,
    /// One of this many syncs of a file does nothing.
    lie: Option<u32>,
}

#[derive(Default, Clone)]
struct Content {
    now: Vec<u8>,
    durable: Vec<u8>,
    /// Sectors written since the last sync.
    dirty: Vec<usize>,
}

impl MemoryDisk {
    pub(crate) fn new(seed: u64) -> Self {
        let inner = Inner {
            rng: StdRng::seed_from_u64(seed),
            files: HashMap::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            pending_names: Vec::new(),
            next: 0,
            generation: 0,
            locked: false,
            capacity: usize::MAX,
            fuse: None,
            fail: None,
            lie: None,
        };
        Self {
            inner: Arc::new(Mutex::new(inner)),
            generation: 0,
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    pub(crate) fn set_capacity(&self, bytes: usize) {
        self.inner().capacity = bytes;
    }

    pub(crate) fn set_fuse(&self, operations: u64) {
        self.inner().fuse = Some(operations);
    }

    pub(crate) fn fail_at(&self, step: Option<Step>) {
        self.inner().fail = step;
    }

    pub(crate) fn lie_once_in(&self, syncs: Option<u32>) {
        self.inner().lie = syncs;
    }

    /// Drops everything that was not synced, in part or whole.
    pub(crate) fn cut_power(&self) {
        self.inner().cut_power();
    }

    /// The same disk after a reboot.
    pub(crate) fn restarted(&self) -> Self {
        let generation = self.inner().generation;
        Self {
            inner: self.inner.clone(),
            generation,
        }
    }

    pub(crate) fn used(&self) -> usize {
        self.inner().used()
    }

    /// The contents of a file if power were lost now.
    pub(crate) fn durable(&self, name: &str) -> Vec<u8> {
        let inner = self.inner();
        let id = inner.durable_names.get(name);
        id.map_or_else(Vec::new, |id| inner.files[id].durable.clone())
    }

    /// Flips a bit on the medium.
    pub(crate) fn flip(&self, name: &str, offset: usize) {
        let mut inner = self.inner();
        let id = inner.names[name];
        let content = inner.files.get_mut(&id).unwrap();
        content.now[offset] ^= 0x55;
        content.durable[offset] ^= 0x55;
    }

    pub(crate) fn length(&self, name: &str) -> usize {
        let inner = self.inner();
        inner.files[&inner.names[name]].now.len()
    }

    /// The offset of a frame in a log file.
    pub(crate) fn frames_start(&self, name: &str, frame: usize) -> usize {
        let inner = self.inner();
        super::frames(&inner.files[&inner.names[name]].now)[frame].0
    }

    /// The end of the frames in a log file.
    pub(crate) fn frames_end(&self, name: &str) -> usize {
        let inner = self.inner();
        super::frames_end(&inner.files[&inner.names[name]].now)
    }
}

impl Inner {
    fn used(&self) -> usize {
        self.names.values().map(|id| self.files[id].now.len()).sum()
    }

    /// Every operation passes here: handles of earlier boots fail, and the fuse counts down.
    fn step(&mut self, generation: u64) -> io::Result<()> {
        if generation != self.generation {
            return Err(io::Error::other("the power is off"));
        }
        match &mut self.fuse {
            Some(0) => {
                self.cut_power();
                Err(io::Error::other("the power went off"))
            }
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn trip(&mut self, step: Step) -> io::Result<()> {
        if self.fail == Some(step) {
            return Err(io::Error::other(format!("{step:?} fails")));
        }
        Ok(())
    }

    fn cut_power(&mut self) {
        self.generation += 1;
        self.fuse = None;
        self.locked = false;
        // A journal keeps changes of file names in order, up to some point.
        let kept = self.rng.random_range(0..=self.pending_names.len());
        for (name, id) in self.pending_names.drain(..).take(kept) {
            match id {
                Some(id) => self.durable_names.insert(name, id),
                None => self.durable_names.remove(&name),
            };
        }
        self.names = self.durable_names.clone();
        for content in self.files.values_mut() {
            // Unsynced sectors are written or not, in any order.
            let keep_some = self.rng.random_bool(0.5);
            let longer = content.now.len() > content.durable.len() && self.rng.random_bool(0.5);
            if longer {
                content.durable.resize(content.now.len(), 0);
            }
            for sector in std::mem::take(&mut content.dirty) {
                if keep_some && self.rng.random_bool(0.5) {
                    content.persist(sector);
                }
            }
            content.now = content.durable.clone();
        }
    }
}

impl Content {
    fn persist(&mut self, sector: usize) {
        let start = sector * SECTOR;
        let end = (start + SECTOR).min(self.now.len()).min(self.durable.len());
        if start < end {
            self.durable[start..end].copy_from_slice(&self.now[start..end]);
        }
    }

    fn sync(&mut self) {
        self.durable.resize(self.now.len(), 0);
        for sector in std::mem::take(&mut self.dirty) {
            self.persist(sector);
        }
    }
}

struct Handle {
    disk: MemoryDisk,
    id: u64,
}

struct Guard {
    disk: MemoryDisk,
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut inner = self.disk.inner();
        if inner.generation == self.disk.generation {
            inner.locked = false;
        }
    }
}

impl Disk for MemoryDisk {
    fn lock(&self) -> io::Result<Box<dyn Send + Sync>> {
        let mut inner = self.inner();
        if inner.locked {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        inner.locked = true;
        drop(inner);
        Ok(Box::new(Guard { disk: self.clone() }))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.inner().names.keys().cloned().collect())
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn File>> {
        let mut inner = self.inner();
        inner.step(self.generation)?;
        let id = inner.next;
        inner.next += 1;
        inner.files.insert(id, Content::default());
        inner.names.insert(name.into(), id);
        inner.pending_names.push((name.into(), Some(id)));
        drop(inner);
        Ok(Box::new(Handle {
            disk: self.clone(),
            id,
        }))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn File>> {
        let inner = self.inner();
        let id = *inner.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        drop(inner);
        Ok(Box::new(Handle {
            disk: self.clone(),
            id,
        }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut inner = self.inner();
        inner.step(self.generation)?;
        let id = inner.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        inner.names.insert(to.into(), id);
        // One journal entry, but losing the removal of the old name is harmless.
        inner.pending_names.push((to.into(), Some(id)));
        inner.pending_names.push((from.into(), None));
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut inner = self.inner();
        inner.step(self.generation)?;
        inner.names.remove(name).ok_or(io::ErrorKind::NotFound)?;
        inner.pending_names.push((name.into(), None));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut inner = self.inner();
        inner.step(self.generation)?;
        inner.pending_names.clear();
        inner.durable_names = inner.names.clone();
        Ok(())
    }

    fn block(&self) -> u32 {
        64
    }

    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from("/memory").join(name)
    }
}

impl Handle {
    fn with<T>(&self, work: impl FnOnce(&mut Inner) -> io::Result<T>) -> io::Result<T> {
        let mut inner = self.disk.inner();
        inner.step(self.disk.generation)?;
        work(&mut inner)
    }
}

impl File for Handle {
    fn size(&self) -> io::Result<u64> {
        self.with(|inner| Ok(inner.files[&self.id].now.len() as u64))
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.with(|inner| {
            let start = offset as usize;
            let bytes = inner.files[&self.id].now.get(start..start + buffer.len());
            buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        })
    }

    fn write_all_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.with(|inner| {
            inner.trip(Step::BeforeAppend)?;
            let (start, end) = (offset as usize, offset as usize + bytes.len());
            let more = end.saturating_sub(inner.files[&self.id].now.len());
            if inner.used() + more > inner.capacity {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let content = inner.files.get_mut(&self.id).unwrap();
            content.now.resize(content.now.len() + more, 0);
            content.now[start..end].copy_from_slice(bytes);
            content
                .dirty
                .extend(start / SECTOR..=end.saturating_sub(1) / SECTOR);
            inner.trip(Step::AfterAppend)
        })
    }

    fn reserve(&mut self, offset: u64, length: u64) -> io::Result<()> {
        self.with(|inner| {
            let end = (offset + length) as usize;
            let more = end.saturating_sub(inner.files[&self.id].now.len());
            if inner.used() + more > inner.capacity {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let content = inner.files.get_mut(&self.id).unwrap();
            content.now.resize(content.now.len() + more, 0);
            Ok(())
        })
    }

    fn cut(&mut self, length: u64) -> io::Result<()> {
        self.with(|inner| {
            let content = inner.files.get_mut(&self.id).unwrap();
            content.now.truncate(length as usize);
            content.durable.truncate(length as usize);
            content.sync();
            Ok(())
        })
    }

    fn sync(&mut self) -> io::Result<()> {
        self.with(|inner| {
            inner.trip(Step::BeforeSync)?;
            let lies = inner.lie;
            let lies = lies.is_some_and(|once_in| inner.rng.random_ratio(1, once_in));
            if !lies {
                inner.files.get_mut(&self.id).unwrap().sync();
            }
            inner.trip(Step::AfterSync)
        })
    }
}
