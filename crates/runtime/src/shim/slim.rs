//! Releases memory that was only needed for a moment. A shim runs from a large program, and every
//! part of it that was ever used counts as resident; unmodified pages can be dropped and are read
//! from the sealed copy again when needed.

use std::{fs, io};

/// Drops the program's unmodified pages.
pub(super) fn slim() -> io::Result<()> {
    for (start, length) in clean(&fs::read_to_string("/proc/self/smaps")?) {
        // SAFETY: the range is a mapping of our program without modified pages: what is read there
        // again comes from the same sealed file.
        unsafe { libc::madvise(start as *mut libc::c_void, length, libc::MADV_DONTNEED) };
    }
    Ok(())
}

/// Read-only mappings of the program without modified pages.
fn clean(smaps: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut current = None;
    for line in smaps.lines() {
        if let Some(range) = program_range(line) {
            current = Some(range);
        } else if line.contains("-")
            && line
                .split(' ')
                .next()
                .is_some_and(|word| word.contains('-'))
        {
            current = None;
        } else if let Some(anonymous) = line.strip_prefix("Anonymous:")
            && anonymous.trim() == "0 kB"
        {
            found.extend(current.take());
        }
    }
    found
}

fn program_range(line: &str) -> Option<(usize, usize)> {
    let mut words = line.split_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let permissions = words.next()?;
    let is_program = line.contains("/memfd:mainstay")
        && permissions.starts_with('r')
        && !permissions.contains('w');
    let hex = |text| usize::from_str_radix(text, 16).ok();
    let (start, end) = (hex(start)?, hex(end)?);
    is_program.then(|| (start, end - start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unwritten_pages_of_the_program_are_dropped() {
        let smaps = "00400000-00500000 r--p 00000000 00:01 7 /memfd:mainstay (deleted)\n\
                     Rss: 10 kB\nAnonymous:             0 kB\nVmFlags: rd mr\n\
                     00500000-00900000 r-xp 00100000 00:01 7 /memfd:mainstay (deleted)\n\
                     Anonymous:             0 kB\n\
                     00900000-00901000 r--p 00500000 00:01 7 /memfd:mainstay (deleted)\n\
                     Anonymous:             4 kB\n\
                     00901000-00902000 rw-p 00501000 00:01 7 /memfd:mainstay (deleted)\n\
                     Anonymous:             0 kB\n\
                     7f000000-7f001000 r-xp 00000000 00:00 0 [vdso]\nAnonymous:   0 kB\n";
        assert_eq!(
            clean(smaps),
            [(0x40_0000, 0x10_0000), (0x50_0000, 0x40_0000)]
        );
    }
}
