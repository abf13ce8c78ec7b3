//! A log file with rotation: a full `audit.log` is renamed to `audit-2026-01-02T03-04-05.678.log`,
//! and the oldest rotated files are removed.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use jiff::{Timestamp, ToSpan};
use stdx::Clock;

use super::Config;

const MEGABYTE: u64 = 1 << 20;
const STAMP: &str = "%Y-%m-%dT%H-%M-%S%.3f";

pub(super) struct Rotating {
    path: PathBuf,
    max_size: u64,
    max_backups: usize,
    max_age: u64,
    clock: Arc<dyn Clock>,
    /// `None`: the standard output.
    file: Option<File>,
    size: u64,
}

impl Rotating {
    pub(super) fn open(config: &Config, clock: Arc<dyn Clock>) -> io::Result<Self> {
        let mut log = Self {
            path: config.log.clone(),
            max_size: if config.max_size == 0 {
                100
            } else {
                config.max_size
            } * MEGABYTE,
            max_backups: config.max_backups,
            max_age: config.max_age,
            clock,
            file: None,
            size: 0,
        };
        if log.path != Path::new("-") {
            if let Some(directory) = log.path.parent() {
                fs::create_dir_all(directory)?;
            }
            log.reopen()?;
        }
        Ok(log)
    }

    fn reopen(&mut self) -> io::Result<()> {
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&self.path)?;
        self.size = file.metadata()?.len();
        self.file = Some(file);
        Ok(())
    }

    /// Writes one line whole; a line never spans two files.
    pub(super) fn write(&mut self, line: &[u8]) -> io::Result<()> {
        if self.file.is_none() {
            return io::stdout().lock().write_all(line);
        }
        if self.size > 0 && self.size + line.len() as u64 > self.max_size {
            self.set_aside()?;
        }
        if let Some(file) = &mut self.file {
            file.write_all(line)?;
            self.size += line.len() as u64;
        }
        Ok(())
    }

    fn set_aside(&mut self) -> io::Result<()> {
        let (stem, ending) = self.names();
        let now = self.clock.now();
        let stamp = now.strftime(STAMP);
        let aside = self.path.with_file_name(format!("{stem}-{stamp}{ending}"));
        fs::rename(&self.path, aside)?;
        self.reopen()?;
        self.forget(now);
        Ok(())
    }

    /// The file name split into stem and extension: `audit` and `.log`.
    fn names(&self) -> (String, String) {
        let part = |part: Option<&std::ffi::OsStr>| {
            part.unwrap_or_default().to_string_lossy().into_owned()
        };
        let ending = match part(self.path.extension()) {
            none if none.is_empty() => none,
            ending => format!(".{ending}"),
        };
        (part(self.path.file_stem()), ending)
    }

    /// Removes rotated files that are too old or too many. A removal that fails is retried at the
    /// next rotation.
    fn forget(&self, now: Timestamp) {
        let mut kept = self.aside();
        kept.sort();
        kept.reverse();
        for (index, (at, path)) in kept.iter().enumerate() {
            let many = self.max_backups > 0 && index >= self.max_backups;
            let hours = i64::try_from(self.max_age)
                .unwrap_or(i64::MAX / 24)
                .saturating_mul(24);
            let limit = now.checked_sub(hours.hours()).unwrap_or(Timestamp::MIN);
            let old = self.max_age > 0 && *at < limit;
            if (many || old)
                && let Err(error) = fs::remove_file(path)
            {
                tracing::warn!(path = %path.display(), %error, "cannot remove old audit log");
            }
        }
    }

    fn aside(&self) -> Vec<(Timestamp, PathBuf)> {
        let (stem, ending) = self.names();
        let directory = self
            .path
            .parent()
            .filter(|path| !path.as_os_str().is_empty());
        let entries = fs::read_dir(directory.unwrap_or(Path::new(".")));
        let of = |name: &str| {
            let stamp = name.strip_prefix(&stem)?.strip_prefix('-')?;
            let stamp = stamp.strip_suffix(&ending)?;
            let civil = jiff::civil::DateTime::strptime(STAMP, stamp).ok()?;
            Some(civil.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp())
        };
        entries
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| Some((of(&entry.file_name().to_string_lossy())?, entry.path())))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::PermissionsExt, time::Duration};

    use stdx::FakeClock;

    use super::*;

    #[test]
    fn a_full_log_is_set_aside_and_the_oldest_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let clock = FakeClock::at("2026-06-01T00:00:00Z".parse().unwrap());
        let config = Config {
            policy: PathBuf::new(),
            log: directory.path().join("logs/audit.log"),
            max_size: 1,
            max_backups: 2,
            max_age: 3,
        };
        let mut log = Rotating::open(&config, Arc::new(clock.clone())).unwrap();
        let line = vec![b'x'; 600 * 1024];
        let files = || {
            let entries = fs::read_dir(directory.path().join("logs")).unwrap();
            let names = entries.map(|e| e.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<String> = names.collect();
            names.sort();
            names
        };
        for _ in 0..4 {
            log.write(&line).unwrap();
            clock.advance(Duration::from_secs(3600));
        }
        // Lines of more than half a megabyte: each fills a file of its own; two rotated files are
        // kept.
        let two = [
            "audit-2026-06-01T02-00-00.000.log",
            "audit-2026-06-01T03-00-00.000.log",
            "audit.log",
        ];
        assert_eq!(files(), two);
        let mode = fs::metadata(&config.log).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(log);
        // After a restart the log is continued, and old files are removed by age.
        let mut log = Rotating::open(&config, Arc::new(clock.clone())).unwrap();
        clock.advance(Duration::from_secs(4 * 86400));
        log.write(&line).unwrap();
        assert_eq!(files(), ["audit-2026-06-05T04-00-00.000.log", "audit.log"]);
    }
}
