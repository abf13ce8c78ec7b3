//! The allocator of the binary and of the benchmarks that represent it: jemalloc, with few arenas and early return of
//! unused memory to the kernel (decision 24).
//!
//! Declared by a program as follows:
//!
//! ```
//! #[global_allocator]
//! static ALLOCATOR: allocator::Allocator = allocator::Allocator;
//! ```

use std::{
    ffi::{CStr, c_char, c_int},
    ptr,
};

pub use tikv_jemallocator::Jemalloc as Allocator;

/// jemalloc's options. Threads share four arenas, so that a burst of blocking threads does not leave a partly used arena
/// for each of them. Unused pages go back to the kernel after a second.
const OPTIONS: &CStr =
    c"narenas:4,dirty_decay_ms:1000,muzzy_decay_ms:0,max_background_threads:1,abort_conf:false";

/// The type of jemalloc's variable.
#[repr(transparent)]
struct Options(*const c_char);

// SAFETY: the pointer is to a constant.
unsafe impl Sync for Options {}

/// jemalloc reads its options from this symbol before the first allocation.
#[used]
// SAFETY: jemalloc declares a weak symbol of this name and type, which this one replaces.
#[unsafe(export_name = "_rjem_malloc_conf")]
static MALLOC_CONF: Options = Options(OPTIONS.as_ptr());

/// Starts a thread that returns unused memory to the kernel. Without it only threads that allocate do this, and an idle
/// process keeps what a burst has left. Not for helper processes, which must have one thread.
pub fn purge_in_background() {
    let mut enabled = true;
    // SAFETY: the option is a boolean, which is only read during the call.
    let result: c_int = unsafe {
        tikv_jemalloc_sys::mallctl(
            c"background_thread".as_ptr(),
            ptr::null_mut(),
            ptr::null_mut(),
            (&raw mut enabled).cast(),
            size_of::<bool>(),
        )
    };
    // An error means that the system has no thread for it; then allocating threads still return memory.
    let _ = result;
}

#[cfg(test)]
mod tests {
    use std::alloc::{GlobalAlloc, Layout};

    use super::*;

    #[global_allocator]
    static ALLOCATOR: Allocator = Allocator;

    /// The value of one of jemalloc's options.
    fn option<T: Default>(name: &CStr) -> T {
        let (mut value, mut size) = (T::default(), size_of::<T>());
        // SAFETY: the value has the size that is passed, and jemalloc checks it.
        let result = unsafe {
            tikv_jemalloc_sys::mallctl(
                name.as_ptr(),
                (&raw mut value).cast(),
                &raw mut size,
                ptr::null_mut(),
                0,
            )
        };
        assert_eq!(result, 0, "{name:?}");
        value
    }

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
    fn the_options_are_in_effect() {
        assert_eq!(option::<u32>(c"opt.narenas"), 4);
        assert_eq!(option::<isize>(c"opt.dirty_decay_ms"), 1000);
    }

    #[test]
    fn memory_is_purged_in_the_background_once_asked_for() {
        assert!(!option::<bool>(c"opt.background_thread"));
        purge_in_background();
        assert!(option::<bool>(c"background_thread"));
    }
}
