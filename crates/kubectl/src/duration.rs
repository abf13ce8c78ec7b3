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
        None => (false, text.strip_prefix('+').unwrap_or(text)),
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
            ("μs", 1e-6),
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

/// Checks the value of a flag as Go's `time.ParseDuration`, with its errors.
pub(crate) fn flag(text: &str) -> Result<String, String> {
    let invalid = || Err(format!("time: invalid duration {text:?}"));
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return Ok("0s".to_owned());
    }
    if rest.is_empty() {
        return invalid();
    }
    while !rest.is_empty() {
        let end = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        let number = &rest[..end];
        if !number.contains(|c: char| c.is_ascii_digit()) || number.matches('.').count() > 1 {
            return invalid();
        }
        rest = &rest[end..];
        let end = rest
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(rest.len());
        let unit = &rest[..end];
        if unit.is_empty() {
            return Err(format!("time: missing unit in duration {text:?}"));
        }
        if !matches!(unit, "ns" | "us" | "µs" | "μs" | "ms" | "s" | "m" | "h") {
            return Err(format!("time: unknown unit {unit:?} in duration {text:?}"));
        }
        rest = &rest[end..];
    }
    Ok(text.to_owned())
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
        for (text, expected) in [
            ("1h30m", Ok("1h30m")),
            ("-1.5s", Ok("-1.5s")),
            ("0", Ok("0s")),
            ("x", Err("time: invalid duration \"x\"")),
            ("", Err("time: invalid duration \"\"")),
            ("5", Err("time: missing unit in duration \"5\"")),
            ("5x", Err("time: unknown unit \"x\" in duration \"5x\"")),
        ] {
            let expected = expected.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(flag(text), expected, "{text}");
        }
        assert_eq!(parse_signed("-1s").unwrap(), (true, Duration::from_secs(1)));
    }
}
