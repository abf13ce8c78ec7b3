//! Times in the API: RFC 3339 in UTC, to the second or to the microsecond.
//!
//! The calendar is our own: jiff's timestamps end a day before the year 9999 does, and those of the API do not.

use crate::text::quote;

/// A time: seconds since the epoch and nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment {
    pub seconds: i64,
    pub nanos: u32,
}

impl Moment {
    /// Whether it is the first moment of the year 1, Go's zero time.
    pub fn is_zero(self) -> bool {
        const YEAR_ONE: i64 = -62_135_596_800;
        (self.seconds, self.nanos) == (YEAR_ONE, 0)
    }
}

const LAYOUT: &str = "2006-01-02T15:04:05Z07:00";
const MICRO_LAYOUT: &str = "2006-01-02T15:04:05.000000Z07:00";

/// Days since 1970-01-01 of a date of the Gregorian calendar.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let y = if month <= 2 { year - 1 } else { year };
    let era = y.div_euclid(400);
    let of_era = y.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

fn date(days: i64) -> (i64, i64, i64) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let of_era = z.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + i64::from(month <= 2), month, day)
}

/// Parses RFC 3339 with or without a fraction; the error is Go's.
pub fn parse(text: &str) -> Result<Moment, String> {
    parse_as(text, LAYOUT)
}

/// As [`parse`], for a field with microseconds.
pub fn parse_micro(text: &str) -> Result<Moment, String> {
    parse_as(text, MICRO_LAYOUT)
}

fn parse_as(text: &str, layout: &str) -> Result<Moment, String> {
    scan(text, layout == MICRO_LAYOUT).map_err(|(rest, element)| {
        let (text_quoted, layout_quoted) = (quote(text), quote(layout));
        if element.starts_with(':') {
            format!("parsing time {text_quoted}{element}")
        } else if element.is_empty() {
            format!("parsing time {text_quoted}: extra text: {}", quote(rest))
        } else {
            format!(
                "parsing time {text_quoted} as {layout_quoted}: cannot parse {} as {}",
                quote(rest),
                quote(element)
            )
        }
    })
}

/// The error is the unparsed rest and the layout element it does not match; an element that starts
/// with a colon is a message about a number out of range.
fn scan(text: &str, micro: bool) -> Result<Moment, (&str, &'static str)> {
    let mut rest = text;
    let year = number(&mut rest, 4, "2006")?;
    literal(&mut rest, "-")?;
    let month = number(&mut rest, 2, "01")?;
    within(text, month, 1..=12, ": month out of range")?;
    literal(&mut rest, "-")?;
    let day = number(&mut rest, 2, "02")?;
    literal(&mut rest, "T")?;
    let hour = number(&mut rest, 2, "15")?;
    within(text, hour, 0..=23, ": hour out of range")?;
    literal(&mut rest, ":")?;
    let minute = number(&mut rest, 2, "04")?;
    within(text, minute, 0..=59, ": minute out of range")?;
    literal(&mut rest, ":")?;
    let second = number(&mut rest, 2, "05")?;
    within(text, second, 0..=59, ": second out of range")?;
    let nanos = fraction(&mut rest, micro)?;
    let offset = zone(&mut rest)?;
    if !rest.is_empty() {
        return Err((rest, ""));
    }
    let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    let length = match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    within(text, day, 1..=length, ": day out of range")?;
    let seconds = days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second - offset;
    Ok(Moment { seconds, nanos })
}

fn within<'a>(
    text: &'a str,
    value: i64,
    range: std::ops::RangeInclusive<i64>,
    complaint: &'static str,
) -> Result<(), (&'a str, &'static str)> {
    match range.contains(&value) {
        true => Ok(()),
        false => Err((text, complaint)),
    }
}

fn number<'a>(
    rest: &mut &'a str,
    width: usize,
    element: &'static str,
) -> Result<i64, (&'a str, &'static str)> {
    let digits = rest
        .get(..width)
        .filter(|d| d.bytes().all(|b| b.is_ascii_digit()));
    let Some(digits) = digits else {
        return Err((rest, element));
    };
    *rest = &rest[width..];
    // At most four digits.
    Ok(digits.parse().unwrap_or_default())
}

fn literal<'a>(rest: &mut &'a str, what: &'static str) -> Result<(), (&'a str, &'static str)> {
    *rest = rest.strip_prefix(what).ok_or((*rest, what))?;
    Ok(())
}

fn fraction<'a>(rest: &mut &'a str, micro: bool) -> Result<u32, (&'a str, &'static str)> {
    let Some(behind) = rest.strip_prefix(['.', ',']) else {
        return if micro { Err((rest, ".000000")) } else { Ok(0) };
    };
    let digits = behind.bytes().take_while(u8::is_ascii_digit).count();
    let count = if micro { digits.min(6) } else { digits };
    if count == 0 || (micro && count != 6) {
        return Err((rest, if micro { ".000000" } else { "Z07:00" }));
    }
    let mut nanos = 0;
    for i in 0..9 {
        nanos = nanos * 10
            + behind
                .as_bytes()
                .get(i)
                .filter(|_| i < count)
                .map_or(0, |b| u32::from(b - b'0'));
    }
    *rest = &behind[count..];
    Ok(nanos)
}

fn zone<'a>(rest: &mut &'a str) -> Result<i64, (&'a str, &'static str)> {
    if let Some(behind) = rest.strip_prefix('Z') {
        *rest = behind;
        return Ok(0);
    }
    let whole = *rest;
    let sign = match rest.as_bytes().first() {
        Some(b'+') => 1,
        Some(b'-') => -1,
        _ => return Err((whole, "Z07:00")),
    };
    *rest = &rest[1..];
    let hours = number(rest, 2, "Z07:00").map_err(|_| (whole, "Z07:00"))?;
    literal(rest, ":").map_err(|_| (whole, "Z07:00"))?;
    let minutes = number(rest, 2, "Z07:00").map_err(|_| (whole, "Z07:00"))?;
    if hours > 24 || minutes >= 60 {
        return Err((whole, ": time zone offset hour out of range"));
    }
    Ok(sign * (hours * 3600 + minutes * 60))
}

/// `2006-01-02T15:04:05Z`
pub fn format(seconds: i64) -> String {
    let (year, month, day) = date(seconds.div_euclid(86_400));
    let s = seconds.rem_euclid(86_400);
    let (hours, minutes, seconds) = (s / 3600, s / 60 % 60, s % 60);
    if !(0..=9999).contains(&year) {
        return format!("{year:04}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{seconds:02}Z");
    }
    // On the path of every write, so without formatting.
    let mut text = String::with_capacity(20);
    let mut put = |n: i64, behind: char| {
        text.push(char::from(b'0' + (n / 10) as u8));
        text.push(char::from(b'0' + (n % 10) as u8));
        if behind != ' ' {
            text.push(behind);
        }
    };
    put(year / 100, ' ');
    put(year % 100, '-');
    put(month, '-');
    put(day, 'T');
    put(hours, ':');
    put(minutes, ':');
    put(seconds, 'Z');
    text
}

/// `2006-01-02T15:04:05.000000Z`
pub fn format_micro(moment: Moment) -> String {
    let mut text = format(moment.seconds);
    text.pop();
    text.push_str(&format!(".{:06}Z", moment.nanos / 1000));
    text
}

/// A duration as tables show it: `45s`, `5m30s`, `3h`, `2d4h`, `400d`.
pub fn human_duration(seconds: i64) -> String {
    // Small clock differences are not shown as invalid.
    if seconds < -1 {
        return "<invalid>".to_owned();
    }
    let seconds = seconds.max(0);
    if seconds < 120 {
        return format!("{seconds}s");
    }
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let pair = |big: i64, unit: &str, small: i64, small_unit: &str| {
        if small == 0 {
            format!("{big}{unit}")
        } else {
            format!("{big}{unit}{small}{small_unit}")
        }
    };
    if minutes < 10 {
        pair(minutes, "m", seconds % 60, "s")
    } else if minutes < 180 {
        format!("{minutes}m")
    } else if hours < 8 {
        pair(hours, "h", minutes % 60, "m")
    } else if hours < 48 {
        format!("{hours}h")
    } else if days < 8 {
        pair(days, "d", hours % 24, "h")
    } else if days < 365 * 2 {
        format!("{days}d")
    } else if days < 365 * 8 {
        pair(days / 365, "y", days % 365, "d")
    } else {
        format!("{}y", days / 365)
    }
}

/// The age of an object created at `text`; `<unknown>` if absent or invalid.
pub fn age(text: Option<&str>, now: i64) -> String {
    match text.map(parse) {
        Some(Ok(moment)) => human_duration(now - moment.seconds),
        _ => "<unknown>".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_are_read_in_any_zone_and_written_in_utc() {
        let cases = [
            ("2024-02-29T23:59:59Z", "2024-02-29T23:59:59Z"),
            ("2024-03-01T01:00:00+02:00", "2024-02-29T23:00:00Z"),
            ("1969-12-31T23:59:59.5Z", "1969-12-31T23:59:59Z"),
            ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z"),
        ];
        for (text, expected) in cases {
            assert_eq!(format(parse(text).unwrap().seconds), expected);
        }
        let micro = parse_micro("2024-01-02T03:04:05.123456Z").unwrap();
        assert_eq!(format_micro(micro), "2024-01-02T03:04:05.123456Z");
    }

    #[test]
    fn invalid_times_are_refused_with_gos_message() {
        assert_eq!(
            parse("x").unwrap_err(),
            "parsing time \"x\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"x\" as \"2006\""
        );
        assert_eq!(
            parse("2023-02-29T00:00:00Z").unwrap_err(),
            "parsing time \"2023-02-29T00:00:00Z\": day out of range"
        );
        let micro = r#"as "2006-01-02T15:04:05.000000Z07:00": cannot parse"#;
        for (text, expected) in [
            (
                "2024-01-02T03:04:05Z",
                format!(r#" {micro} "Z" as ".000000""#),
            ),
            (
                "2024-01-02T03:04:05.12345Z",
                format!(r#" {micro} ".12345Z" as ".000000""#),
            ),
            (
                "2024-01-02T03:04:05.123456789Z",
                format!(r#" {micro} "789Z" as "Z07:00""#),
            ),
            ("2024-01-02T24:00:00Z", ": hour out of range".to_owned()),
            ("2024-01-02T23:59:60Z", ": second out of range".to_owned()),
        ] {
            let expected = format!("parsing time \"{text}\"{expected}");
            assert_eq!(parse_micro(text).unwrap_err(), expected);
        }
    }

    #[test]
    fn ages_are_short() {
        for (seconds, text) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (330, "5m30s"),
            (3600, "60m"),
            (10800, "3h"),
            (12060, "3h21m"),
            (86400, "24h"),
            (183600, "2d3h"),
            (8640000, "100d"),
            (63072000, "2y"),
            (-1, "0s"),
            (-5, "<invalid>"),
        ] {
            assert_eq!(human_duration(seconds), text);
        }
    }

    proptest! {
        #[test]
        fn every_second_reads_back(seconds in -62_135_596_800i64..253_402_300_799) {
            prop_assert_eq!(parse(&format(seconds)).unwrap().seconds, seconds);
        }

        #[test]
        fn parsing_never_panics(text in "[0-9TZ:.+\\-ä]{0,30}") {
            let _ = parse(&text);
            let _ = parse_micro(&text);
        }
    }
}
