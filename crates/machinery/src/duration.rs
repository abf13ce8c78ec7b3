//! Durations as Go writes them: `1h30m`, `1.5s`.

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

/// The seconds of a duration, or what is wrong with it in the words of Go.
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

#[cfg(test)]
mod tests {
    use super::*;

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
