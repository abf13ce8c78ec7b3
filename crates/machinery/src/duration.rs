//! Durations in Go's format: `1h30m`, `1.5s`.

use std::time::Duration;

use crate::text::quote;

/// Units and their nanoseconds.
const UNITS: &[(&str, u64)] = &[
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// The nanoseconds of a duration, or Go's error without its prefix `time: `.
pub fn nanos(text: &str) -> Result<i64, String> {
    let invalid = || format!("invalid duration {}", quote(text));
    let is_negative = text.starts_with('-');
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let is_digit = |c: char| c.is_ascii_digit() || c == '.';
        let (number, after) = rest.split_at(rest.len() - rest.trim_start_matches(is_digit).len());
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
            return Err(invalid());
        }
        let (unit, after) = after.split_at(after.find(is_digit).unwrap_or(after.len()));
        if unit.is_empty() {
            return Err(format!("missing unit in duration {}", quote(text)));
        }
        let Some((_, size)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            let unit = quote(unit);
            return Err(format!("unknown unit {unit} in duration {}", quote(text)));
        };
        let part = amount(whole, fraction, *size).ok_or_else(invalid)?;
        total = total.checked_add(part).ok_or_else(invalid)?;
        rest = after;
    }
    let total = match is_negative {
        true => 0_i64.checked_sub_unsigned(total),
        false => 0_i64.checked_add_unsigned(total),
    };
    total.ok_or_else(invalid)
}

/// A decimal number of units in nanoseconds.
fn amount(whole: &str, fraction: &str, unit: u64) -> Option<u64> {
    let whole: u64 = match whole {
        "" => 0,
        digits => digits.parse().ok()?,
    };
    // As Go: digits as long as they fit, and the rest of a nanosecond is cut off.
    let (mut part, mut scale) = (0_i64, 1.0);
    for digit in fraction.bytes() {
        let more = part.checked_mul(10);
        let Some(more) = more.and_then(|part| part.checked_add(i64::from(digit - b'0'))) else {
            break;
        };
        (part, scale) = (more, scale * 10.0);
    }
    let part = (part as f64 * (unit as f64 / scale)) as u64;
    whole.checked_mul(unit)?.checked_add(part)
}

/// The seconds of a duration, or Go's error without its prefix.
pub fn parse(text: &str) -> Result<f64, String> {
    Ok(nanos(text)? as f64 / 1e9)
}

/// A duration that is not negative.
pub fn positive(text: &str) -> Result<Duration, String> {
    match u64::try_from(nanos(text)?) {
        Ok(nanos) => Ok(Duration::from_nanos(nanos)),
        Err(_) => Err(format!("negative duration {}", quote(text))),
    }
}

/// Nanoseconds in Go's format: the largest nonzero unit first, fractions of a second as decimals.
pub fn format(nanos: i64) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let rest = nanos.unsigned_abs();
    if rest == 0 {
        return "0s".to_owned();
    }
    // Below a second, the largest unit with a nonzero integer part.
    for (limit, unit, size) in [
        (1_000, "ns", 1),
        (1_000_000, "µs", 1_000),
        (1_000_000_000, "ms", 1_000_000),
    ] {
        if rest < limit {
            return format!("{sign}{}{unit}", decimal(rest, size));
        }
    }
    let minutes = rest / 60_000_000_000;
    let seconds = decimal(rest % 60_000_000_000, 1_000_000_000);
    match (minutes / 60, minutes % 60) {
        (0, 0) => format!("{sign}{seconds}s"),
        (0, minutes) => format!("{sign}{minutes}m{seconds}s"),
        (hours, minutes) => format!("{sign}{hours}h{minutes}m{seconds}s"),
    }
}

/// A duration in Go's format, up to its longest one.
pub fn text(duration: Duration) -> String {
    format(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
}

/// A number of parts of a unit as a decimal without trailing zeros.
fn decimal(parts: u64, unit: u64) -> String {
    let (whole, part) = (parts / unit, parts % unit);
    if part == 0 {
        return whole.to_string();
    }
    let digits = unit.ilog10() as usize;
    let part = format!("{part:0digits$}");
    format!("{whole}.{}", part.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_by_go() {
        for (nanos, expected) in [
            (0, "0s"),
            (1, "1ns"),
            (1_100, "1.1µs"),
            (2_200_000, "2.2ms"),
            (15_000_000_000, "15s"),
            (14_703_000_000, "14.703s"),
            (90_000_000_000, "1m30s"),
            (3_600_000_000_000, "1h0m0s"),
            (-1_500_000_000, "-1.5s"),
            (i64::MIN, "-2562047h47m16.854775808s"),
        ] {
            assert_eq!(format(nanos), expected);
        }
        assert_eq!(nanos("14.703s"), Ok(14_703_000_000));
        assert_eq!(nanos("-2562047h47m16.854775808s"), Ok(i64::MIN));
        assert!(nanos("2562047h47m16.854775808s").is_err());
        assert!(nanos("9999999h").is_err());
        assert_eq!(nanos("1.9999999999s"), Ok(1_999_999_999));
    }

    #[test]
    fn durations_are_read_and_refused_as_by_go() {
        for (text, expected) in [
            ("0", Ok(0.0)),
            ("30s", Ok(30.0)),
            ("1h30m", Ok(5400.0)),
            ("1.5s", Ok(1.5)),
            ("-2m", Ok(-120.0)),
            (".5s", Ok(0.5)),
            ("", Err("invalid duration \"\"")),
            ("abc", Err("invalid duration \"abc\"")),
            ("1..2s", Err("invalid duration \"1..2s\"")),
            ("3", Err("missing unit in duration \"3\"")),
            ("3x", Err("unknown unit \"x\" in duration \"3x\"")),
        ] {
            let read = parse(text);
            assert_eq!(read, expected.map_err(str::to_owned), "{text}");
        }
        assert_eq!(positive("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(positive("-1s"), Err("negative duration \"-1s\"".to_owned()));
    }
}
