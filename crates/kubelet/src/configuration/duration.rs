//! Durations as Go writes them: `1h30m`, `500ms`.

use std::{fmt, str::FromStr, time::Duration};

use machinery::duration;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A duration that is read and written in Go's form.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GoDuration(pub Duration);

impl GoDuration {
    /// Whole seconds.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }
}

impl FromStr for GoDuration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read = duration::positive(text).map(Self);
        read.map_err(|_| format!("{text:?} is not a duration such as 1m30s"))
    }
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&duration::text(self.0))
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        String::deserialize(input)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, output: S) -> Result<S::Ok, S::Error> {
        output.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written_as_go_does() {
        for (text, millis, written) in [
            ("1h30m", 5_400_000, "1h30m0s"),
            ("5m", 300_000, "5m0s"),
            ("10s", 10_000, "10s"),
            ("1.5s", 1500, "1.5s"),
            ("500ms", 500, "500ms"),
            ("0", 0, "0s"),
            ("0s", 0, "0s"),
        ] {
            let parsed: GoDuration = text.parse().unwrap();
            assert_eq!(parsed.0.as_millis(), millis, "{text}");
            assert_eq!(parsed.to_string(), written, "{text}");
        }
        for bad in ["", "5", "5x", "m", "-1s", "1m ", "1..5s"] {
            assert!(bad.parse::<GoDuration>().is_err(), "{bad:?}");
        }
    }
}
