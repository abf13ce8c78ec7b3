//! A container's log file in the CRI format: one record per line of output, with time, stream and
//! whether the line is complete (`F`) or continues in the next record (`P`).

use std::io;

use super::log_file::{LogFile, Target};
use crate::stamp::now;

/// Longer lines are split.
const MAX_LINE: usize = 16 * 1024;

/// Which stream a piece of output came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// The file, and the incomplete last line of each stream.
#[derive(Default)]
pub(super) struct Log {
    file: Option<LogFile>,
    rest: [Vec<u8>; 2],
}

impl Log {
    /// Opens a log to append to; without a target everything is discarded.
    pub(super) fn open(target: Option<Target>) -> io::Result<Self> {
        Ok(Self {
            file: target.map(LogFile::open).transpose()?,
            rest: Default::default(),
        })
    }

    /// Reopens the path after the file was renamed.
    pub(super) fn reopen(&mut self) -> io::Result<()> {
        if let Some(file) = &mut self.file {
            file.reopen()?;
        }
        Ok(())
    }

    /// Writes the lines that are complete by now.
    pub(super) fn write(&mut self, stream: Stream, bytes: &[u8]) {
        let Some(file) = &mut self.file else { return };
        let rest = &mut self.rest[stream as usize];
        rest.extend_from_slice(bytes);
        let mut out = Vec::with_capacity(rest.len() + 128);
        let head = format!("{} {} ", timestamp(now()), name(stream));
        let mut start = 0;
        while start < rest.len() {
            let line = &rest[start..];
            match line
                .iter()
                .take(MAX_LINE + 1)
                .position(|byte| *byte == b'\n')
            {
                Some(end) => {
                    entry(&mut out, &head, b'F', &line[..end]);
                    start += end + 1;
                }
                None if line.len() > MAX_LINE => {
                    entry(&mut out, &head, b'P', &line[..MAX_LINE]);
                    start += MAX_LINE;
                }
                None => break,
            }
        }
        rest.drain(..start);
        put(file, &out);
    }

    /// Writes an incomplete last line as partial, and closes the file.
    pub(super) fn close(&mut self) {
        for stream in [Stream::Stdout, Stream::Stderr] {
            let rest = std::mem::take(&mut self.rest[stream as usize]);
            if let (Some(file), false) = (&mut self.file, rest.is_empty()) {
                let mut out = Vec::new();
                let head = format!("{} {} ", timestamp(now()), name(stream));
                entry(&mut out, &head, b'P', &rest);
                put(file, &out);
            }
        }
        self.file = None;
    }
}

/// A full disk must not block the container: lines that cannot be written are lost.
fn put(file: &mut LogFile, lines: &[u8]) {
    let _ = file.append(lines);
}

fn name(stream: Stream) -> &'static str {
    match stream {
        Stream::Stdout => "stdout",
        Stream::Stderr => "stderr",
    }
}

fn entry(out: &mut Vec<u8>, head: &str, tag: u8, line: &[u8]) {
    out.extend_from_slice(head.as_bytes());
    out.extend_from_slice(&[tag, b' ']);
    out.extend_from_slice(line);
    out.push(b'\n');
}

/// RFC 3339 in UTC with nanoseconds.
fn timestamp(nanos: i64) -> String {
    match jiff::Timestamp::from_nanosecond(i128::from(nanos)) {
        Ok(time) => format!("{time:.9}"),
        Err(_) => "1970-01-01T00:00:00.000000000Z".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logged(write: impl FnOnce(&mut Log)) -> Vec<(String, String)> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pod/0.log");
        std::fs::create_dir(dir.path().join("pod")).unwrap();
        let mut log = Log::open(Some(Target::unlimited(&path))).unwrap();
        write(&mut log);
        log.close();
        let text = std::fs::read_to_string(path).unwrap();
        let split = |line: &str| {
            let (time, rest) = line.split_once(' ').unwrap();
            assert_eq!(time.len(), "2016-10-06T00:17:09.669794202Z".len());
            let (tags, text) = (rest.get(..8).unwrap(), rest.get(9..).unwrap());
            (tags.to_owned(), text.to_owned())
        };
        text.lines().map(split).collect()
    }

    #[test]
    fn lines_of_both_streams_are_kept_apart_until_they_are_whole() {
        let lines = logged(|log| {
            log.write(Stream::Stdout, b"one\ntw");
            log.write(Stream::Stderr, b"oops\n");
            log.write(Stream::Stdout, b"o\n\nthree");
        });
        let expected = [
            ("stdout F", "one"),
            ("stderr F", "oops"),
            ("stdout F", "two"),
            ("stdout F", ""),
            ("stdout P", "three"),
        ];
        assert_eq!(
            lines,
            expected.map(|(tags, text)| (tags.to_owned(), text.to_owned()))
        );
    }

    #[test]
    fn a_long_line_is_cut_into_parts() {
        let lines = logged(|log| {
            log.write(
                Stream::Stdout,
                &[b"x".repeat(MAX_LINE + 5), b"\n".to_vec()].concat(),
            )
        });
        assert_eq!(lines[0], ("stdout P".to_owned(), "x".repeat(MAX_LINE)));
        assert_eq!(lines[1], ("stdout F".to_owned(), "xxxxx".to_owned()));
    }

    #[test]
    fn a_reopened_log_goes_to_the_new_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        let mut log = Log::open(Some(Target::unlimited(&path))).unwrap();
        log.write(Stream::Stdout, b"old\n");
        std::fs::rename(&path, dir.path().join("0.log.1")).unwrap();
        log.write(Stream::Stdout, b"still old\n");
        log.reopen().unwrap();
        log.write(Stream::Stdout, b"new\n");
        assert!(
            std::fs::read_to_string(&path)
                .unwrap()
                .ends_with("stdout F new\n")
        );
        let old = std::fs::read_to_string(dir.path().join("0.log.1")).unwrap();
        assert!(old.ends_with("stdout F still old\n"));
    }
}
