//! Durations in Go's format.

use std::time::Duration;

use anyhow::{Result, bail};
use machinery::duration;

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
    let nanos = duration::nanos(digits);
    match nanos.ok().and_then(|nanos| u64::try_from(nanos).ok()) {
        Some(nanos) => Ok((is_negative, Duration::from_nanos(nanos))),
        None => bail!("invalid duration {text:?}"),
    }
}

/// Checks the value of a flag as Go's `time.ParseDuration`, with its errors.
pub(crate) fn flag(text: &str) -> Result<String, String> {
    match duration::nanos(text) {
        Ok(_) if matches!(text, "0" | "+0" | "-0") => Ok("0s".to_owned()),
        Ok(_) => Ok(text.to_owned()),
        Err(why) => Err(format!("time: {why}")),
    }
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
