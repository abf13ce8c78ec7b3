//! Durations in Go's format.

use std::time::Duration;

use anyhow::{Context, Result, bail};

/// `90s`, `2m`, `1h30m`, `500ms`, or seconds.
pub(crate) fn parse(text: &str) -> Result<Duration> {
    match parse_signed(text)? {
        (false, duration) => Ok(duration),
        (true, _) => bail!("negative duration {text:?}"),
    }
}

/// The same with a sign; true is negative.
pub(crate) fn parse_signed(text: &str) -> Result<(bool, Duration)> {
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    if let Ok(seconds) = digits.parse::<u64>() {
        return Ok((is_negative && seconds > 0, Duration::from_secs(seconds)));
    }
    let bad = || format!("invalid duration {text:?}");
    let mut total = Duration::ZERO;
    let mut rest = digits;
    if rest.is_empty() {
        bail!(bad());
    }
    while !rest.is_empty() {
        let end = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .with_context(bad)?;
        let number: f64 = rest[..end].parse().with_context(bad)?;
        let unit = &rest[end..];
        let units = [
            ("ns", 1e-9),
            ("us", 1e-6),
            ("µs", 1e-6),
            ("ms", 0.001),
            ("s", 1.0),
            ("m", 60.0),
            ("h", 3600.0),
        ];
        let (seconds, used) = units
            .into_iter()
            .find_map(|(name, seconds)| unit.starts_with(name).then_some((seconds, name.len())))
            .with_context(bad)?;
        total = total
            .checked_add(Duration::try_from_secs_f64(number * seconds).with_context(bad)?)
            .with_context(bad)?;
        rest = &unit[used..];
    }
    Ok((is_negative, total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_reads_them() {
        for (text, seconds) in [
            ("90s", 90.0),
            ("2m", 120.0),
            ("1h30m", 5400.0),
            ("500ms", 0.5),
            ("7", 7.0),
            ("0", 0.0),
        ] {
            assert_eq!(parse(text).unwrap().as_secs_f64(), seconds, "{text}");
        }
        for text in ["soon", "", "-5s", "1e400h"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert_eq!(parse_signed("-1s").unwrap(), (true, Duration::from_secs(1)));
    }
}
