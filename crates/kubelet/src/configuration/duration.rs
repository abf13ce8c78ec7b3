//! Durations as Go writes them: `1h30m`, `500ms`.

use std::{fmt, str::FromStr, time::Duration};

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

const UNITS: &[(&str, f64)] = &[
    ("ns", 1e-9),
    ("us", 1e-6),
    ("µs", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("m", 60.0),
    ("h", 3600.0),
];

impl FromStr for GoDuration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is not a duration such as 1m30s");
        if text == "0" {
            return Ok(Self::default());
        }
        let (mut rest, mut seconds) = (text, 0.0);
        while !rest.is_empty() {
            let digits = rest
                .find(|c: char| !c.is_ascii_digit() && c != '.')
                .ok_or_else(bad)?;
            let (number, behind) = rest.split_at(digits);
            let unit = behind
                .find(|c: char| c.is_ascii_digit() || c == '.')
                .unwrap_or(behind.len());
            let (unit, behind) = behind.split_at(unit);
            let factor = UNITS
                .iter()
                .find(|(name, _)| *name == unit)
                .ok_or_else(bad)?;
            seconds += number.parse::<f64>().map_err(|_| bad())? * factor.1;
            rest = behind;
        }
        if text.is_empty() {
            return Err(bad());
        }
        Duration::try_from_secs_f64(seconds)
            .map(Self)
            .map_err(|_| bad())
    }
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, nanos) = (self.0.as_secs(), self.0.subsec_nanos());
        if whole == 0 && nanos != 0 {
            return write!(f, "{}ms", f64::from(nanos) / 1e6);
        }
        let (hours, minutes, seconds) = (whole / 3600, whole / 60 % 60, whole % 60);
        if hours > 0 {
            write!(f, "{hours}h")?;
        }
        if whole >= 60 {
            write!(f, "{minutes}m")?;
        }
        if nanos == 0 {
            write!(f, "{seconds}s")
        } else {
            write!(f, "{}s", f64::from(nanos) / 1e9 + seconds as f64)
        }
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
