//! A sampling allocator: it records the call stack of one allocation per `RATE` allocated bytes until the block is
//! freed. The reported sizes are estimates with an error of some hundred kilobytes.

use std::{
    alloc::{GlobalAlloc, Layout},
    cell::Cell,
    collections::HashMap,
    ffi::{CStr, c_char, c_int, c_void},
    fmt::Write as _,
    process::Command,
    sync::{
        LazyLock, Mutex, PoisonError,
        atomic::{AtomicU16, Ordering},
    },
};

use allocator::Allocator;

/// The number of bytes that one sample represents.
const RATE: usize = 32 << 10;
/// The maximum number of recorded frames per stack, starting with the innermost.
const DEPTH: usize = 96;
/// The number of hash buckets that tell without a lock that a block was not sampled.
const BUCKETS: usize = 1 << 16;

pub(crate) struct Sampled;

struct Sample {
    weight: usize,
    stack: Box<[usize]>,
}

thread_local! {
    /// The number of bytes until the next sample.
    static LEFT: Cell<isize> = const { Cell::new(RATE as isize) };
    /// Whether this thread is recording a sample: its own allocations are not sampled.
    static IS_BUSY: Cell<bool> = const { Cell::new(false) };
}

/// The number of samples in each bucket.
static IN_BUCKET: [AtomicU16; BUCKETS] = [const { AtomicU16::new(0) }; BUCKETS];
/// Guards the samples of live blocks, keyed by address.
static LIVE: LazyLock<Mutex<HashMap<usize, Sample>>> = LazyLock::new(Mutex::default);

fn bucket(address: usize) -> &'static AtomicU16 {
    &IN_BUCKET[(address >> 4).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 48 & (BUCKETS - 1)]
}

/// Counts an allocation, and records its stack if the next sample is due.
fn allocated(block: *mut u8, size: usize) {
    // An exiting thread has no thread locals any more.
    let is_due = LEFT.try_with(|left| {
        left.set(left.get() - size as isize);
        left.get() < 0
    });
    if is_due != Ok(true) || block.is_null() {
        return;
    }
    let _ = IS_BUSY.try_with(|is_busy| {
        if is_busy.replace(true) {
            return;
        }
        LEFT.set(RATE as isize);
        let sample = Sample {
            weight: size.max(RATE),
            stack: stack().into(),
        };
        let mut live = LIVE.lock().unwrap_or_else(PoisonError::into_inner);
        if live.insert(block.addr(), sample).is_none() {
            bucket(block.addr()).fetch_add(1, Ordering::Relaxed);
        }
        drop(live);
        is_busy.set(false);
    });
}

fn freed(block: *mut u8) {
    let bucket = bucket(block.addr());
    if bucket.load(Ordering::Relaxed) == 0 {
        return;
    }
    let _ = IS_BUSY.try_with(|is_busy| {
        if is_busy.replace(true) {
            return;
        }
        let mut live = LIVE.lock().unwrap_or_else(PoisonError::into_inner);
        if live.remove(&block.addr()).is_some() {
            bucket.fetch_sub(1, Ordering::Relaxed);
        }
        drop(live);
        is_busy.set(false);
    });
}

// SAFETY: every call is passed unchanged to the allocator of the binary; the samples only hold addresses.
unsafe impl GlobalAlloc for Sampled {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller says.
        let block = unsafe { Allocator.alloc(layout) };
        allocated(block, layout.size());
        block
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller says.
        let block = unsafe { Allocator.alloc_zeroed(layout) };
        allocated(block, layout.size());
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        freed(block);
        // SAFETY: as the caller says.
        unsafe { Allocator.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        freed(block);
        // SAFETY: as the caller says.
        let grown = unsafe { Allocator.realloc(block, layout, size) };
        allocated(grown, size);
        grown
    }
}

unsafe extern "C" {
    fn _rjem_mallctl(
        name: *const c_char,
        old: *mut c_void,
        old_size: *mut usize,
        new: *mut c_void,
        new_size: usize,
    ) -> c_int;
    fn _Unwind_Backtrace(
        each: extern "C" fn(*mut c_void, *mut c_void) -> c_int,
        data: *mut c_void,
    ) -> c_int;
    fn _Unwind_GetIP(frame: *mut c_void) -> usize;
}

/// The return addresses of this thread's calls, innermost first.
fn stack() -> Vec<usize> {
    extern "C" fn each(frame: *mut c_void, stack: *mut c_void) -> c_int {
        // SAFETY: `stack` points to the vector below, and `frame` comes from the unwinder.
        unsafe {
            let stack = &mut *stack.cast::<Vec<usize>>();
            stack.push(_Unwind_GetIP(frame));
            // A value other than 0 ends the walk.
            c_int::from(stack.len() == DEPTH)
        }
    }
    let mut stack: Vec<usize> = Vec::with_capacity(DEPTH);
    // SAFETY: `each` has the type of the unwinder's callback, and its data outlives the call.
    unsafe { _Unwind_Backtrace(each, (&raw mut stack).cast()) };
    stack
}

/// A statistic of the allocator in bytes; 0 if it has none of this name.
fn statistic(name: &CStr) -> u64 {
    let (mut value, mut size) = (0_u64, size_of::<u64>());
    let old = (&raw mut value).cast();
    // SAFETY: the value has the size that is passed, and jemalloc checks it.
    let failed =
        unsafe { _rjem_mallctl(name.as_ptr(), old, &raw mut size, std::ptr::null_mut(), 0) };
    if failed == 0 { value } else { 0 }
}

/// The allocator's memory: what is in use, the pages of that, and all pages that are resident.
pub(crate) fn totals() -> String {
    let (mut epoch, size) = (1_u64, size_of::<u64>());
    // SAFETY: the value has the size that is passed. Writing it makes jemalloc refresh its statistics.
    unsafe {
        let new = (&raw mut epoch).cast();
        _rjem_mallctl(
            c"epoch".as_ptr(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            new,
            size,
        );
    }
    let megabytes = |name| statistic(name) >> 20;
    format!(
        "{} MB allocated, {} MB in active pages, {} MB resident, {} MB of metadata",
        megabytes(c"stats.allocated"),
        megabytes(c"stats.active"),
        megabytes(c"stats.resident"),
        megabytes(c"stats.metadata"),
    )
}

/// The live memory by call stack, one line per stack: the number of bytes, then the function names, innermost first.
pub(crate) fn report() -> std::io::Result<String> {
    IS_BUSY.set(true);
    let mut by_stack: HashMap<Box<[usize]>, usize> = HashMap::new();
    for sample in LIVE.lock().unwrap_or_else(PoisonError::into_inner).values() {
        *by_stack.entry(sample.stack.clone()).or_default() += sample.weight;
    }
    IS_BUSY.set(false);
    let symbols = Symbols::read()?;
    let mut by_names: HashMap<String, usize> = HashMap::new();
    for (stack, weight) in by_stack {
        let mut names = stack
            .iter()
            .filter_map(|address| symbols.name(*address))
            .fold(String::new(), |mut line, name| {
                let _ = write!(line, ";{name}");
                line
            });
        names.retain(|letter| letter != '\n');
        *by_names.entry(names).or_default() += weight;
    }
    let mut lines: Vec<_> = by_names.into_iter().collect();
    lines.sort_by_key(|(_, weight)| std::cmp::Reverse(*weight));
    Ok(lines
        .iter()
        .fold(String::new(), |mut text, (names, weight)| {
            let _ = writeln!(text, "{weight} {}", names.trim_start_matches(';'));
            text
        }))
}

/// The functions of this program, sorted by address.
struct Symbols {
    base: usize,
    names: Vec<(usize, String)>,
}

impl Symbols {
    fn read() -> std::io::Result<Self> {
        let output = Command::new("nm")
            .args(["-C", "--defined-only"])
            .arg(std::env::current_exe()?)
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let mut names: Vec<(usize, String)> = text
            .lines()
            .filter_map(|line| {
                let (address, rest) = line.split_once(' ')?;
                let (_, name) = rest.split_once(' ')?;
                Some((usize::from_str_radix(address, 16).ok()?, name.to_owned()))
            })
            .collect();
        names.sort();
        // The load address: the difference between the address of one function and its address in the file.
        let known = names
            .iter()
            .find(|(_, name)| name == "heap_server::sampled::report");
        let base = known.map_or(0, |(at, _)| {
            (report as *const () as usize).wrapping_sub(*at)
        });
        Ok(Self { base, names })
    }

    fn name(&self, address: usize) -> Option<&str> {
        let address = address.wrapping_sub(self.base);
        let after = self.names.partition_point(|(at, _)| *at <= address);
        let (_, name) = self.names.get(after.checked_sub(1)?)?;
        (after < self.names.len()).then_some(name)
    }
}
