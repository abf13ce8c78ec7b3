//! Reads a log to its end and, if asked, follows it; inotify reports when it grows.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    os::unix::fs::MetadataExt,
    path::Path,
};

use bytes::Bytes;
use tokio::sync::mpsc;

use super::{
    LogFile,
    parse::{Options, Printer},
    tail_offset,
};
use crate::inotify::Watch;

const CHUNK: usize = 64 * 1024;

/// How far from its end the last lines of a log are searched.
const MOST_SEARCHED: u64 = 16 << 30;

/// The longest record that is shown. Runtimes split lines far below it, but a pod with the log directory as a volume may
/// write anything.
const MAX_RECORD: usize = 1 << 20;

/// Sends a log to `reader`. With `follow`, ends once `running` returns false (the container has
/// ended) and everything written until then was sent; `running` waits for changes.
pub(crate) async fn send<F>(
    log: LogFile,
    options: Options,
    reader: mpsc::Sender<Bytes>,
    mut running: impl FnMut() -> F,
) -> std::io::Result<()>
where
    F: Future<Output = bool>,
{
    let (opened, asked) = (log.clone(), options.clone());
    let tail = tokio::task::spawn_blocking(move || Tail::open(&opened, &asked)).await;
    let mut tail = tail.map_err(std::io::Error::other)??;
    // Watch before the first read, so that no write is missed in between.
    let watch = if options.follow {
        Some(Watch::new(
            log.path().parent().unwrap_or(Path::new("/")),
            true,
        )?)
    } else {
        None
    };
    let mut printer = Printer::new(options);
    let mut is_running = true;
    loop {
        // Check before the last read: everything written before the rotation is in the old file.
        let rotated = tail.was_rotated(&log);
        while let Some(chunk) = tail.next(&mut printer)? {
            let sent = match chunk.is_empty() {
                // Other tasks run meanwhile, however much there is that is not shown.
                true => {
                    tokio::task::yield_now().await;
                    !reader.is_closed()
                }
                false => reader.send(chunk.into()).await.is_ok(),
            };
            if printer.is_full() || !sent {
                return Ok(());
            }
        }
        if rotated {
            tail.reopen(&log)?;
            continue;
        }
        if tail.was_rotated(&log) {
            continue;
        }
        let Some(watch) = watch.as_ref().filter(|_| is_running) else {
            return Ok(());
        };
        tokio::select! {
            changed = watch.changed() => changed?,
            still = running() => is_running = still,
            () = reader.closed() => return Ok(()),
        }
    }
}

/// The open file and the incomplete last line.
struct Tail {
    file: File,
    rest: Vec<u8>,
    /// Whether the beginning of the current line was dropped, since it is too long.
    skips: bool,
}

impl Tail {
    fn open(log: &LogFile, options: &Options) -> std::io::Result<Self> {
        let mut file = log.open()?;
        let start = match options.tail_lines {
            Some(lines) => tail_offset(&mut file, lines, MOST_SEARCHED)?,
            None => 0,
        };
        file.seek(SeekFrom::Start(start))?;
        Ok(Self {
            file,
            rest: Vec::new(),
            skips: false,
        })
    }

    /// The formatted lines of the next chunk; `None` at the current end of the file.
    fn next(&mut self, printer: &mut Printer) -> std::io::Result<Option<Vec<u8>>> {
        let mut chunk = vec![0; CHUNK];
        let count = self.file.read(&mut chunk)?;
        if count == 0 {
            // The runtime truncates a line that a full disk cut short. So an incomplete line is
            // read again from its start.
            let begun = std::mem::take(&mut self.rest).len() as i64;
            self.file.seek(SeekFrom::Current(-begun))?;
            return Ok(None);
        }
        self.rest.extend_from_slice(&chunk[..count]);
        let complete = self
            .rest
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |at| at + 1);
        let lines: Vec<u8> = self.rest.drain(..complete).collect();
        let mut lines = lines.as_slice();
        if self.skips && complete > 0 {
            let end = lines.iter().position(|byte| *byte == b'\n');
            lines = &lines[end.map_or(0, |end| end + 1)..];
            self.skips = false;
        }
        if self.rest.len() > MAX_RECORD {
            self.rest.clear();
            self.skips = true;
        }
        let mut out = Vec::with_capacity(lines.len());
        for line in lines
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
        {
            if printer.is_full() {
                break;
            }
            printer.print(line, &mut out);
        }
        Ok(Some(out))
    }

    fn was_rotated(&self, log: &LogFile) -> bool {
        let own = self.file.metadata().map(|meta| meta.ino());
        let named = std::fs::symlink_metadata(log.path()).map(|meta| meta.ino());
        matches!((own, named), (Ok(own), Ok(named)) if own != named)
    }

    fn reopen(&mut self, log: &LogFile) -> std::io::Result<()> {
        *self = Self {
            file: log.open()?,
            rest: Vec::new(),
            skips: false,
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use tokio::sync::watch;

    use super::*;

    #[test]
    fn a_part_of_a_line_that_is_cut_off_again_is_never_seen() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        let whole = "2026-01-01T00:00:00Z stdout F one\n";
        std::fs::write(&path, format!("{whole}2026-01-01T00:00:01Z stdout F lo")).unwrap();
        let mut tail = Tail::open(&LogFile::new(dir.path(), &path), &Options::default()).unwrap();
        let mut printer = Printer::new(Options::default());
        while tail.next(&mut printer).unwrap().is_some() {}
        let mut file = File::options().append(true).open(&path).unwrap();
        file.set_len(whole.len() as u64).unwrap();
        writeln!(file, "2026-01-01T00:00:01Z stdout F a longer line").unwrap();
        let read = tail.next(&mut printer).unwrap().unwrap();
        assert_eq!(String::from_utf8(read).unwrap(), "a longer line\n");
    }

    #[test]
    fn a_line_that_never_ends_takes_no_memory_and_hides_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        let mut file = File::create(&path).unwrap();
        writeln!(file, "2026-01-01T00:00:00Z stdout F one").unwrap();
        let end = file.seek(SeekFrom::Current(64 << 20)).unwrap();
        writeln!(file, "\n2026-01-01T00:00:01Z stdout F two").unwrap();
        let log = LogFile::new(dir.path(), &path);
        let mut tail = Tail::open(&log, &Options::default()).unwrap();
        let mut printer = Printer::new(Options::default());
        let mut shown = Vec::new();
        while let Some(chunk) = tail.next(&mut printer).unwrap() {
            assert!(tail.rest.len() <= MAX_RECORD + CHUNK);
            shown.extend(chunk);
        }
        assert_eq!(String::from_utf8(shown).unwrap(), "one\ntwo\n");
        file.set_len(end).unwrap();
        let last = super::super::last_lines(&log, 80, 2048);
        assert!(last.len() <= 2048);
    }

    #[tokio::test]
    async fn a_followed_log_is_read_as_it_grows_through_rotation_until_the_container_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        std::fs::write(
            &path,
            "2026-01-01T00:00:00Z stdout F old\n2026-01-01T00:00:00Z stdout F one\n",
        )
        .unwrap();
        let (sender, mut receiver) = mpsc::channel(8);
        let (end, ended) = watch::channel(true);
        let options = Options {
            follow: true,
            tail_lines: Some(1),
            ..Default::default()
        };
        let log = LogFile::new(dir.path(), &path);
        let following = tokio::spawn(send(log, options, sender, move || {
            let mut ended = ended.clone();
            async move { ended.wait_for(|running| !running).await.is_err() }
        }));
        assert_eq!(receiver.recv().await.unwrap(), "one\n");
        let mut file = File::options().append(true).open(&path).unwrap();
        writeln!(file, "2026-01-01T00:00:01Z stdout F two").unwrap();
        assert_eq!(receiver.recv().await.unwrap(), "two\n");
        std::fs::rename(&path, dir.path().join("0.log.old")).unwrap();
        std::fs::write(&path, "2026-01-01T00:00:02Z stdout F three\n").unwrap();
        assert_eq!(receiver.recv().await.unwrap(), "three\n");
        end.send_replace(false);
        assert_eq!(receiver.recv().await, None);
        following.await.unwrap().unwrap();
    }
}
