//! Lines of a description: labels on the left, values aligned beside them, nested by indentation.

use jiff::Timestamp;
use serde_json::Value;

/// A description that grows.
#[derive(Debug, Default)]
pub struct Text {
    lines: Vec<(usize, String, String)>,
}

impl Text {
    /// `Name:  value`; nothing is `<none>`.
    pub fn field(&mut self, name: &str, value: &Value) {
        self.at(0, name, &plain(value));
    }

    /// The same, indented.
    pub fn at(&mut self, depth: usize, name: &str, value: &str) {
        self.lines
            .push((depth, format!("{name}:"), value.to_owned()));
    }

    /// A line of its own.
    pub fn line(&mut self, depth: usize, line: &str) {
        self.lines.push((depth, line.to_owned(), String::new()));
    }

    /// A map, one pair a line.
    pub fn map(&mut self, name: &str, value: &Value) {
        let mut pairs: Vec<String> = value
            .as_object()
            .into_iter()
            .flatten()
            .map(|(key, value)| {
                format!(
                    "{key}{}{}",
                    if name == "Labels" { "=" } else { ": " },
                    plain(value)
                )
            })
            .collect();
        pairs.sort();
        let mut pairs = pairs.into_iter();
        self.at(0, name, &pairs.next().unwrap_or_else(|| "<none>".into()));
        for pair in pairs {
            self.lines.push((0, String::new(), pair));
        }
    }

    /// The text, values aligned within each depth.
    pub fn finish(&self) -> String {
        let mut out = String::new();
        for (depth, name, value) in &self.lines {
            let width = self.width(*depth);
            let indent = "  ".repeat(*depth);
            let line = format!("{indent}{name:<width$}  {value}");
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }

    fn width(&self, depth: usize) -> usize {
        let labels = self
            .lines
            .iter()
            .filter(|(d, _, value)| *d == depth && !value.is_empty());
        labels
            .map(|(_, name, _)| name.len())
            .max()
            .unwrap_or(0)
            .min(28)
    }
}

/// A value in one line.
pub fn plain(value: &Value) -> String {
    match value {
        Value::Null => "<none>".into(),
        Value::String(text) if text.is_empty() => "<none>".into(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// How long ago, in kubectl's short form.
pub fn age(at: Timestamp, now: Timestamp) -> String {
    let seconds = now.as_second() - at.as_second();
    match seconds {
        ..0 => "0s".into(),
        0..120 => format!("{seconds}s"),
        120..600 if seconds % 60 != 0 => format!("{}m{}s", seconds / 60, seconds % 60),
        120..10800 => format!("{}m", seconds / 60),
        10800..28800 if seconds % 3600 >= 60 => {
            format!("{}h{}m", seconds / 3600, seconds % 3600 / 60)
        }
        10800..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_short() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        for (seconds, text) in [
            (5, "5s"),
            (119, "119s"),
            (125, "2m5s"),
            (601, "10m"),
            (10_860, "3h1m"),
            (200_000, "2d"),
        ] {
            assert_eq!(
                age(Timestamp::from_second(1_000_000 - seconds).unwrap(), now),
                text
            );
        }
    }
}
