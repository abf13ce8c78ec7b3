//! Containers' logs as the runtime writes them: one line per record with time, stream and tag.
//!
//! Pods with a hostPath may be able to write to the log directory. So no link in it is followed, and
//! nothing but regular files is opened.

mod confined;
pub(crate) mod follow;
pub(crate) mod links;
pub(crate) mod parse;

pub(crate) use confined::LogFile;

use std::{
    fs::File,
    io::{BufRead, BufReader, Read, Seek, SeekFrom},
};

/// How much of a log is read for the message of a container that has ended.
const MOST_FOR_MESSAGE: u64 = 4 << 20;

/// The text of the last lines, at most `bytes` of it. Empty without a log.
pub(crate) fn last_lines(log: &LogFile, lines: usize, bytes: usize) -> String {
    let Ok(mut file) = log.open() else {
        return String::new();
    };
    let Ok(start) = tail_offset(&mut file, lines, MOST_FOR_MESSAGE) else {
        return String::new();
    };
    if file.seek(SeekFrom::Start(start)).is_err() {
        return String::new();
    }
    let mut text = Vec::new();
    let file = BufReader::new(file).take(MOST_FOR_MESSAGE);
    for line in file.split(b'\n').map_while(Result::ok) {
        if let Some(record) = parse::record(&line) {
            text.extend_from_slice(record.content);
            if !record.is_partial {
                text.push(b'\n');
            }
        }
    }
    let from = text.len().saturating_sub(bytes);
    String::from_utf8_lossy(&text[from..]).into_owned()
}

/// The offset of the last `lines` records, as far as they are within the last `most` bytes.
pub(crate) fn tail_offset(file: &mut File, lines: usize, most: u64) -> std::io::Result<u64> {
    const BLOCK: u64 = 64 * 1024;
    let size = file.seek(SeekFrom::End(0))?;
    if lines == 0 {
        return Ok(size);
    }
    let least = size.saturating_sub(most);
    let (mut end, mut newlines) = (size, 0);
    while end > least {
        let begin = end.saturating_sub(BLOCK).max(least);
        file.seek(SeekFrom::Start(begin))?;
        let mut block = vec![0; usize::try_from(end - begin).unwrap_or(0)];
        file.read_exact(&mut block)?;
        for (at, _) in block
            .iter()
            .enumerate()
            .rev()
            .filter(|(_, byte)| **byte == b'\n')
        {
            // The newline at the very end closes the last record.
            if begin + at as u64 + 1 == size {
                continue;
            }
            newlines += 1;
            if newlines == lines {
                return Ok(begin + at as u64 + 1);
            }
        }
        end = begin;
    }
    Ok(least)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(lines: &[&str]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text: String = lines
            .iter()
            .map(|line| format!("2026-01-01T00:00:00Z stdout F {line}\n"))
            .collect();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    #[test]
    fn the_last_lines_are_found_from_the_end() {
        let file = log(&["one", "two", "three"]);
        let dir = file.path().parent().unwrap();
        let last = |lines, bytes| last_lines(&LogFile::new(dir, file.path()), lines, bytes);
        assert_eq!(last(2, 1000), "two\nthree\n");
        assert_eq!(last(9, 1000), "one\ntwo\nthree\n");
        assert_eq!(last(1, 4), "ree\n");
        assert_eq!(last_lines(&LogFile::new(dir, &dir.join("nope")), 1, 4), "");
    }

    #[test]
    fn a_tail_of_nothing_begins_at_the_end() {
        let file = log(&["one"]);
        let mut open = File::open(file.path()).unwrap();
        let size = open.metadata().unwrap().len();
        assert_eq!(tail_offset(&mut open, 0, size).unwrap(), size);
        assert_eq!(tail_offset(&mut open, 2, size).unwrap(), 0);
        assert_eq!(tail_offset(&mut open, 2, 3).unwrap(), size - 3);
    }
}
