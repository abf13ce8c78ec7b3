//! The allocator of the binary and of the benchmarks that represent it: mimalloc, with which a
//! write through the API server takes a fifth to a third less time than with glibc's (decision 6).
//!
//! Declared by a program as follows:
//!
//! ```
//! #[global_allocator]
//! static ALLOCATOR: allocator::Allocator = allocator::Allocator;
//! ```

use std::{
    alloc::{GlobalAlloc, Layout},
    cell::Cell,
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};

use libmimalloc_sys::{
    mi_free, mi_heap_malloc_aligned, mi_heap_new, mi_heap_realloc_aligned, mi_heap_t,
    mi_heap_zalloc_aligned, mi_malloc, mi_malloc_aligned, mi_option_set, mi_option_t, mi_realloc,
    mi_realloc_aligned, mi_zalloc, mi_zalloc_aligned,
};

/// mimalloc's alignment of every block of at least this length.
const USUAL_ALIGNMENT: usize = 16;

/// mimalloc, with an explicit alignment only where the default does not suffice: an aligned
/// allocation is slower, and may use larger blocks.
pub struct Allocator;

/// Whether the default alignment suffices.
#[inline]
fn is_usual(layout: Layout) -> bool {
    layout.align() <= USUAL_ALIGNMENT && layout.align() <= layout.size()
}

thread_local! {
    /// Whether this thread allocates from the separate heap [`APART`].
    static IS_APART: Cell<bool> = const { Cell::new(false) };
}

/// The heap for work inside [`apart`]; null before the first call.
static APART: AtomicPtr<mi_heap_t> = AtomicPtr::new(ptr::null_mut());

/// Runs `work` with a separate heap. For short-lived allocations that are freed together, such as a decoded object in a
/// cache that soon drops it. They share no pages with long-lived allocations, which would keep nearly empty pages
/// in use.
pub fn apart<T>(work: impl FnOnce() -> T) -> T {
    /// Restores the flag also if `work` panics.
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            IS_APART.set(self.0);
        }
    }
    if APART.load(Ordering::Acquire).is_null() {
        // SAFETY: heaps of mimalloc can be used by all threads. A heap that lost the race below is leaked, unused.
        let heap = unsafe { mi_heap_new() };
        let null = ptr::null_mut();
        let _ = APART.compare_exchange(null, heap, Ordering::AcqRel, Ordering::Acquire);
    }
    let _restore = Restore(IS_APART.replace(true));
    work()
}

/// The heap to allocate from, if it is not the default one.
#[inline]
fn heap() -> Option<*mut mi_heap_t> {
    // An exiting thread has no thread locals any more.
    let is_apart = IS_APART.try_with(Cell::get).unwrap_or(false);
    is_apart
        .then(|| APART.load(Ordering::Acquire))
        .filter(|heap| !heap.is_null())
}

// SAFETY: mimalloc's functions meet the contract of this trait: they return blocks of the requested size, with the
// default alignment where `is_usual` accepts it and the requested alignment otherwise, and null without memory. A
// block from any of these functions may be freed and resized by the others.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller guarantees that the size is not zero.
        unsafe {
            if let Some(heap) = heap() {
                return mi_heap_malloc_aligned(heap, layout.size(), layout.align()).cast();
            }
            match is_usual(layout) {
                true => mi_malloc(layout.size()).cast(),
                false => mi_malloc_aligned(layout.size(), layout.align()).cast(),
            }
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe {
            if let Some(heap) = heap() {
                return mi_heap_zalloc_aligned(heap, layout.size(), layout.align()).cast();
            }
            match is_usual(layout) {
                true => mi_zalloc(layout.size()).cast(),
                false => mi_zalloc_aligned(layout.size(), layout.align()).cast(),
            }
        }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
        // SAFETY: the caller guarantees that this allocator returned the block.
        unsafe { mi_free(block.cast()) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        unsafe {
            if let Some(heap) = heap() {
                return mi_heap_realloc_aligned(heap, block.cast(), size, layout.align()).cast();
            }
            match layout.align() <= USUAL_ALIGNMENT && layout.align() <= size {
                true => mi_realloc(block.cast(), size).cast(),
                false => mi_realloc_aligned(block.cast(), size, layout.align()).cast(),
            }
        }
    }
}

/// `mi_option_arena_eager_commit` of mimalloc's third version, which the bindings do not name.
const ARENA_EAGER_COMMIT: mi_option_t = 4;

/// Memory is committed page by page, not per arena: the kernel would back a whole arena with huge
/// pages, and an idle server would use twice the memory. The first allocation reserves an arena
/// before `main`; therefore this is an init function, which the loader calls earlier.
#[used]
// SAFETY: the section holds pointers to functions of this type, and this one allocates nothing.
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = {
    extern "C" fn commit_as_used() {
        // SAFETY: mimalloc's options may be set at any time before they are read, from one thread.
        unsafe { mi_option_set(ARENA_EAGER_COMMIT, 0) }
    }
    commit_as_used
};

#[cfg(test)]
mod tests {
    use super::*;

    #[global_allocator]
    static ALLOCATOR: Allocator = Allocator;

    #[test]
    fn blocks_are_aligned_at_first_and_when_they_grow() {
        for alignment in [1, 2, 4, 8, 16, 32, 4096] {
            for size in (1..200).chain([1000, 5000, 70_000]) {
                let layout = Layout::from_size_align(size, alignment).unwrap();
                // SAFETY: the blocks are used within their layouts and freed once.
                unsafe {
                    let zeroed = ALLOCATOR.alloc_zeroed(layout);
                    let block = ALLOCATOR.alloc(layout);
                    assert!((zeroed.addr() | block.addr()).is_multiple_of(alignment));
                    assert!((0..size).all(|at| *zeroed.add(at) == 0));
                    block.write_bytes(7, size);
                    let longer = ALLOCATOR.realloc(block, layout, size * 3);
                    assert!(longer.addr().is_multiple_of(alignment));
                    assert!((0..size).all(|at| *longer.add(at) == 7));
                    let grown = Layout::from_size_align(size * 3, alignment).unwrap();
                    ALLOCATOR.dealloc(longer, grown);
                    ALLOCATOR.dealloc(zeroed, layout);
                }
            }
        }
    }

    #[test]
    fn what_is_allocated_apart_is_used_grown_and_freed_anywhere() {
        let make = |seed: usize| -> Vec<String> {
            let text = |n: usize| "x".repeat((n * seed) % 3000);
            apart(|| (0..500).map(text).collect())
        };
        let threads: Vec<_> = (1..5)
            .map(|seed| std::thread::spawn(move || (seed, make(seed))))
            .collect();
        for thread in threads {
            let (seed, mut texts) = thread.join().unwrap();
            texts.iter_mut().for_each(|text| text.push_str("more"));
            for (n, text) in texts.iter().enumerate() {
                assert_eq!(text.len(), (n * seed) % 3000 + 4);
            }
        }
        assert!(std::panic::catch_unwind(|| apart(|| panic!("on purpose"))).is_err());
        assert!(!IS_APART.get());
    }

    #[test]
    fn the_option_is_set_before_the_first_allocation() {
        // SAFETY: reading an option has no other effect.
        let value = unsafe { libmimalloc_sys::mi_option_get(ARENA_EAGER_COMMIT) };
        assert_eq!(value, 0);
    }
}
