//! Durations in Go's format: `1h30m`, `1.5s`.

use crate::text::quote;

const UNITS: &[(&str, f64)] = &[
    ("ns", 1e-9),
    ("us", 1e-6),
    ("µs", 1e-6),
    ("μs", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("m", 60.0),
    ("h", 3600.0),
];

/// The seconds of a duration, or Go's error.
pub fn parse(text: &str) -> Result<f64, String> {
    let invalid = || format!("invalid duration {}", quote(text));
    let sign = if text.starts_with('-') { -1.0 } else { 1.0 };
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return Ok(0.0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let number = rest.len()
            - rest
                .trim_start_matches(|c: char| c.is_ascii_digit() || c == '.')
                .len();
        let (number, after) = rest.split_at(number);
        if number.matches('.').count() > 1 || !number.contains(|c: char| c.is_ascii_digit()) {
            return Err(invalid());
        }
        let end = after
            .find(|c: char| c == '.' || c.is_ascii_digit())
            .unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        if unit.is_empty() {
            return Err(format!("missing unit in duration {}", quote(text)));
        }
        let Some((_, size)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            let unit = quote(unit);
            return Err(format!("unknown unit {unit} in duration {}", quote(text)));
        };
        let number: f64 = number.parse().map_err(|_| invalid())?;
        seconds += number * size;
        rest = after;
    }
    Ok(sign * seconds)
}

/// The nanoseconds of a duration, saturating.
pub fn nanos(text: &str) -> Result<i64, String> {
    Ok((parse(text)? * 1e9).round() as i64)
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
        assert_eq!(nanos("9999999h"), Ok(i64::MAX));
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
    }
}
