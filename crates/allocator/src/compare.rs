//! Whether bytes are equal, for the whole program: nothing equals nothing without a look.
//!
//! Rust asks libc's `bcmp` also about two slices that are empty, with addresses that are none. On processors with
//! AVX-512, libc looks there with a masked load, and a load from where no memory is takes the processor more than
//! a hundred nanoseconds, although nothing is loaded. Texts that are empty on both sides are compared all the time:
//! the name of the core group is one.

use std::ffi::{c_int, c_void};

unsafe extern "C" {
    fn memcmp(one: *const c_void, other: *const c_void, length: usize) -> c_int;
}

/// Takes the place of libc's function of this name, which is a weak symbol.
///
/// # Safety
/// As for `memcmp`: both have this many bytes.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) unsafe extern "C" fn bcmp(
    one: *const c_void,
    other: *const c_void,
    length: usize,
) -> c_int {
    if length == 0 {
        return 0;
    }
    // SAFETY: as the caller says.
    unsafe { memcmp(one, other, length) }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    #[test]
    fn equality_is_that_of_the_bytes() {
        let text =
            "a text that is longer than the widest register of any processor, to be sure of that";
        for length in 0..text.len() {
            let (one, other) = (text[..length].to_owned(), text[..length].to_owned());
            assert!(black_box(&one) == black_box(&other));
            if length > 0 {
                let changed = format!("{}?", &text[..length - 1]);
                assert!(black_box(&one) != black_box(&changed));
            }
        }
    }
}
