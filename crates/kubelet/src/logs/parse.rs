//! One record of a log: `TIME STREAM TAG content`.

use jiff::Timestamp;

/// Which output a record came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

/// A log record, borrowed from its line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Record<'a> {
    /// The timestamp as written.
    pub time: &'a str,
    pub stream: Stream,
    /// The line continues in the next record.
    pub is_partial: bool,
    pub content: &'a [u8],
}

/// Parses a line without its newline; `None` if it is not a record.
pub(crate) fn record(line: &[u8]) -> Option<Record<'_>> {
    let mut parts = line.splitn(4, |byte| *byte == b' ');
    let time = std::str::from_utf8(parts.next()?).ok()?;
    let stream = match parts.next()? {
        b"stdout" => Stream::Stdout,
        b"stderr" => Stream::Stderr,
        _ => return None,
    };
    let is_partial = parts
        .next()?
        .split(|byte| *byte == b':')
        .any(|tag| tag == b"P");
    Some(Record {
        time,
        stream,
        is_partial,
        content: parts.next()?,
    })
}

impl Record<'_> {
    /// The parsed timestamp.
    pub(crate) fn at(&self) -> Option<Timestamp> {
        self.time.parse().ok()
    }
}

/// The options of a log request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    pub follow: bool,
    pub tail_lines: Option<usize>,
    pub since: Option<Timestamp>,
    pub timestamps: bool,
    pub limit_bytes: Option<usize>,
    pub stream: Option<Stream>,
}

/// Formats records for a client within its limits.
pub(crate) struct Printer {
    options: Options,
    left: Option<usize>,
    /// The next content begins a line.
    at_line_start: bool,
}

impl Printer {
    pub(crate) fn new(options: Options) -> Self {
        Self {
            left: options.limit_bytes,
            options,
            at_line_start: true,
        }
    }

    /// Whether the byte limit is reached.
    pub(crate) fn is_full(&self) -> bool {
        self.left == Some(0)
    }

    /// Appends the formatted record of a line.
    pub(crate) fn print(&mut self, line: &[u8], out: &mut Vec<u8>) {
        let Some(record) = record(line) else { return };
        if self
            .options
            .stream
            .is_some_and(|wanted| wanted != record.stream)
        {
            return;
        }
        if let (Some(since), Some(at)) = (self.options.since, record.at())
            && at < since
        {
            return;
        }
        let begin = out.len();
        if self.options.timestamps && self.at_line_start {
            out.extend_from_slice(record.time.as_bytes());
            out.push(b' ');
        }
        out.extend_from_slice(record.content);
        self.at_line_start = !record.is_partial;
        if self.at_line_start {
            out.push(b'\n');
        }
        if let Some(left) = &mut self.left {
            let taken = (out.len() - begin).min(*left);
            out.truncate(begin + taken);
            *left -= taken;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn print(options: Options) -> String {
        let lines = [
            "2026-01-01T00:00:01Z stdout F one",
            "2026-01-01T00:00:02Z stderr P two-",
            "2026-01-01T00:00:03Z stderr F half",
            "not a record",
            "2026-01-01T00:00:04Z stdout F ",
        ];
        let mut printer = Printer::new(options);
        let mut out = Vec::new();
        for line in lines {
            printer.print(line.as_bytes(), &mut out);
        }
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn log_options_select_the_printed_lines() {
        assert_eq!(print(Options::default()), "one\ntwo-half\n\n");
        let stamped = Options {
            timestamps: true,
            ..Default::default()
        };
        assert_eq!(
            print(stamped),
            "2026-01-01T00:00:01Z one\n2026-01-01T00:00:02Z two-half\n2026-01-01T00:00:04Z \n"
        );
        let errors = Options {
            stream: Some(Stream::Stderr),
            ..Default::default()
        };
        assert_eq!(print(errors), "two-half\n");
        let late = Options {
            since: "2026-01-01T00:00:04Z".parse().ok(),
            ..Default::default()
        };
        assert_eq!(print(late), "\n");
        let short = Options {
            limit_bytes: Some(6),
            ..Default::default()
        };
        assert_eq!(print(short), "one\ntw");
    }
}
