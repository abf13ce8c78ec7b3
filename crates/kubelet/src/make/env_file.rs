//! Variables from a file in one of the pod's volumes: lines `NAME='value'`, where the value is taken
//! literally and may span lines.

use std::{fs::File, io::Read, os::fd::AsRawFd, path::Path};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};

/// The maximum file size.
const MAX_SIZE: u64 = 1 << 20;

/// The text of a file in a volume. Links are resolved within the volume only.
pub fn read(volume: &Path, path: &str) -> std::io::Result<String> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(volume, flags, Mode::empty())?;
    let handle = rustix::fs::openat2(
        &root,
        path.trim_start_matches('/'),
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
    )?;
    // Containers can create pipes and devices in their volumes. Opening a pipe would block the kubelet, and opening a
    // device can have side effects: opening a watchdog arms it.
    let stat = rustix::fs::fstat(&handle)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(std::io::Error::other("not a regular file"));
    }
    let file = File::open(format!("/proc/self/fd/{}", handle.as_raw_fd()))?;
    let mut text = String::new();
    file.take(MAX_SIZE).read_to_string(&mut text)?;
    Ok(text)
}

/// The value of a variable; `None` if the file does not set it. The file must be well-formed up to
/// that line.
pub fn find(text: &str, wanted: &str) -> Result<Option<String>, String> {
    let mut lines = (1..).zip(text.lines());
    while let Some((number, line)) = lines.next() {
        let wrong = |why: &str| {
            Err(format!(
                "invalid environment variable format at line {number}: {why}"
            ))
        };
        let line = line.trim_start_matches([' ', '\t']);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let Some((name, value)) = line.split_once('=') else {
            return wrong("missing '='");
        };
        if name.trim_end_matches([' ', '\t']).is_empty() {
            return wrong("empty variable name");
        }
        if name.ends_with([' ', '\t']) {
            return wrong("whitespace before '=' is not allowed");
        }
        if value.starts_with([' ', '\t']) {
            // As in a shell, the variable is empty.
            if name == wanted {
                return Ok(None);
            }
            continue;
        }
        let Some(mut rest) = value.strip_prefix('\'') else {
            return wrong("value must be enclosed in single quotes");
        };
        let mut value = String::new();
        let after = loop {
            if let Some((end, after)) = rest.split_once('\'') {
                value.push_str(end);
                break after.trim_start_matches([' ', '\t']);
            }
            value.push_str(rest);
            value.push('\n');
            let Some((_, next)) = lines.next() else {
                return wrong("unclosed single quote");
            };
            rest = next;
        };
        if !after.is_empty() && !after.starts_with('#') {
            return wrong("unexpected content after closing quote");
        }
        if name == wanted {
            return Ok(Some(value).filter(|value| !value.is_empty()));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_literal_and_may_span_lines() {
        let text = "# comment\n\n  A='one $B'  # why\nB='two\nlines'\nC= 'x'\nD=''\n";
        let value = |name| find(text, name).unwrap();
        assert_eq!(value("A").as_deref(), Some("one $B"));
        assert_eq!(value("B").as_deref(), Some("two\nlines"));
        for missing in ["C", "D", "E"] {
            assert_eq!(value(missing), None);
        }
        for wrong in ["A", "A =''", "='x'", "A=x", "A='x' y", "A='x"] {
            assert!(find(wrong, "Z").is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_no_file_is_not_even_opened() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("p");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            FileType::Fifo,
            Mode::RUSR | Mode::WUSR,
            0,
        )
        .unwrap();
        let watch = rustix::fs::inotify::init(rustix::fs::inotify::CreateFlags::NONBLOCK).unwrap();
        let opened = rustix::fs::inotify::WatchFlags::OPEN;
        rustix::fs::inotify::add_watch(&watch, &pipe, opened).unwrap();
        let error = read(dir.path(), "p").unwrap_err();
        assert_eq!(error.to_string(), "not a regular file");
        let events = rustix::io::read(&watch, &mut [0; 256]);
        assert_eq!(events, Err(rustix::io::Errno::AGAIN));
    }

    #[test]
    fn a_link_in_the_volume_does_not_lead_out_of_it() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("f"), "A='1'").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("out")).unwrap();
        assert_eq!(read(dir.path(), "f").unwrap(), "A='1'");
        assert!(read(dir.path(), "out").is_err());
        assert!(read(dir.path(), "../../etc/passwd").is_err());
        assert!(read(dir.path(), ".").is_err());
    }
}
