//! Cron schedules of CronJobs: five fields, a descriptor such as `@daily`, or `@every 1h30m`, with
//! an optional time zone in front. Accepts and computes the same as robfig/cron v3.

use jiff::{SignedDuration, Timestamp, ToSpan, Zoned, tz::TimeZone};

use crate::{duration, text::quote};

/// In a field's set: the field is `*`.
const STAR: u64 = 1 << 63;
/// A schedule without a match within this many years never matches.
const YEARS: i16 = 5;

/// The names and the range of a field.
struct Field {
    low: u64,
    high: u64,
    names: &'static [&'static str],
}

const fn field(low: u64, high: u64, names: &'static [&'static str]) -> Field {
    Field { low, high, names }
}

const FIELDS: [Field; 5] = [
    field(0, 59, &[]),
    field(0, 23, &[]),
    field(1, 31, &[]),
    field(
        1,
        12,
        &[
            "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
        ],
    ),
    field(0, 6, &["sun", "mon", "tue", "wed", "thu", "fri", "sat"]),
];

const DESCRIPTORS: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

/// A parsed schedule.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    rhythm: Recurrence,
    zone: Option<TimeZone>,
}

#[derive(Debug, Clone, PartialEq)]
enum Recurrence {
    Every(SignedDuration),
    /// Sets of numbers as bits.
    Fields {
        minutes: u64,
        hours: u64,
        days: u64,
        months: u64,
        weekdays: u64,
    },
}

impl Schedule {
    /// Parses a schedule, or returns what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("empty spec string".to_owned());
        }
        let (zone, text) = split_zone(text)?;
        let rhythm = if text.starts_with('@') {
            descriptor(text)?
        } else {
            fields(text)?
        };
        Ok(Self { rhythm, zone })
    }

    /// The first match after `after`; `None` if there is none for years. `zone` is the default time
    /// zone of the schedule.
    pub fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        match &self.rhythm {
            Recurrence::Every(period) => whole_second(after)?.checked_add(*period).ok(),
            Recurrence::Fields {
                minutes,
                hours,
                days,
                months,
                weekdays,
            } => {
                if [minutes, hours, months].into_iter().any(|set| *set == 0) {
                    return None;
                }
                let zone = self.zone.as_ref().unwrap_or(zone);
                let mut time = next_minute(after)?.to_zoned(zone.clone());
                let limit = time.year() + YEARS;
                while time.year() <= limit {
                    time = if !has(*months, time.month()) {
                        let next = time.date().first_of_month().checked_add(1.month());
                        next.ok()?.to_zoned(zone.clone()).ok()?
                    } else if !is_day(*days, *weekdays, &time) {
                        time.date().tomorrow().ok()?.to_zoned(zone.clone()).ok()?
                    } else if !has(*hours, time.hour()) {
                        // An hour that daylight saving time skips has no match, and a repeated hour
                        // has two.
                        let passed = i64::from(time.minute());
                        time.checked_add((60 - passed).minutes()).ok()?
                    } else if !has(*minutes, time.minute()) {
                        time.checked_add(1.minute()).ok()?
                    } else {
                        return Some(time.timestamp());
                    };
                }
                None
            }
        }
    }
}

fn has(set: u64, number: i8) -> bool {
    set & (1 << number) != 0
}

/// Both must match, unless both are restricted: then one suffices.
fn is_day(days: u64, weekdays: u64, time: &Zoned) -> bool {
    let day = has(days, time.day());
    let weekday = has(weekdays, time.weekday().to_sunday_zero_offset());
    if (days | weekdays) & STAR != 0 {
        day && weekday
    } else {
        day || weekday
    }
}

fn whole_second(time: Timestamp) -> Option<Timestamp> {
    Timestamp::from_second(
        time.as_nanosecond()
            .div_euclid(1_000_000_000)
            .try_into()
            .ok()?,
    )
    .ok()
}

/// The first whole minute after a time. No current time zone has an offset with seconds.
fn next_minute(after: Timestamp) -> Option<Timestamp> {
    let seconds = whole_second(after)?.as_second();
    Timestamp::from_second((seconds.div_euclid(60) + 1) * 60).ok()
}

/// The time zone in front, and the rest.
fn split_zone(text: &str) -> Result<(Option<TimeZone>, &str), String> {
    let Some(rest) = text.strip_prefix("TZ=").or(text.strip_prefix("CRON_TZ=")) else {
        return Ok((None, text));
    };
    let Some((name, rest)) = rest.split_once(' ') else {
        return Err(format!("no schedule follows the time zone {rest}"));
    };
    let zone = match name {
        "" | "UTC" => TimeZone::UTC,
        name => find_zone(name)
            .ok_or_else(|| format!("provided bad location {name}: unknown time zone {name}"))?,
    };
    Ok((Some(zone), rest.trim()))
}

/// A time zone by its exact name.
pub fn find_zone(name: &str) -> Option<TimeZone> {
    if name == "UTC" {
        return Some(TimeZone::UTC);
    }
    let zone = jiff::tz::db().get(name).ok()?;
    (zone.iana_name() == Some(name)).then_some(zone)
}

fn descriptor(text: &str) -> Result<Recurrence, String> {
    if let Some((_, meaning)) = DESCRIPTORS.iter().find(|(name, _)| *name == text) {
        return fields(meaning);
    }
    let Some(every) = text.strip_prefix("@every ") else {
        return Err(format!("unrecognized descriptor: {text}"));
    };
    let seconds = duration::parse(every)
        .map_err(|why| format!("failed to parse duration {text}: time: {why}"))?;
    // Whole seconds, at least one. Go's durations end at 292 years.
    let seconds = seconds.clamp(1.0, 9_223_372_036.0) as i64;
    Ok(Recurrence::Every(SignedDuration::from_secs(seconds)))
}

fn fields(text: &str) -> Result<Recurrence, String> {
    let fields: Vec<&str> = text.split_whitespace().collect();
    let [minutes, hours, days, months, weekdays] = fields[..] else {
        return Err(format!(
            "expected exactly 5 fields, found {}: [{}]",
            fields.len(),
            fields.join(" ")
        ));
    };
    Ok(Recurrence::Fields {
        minutes: set(minutes, &FIELDS[0])?,
        hours: set(hours, &FIELDS[1])?,
        days: set(days, &FIELDS[2])?,
        months: set(months, &FIELDS[3])?,
        weekdays: set(weekdays, &FIELDS[4])?,
    })
}

/// Empty parts between commas are ignored.
fn set(text: &str, field: &Field) -> Result<u64, String> {
    let parts = text.split(',').filter(|part| !part.is_empty());
    parts
        .map(|part| range(part, field))
        .try_fold(0, |all, set| Ok(all | set?))
}

fn range(part: &str, field: &Field) -> Result<u64, String> {
    let pieces: Vec<&str> = part.split('/').collect();
    let ends: Vec<&str> = pieces[0].split('-').collect();
    let any = matches!(ends[0], "*" | "?");
    let (start, mut end) = if any {
        (field.low, field.high)
    } else {
        let start = number_or_name(ends[0], field)?;
        match ends[..] {
            [_] => (start, start),
            [_, end] => (start, number_or_name(end, field)?),
            _ => return Err(format!("too many hyphens: {part}")),
        }
    };
    let step = match pieces[..] {
        [_] => 1,
        [_, step] => {
            if ends.len() == 1 {
                end = field.high;
            }
            number(step)?
        }
        _ => return Err(format!("too many slashes: {part}")),
    };
    let (low, high) = (field.low, field.high);
    if start < low {
        return Err(format!(
            "beginning of range ({start}) below minimum ({low}): {part}"
        ));
    }
    if end > high {
        return Err(format!(
            "end of range ({end}) above maximum ({high}): {part}"
        ));
    }
    if start > end {
        return Err(format!(
            "beginning of range ({start}) beyond end of range ({end}): {part}"
        ));
    }
    let step_size = usize::try_from(step).unwrap_or(usize::MAX);
    if step_size == 0 {
        return Err(format!("step of range should be a positive number: {part}"));
    }
    let star = if any && step == 1 { STAR } else { 0 };
    let numbers = (start..=end).step_by(step_size);
    Ok(numbers.fold(star, |set, number| set | 1 << number))
}

fn number_or_name(text: &str, field: &Field) -> Result<u64, String> {
    let lower = text.to_lowercase();
    match field.names.iter().position(|name| *name == lower) {
        Some(at) => Ok(field.low + at as u64),
        None => number(text),
    }
}

fn number(text: &str) -> Result<u64, String> {
    let quoted = quote(text);
    let parsed: i64 = text.parse().map_err(|error: std::num::ParseIntError| {
        use std::num::IntErrorKind::{NegOverflow, PosOverflow};
        let why = match error.kind() {
            PosOverflow | NegOverflow => "value out of range",
            _ => "invalid syntax",
        };
        format!("failed to parse int from {text}: strconv.Atoi: parsing {quoted}: {why}")
    })?;
    u64::try_from(parsed).map_err(|_| format!("negative number ({parsed}) not allowed: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why_not(text: &str) -> String {
        Schedule::parse(text).expect_err(text)
    }

    #[test]
    fn schedules_are_read_as_robfig_reads_them() {
        for good in [
            "*/5 * * * *",
            "0 0 1,15 * mon-fri",
            "0 0 1,15 * MON-Fri",
            "@hourly",
            "@every 1h30m",
            "@every 5ms",
            "@every -5s",
            "0 12 * jan 6",
            "5,,6 * * * *",
            ", * * * *",
            "? ? ? ? ?",
            "*-2 * * * *",
            "TZ=UTC 0 0 * * *",
            "CRON_TZ=Europe/Berlin  0 0 * * *",
            "TZ=UTC @daily",
            "59 23 31 2 *",
            "+5 * * * *",
        ] {
            assert!(Schedule::parse(good).is_ok(), "{good}");
        }
        for (bad, why) in [
            ("", "empty spec string"),
            (" ", "expected exactly 5 fields, found 0: []"),
            ("* * * *", "expected exactly 5 fields, found 4: [* * * *]"),
            ("60 * * * *", "end of range (60) above maximum (59): 60"),
            (
                "a * * * *",
                "failed to parse int from a: strconv.Atoi: parsing \"a\": invalid syntax",
            ),
            ("@never", "unrecognized descriptor: @never"),
            (
                "@every 5",
                "failed to parse duration @every 5: time: missing unit in duration \"5\"",
            ),
            (
                "*/0 * * * *",
                "step of range should be a positive number: */0",
            ),
            ("0 0 0 * *", "beginning of range (0) below minimum (1): 0"),
            ("0 0 * * 7", "end of range (7) above maximum (6): 7"),
            (
                "5-1 * * * *",
                "beginning of range (5) beyond end of range (1): 5-1",
            ),
            ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
            ("1/2/3 * * * *", "too many slashes: 1/2/3"),
            (
                "TZ=Nowhere 0 0 * * *",
                "provided bad location Nowhere: unknown time zone Nowhere",
            ),
            ("TZ=UTC", "no schedule follows the time zone UTC"),
        ] {
            assert_eq!(why_not(bad), why, "{bad}");
        }
    }

    fn next_in(zone: &str, schedule: &str, after: &str) -> String {
        let zone = TimeZone::get(zone).unwrap();
        let schedule = Schedule::parse(schedule).unwrap();
        let next = schedule.next(after.parse().unwrap(), &zone);
        next.map_or("never".into(), |next| next.to_string())
    }

    #[test]
    fn the_next_time_is_the_first_minute_that_fits() {
        for (schedule, expected) in [
            ("* * * * *", "2026-03-10T10:08:00Z"),
            ("*/15 * * * *", "2026-03-10T10:15:00Z"),
            ("5,,9 * * * *", "2026-03-10T10:09:00Z"),
            ("10/20 * * * *", "2026-03-10T10:10:00Z"),
            ("0 9 * * *", "2026-03-11T09:00:00Z"),
            ("30 10-12/2 * * *", "2026-03-10T10:30:00Z"),
            ("0 0 1 * *", "2026-04-01T00:00:00Z"),
            ("0 0 * * MON", "2026-03-16T00:00:00Z"),
            ("0 0 * * sun", "2026-03-15T00:00:00Z"),
            ("0 0 29 feb *", "2028-02-29T00:00:00Z"),
            ("@hourly", "2026-03-10T11:00:00Z"),
            ("@every 1h30m", "2026-03-10T11:37:30Z"),
            ("@every 10ms", "2026-03-10T10:07:31Z"),
            ("@every 1.5s", "2026-03-10T10:07:31Z"),
            ("0 0 31 2 *", "never"),
            (", * * * *", "never"),
            // A day of the month or of the week suffices if both are restricted; a step is a
            // restriction.
            ("0 0 20 * FRI", "2026-03-13T00:00:00Z"),
            ("0 0 13 * ?", "2026-03-13T00:00:00Z"),
            ("0 0 */10 * FRI", "2026-03-11T00:00:00Z"),
            ("0 0 */1 * FRI", "2026-03-13T00:00:00Z"),
        ] {
            assert_eq!(
                next_in("UTC", schedule, "2026-03-10T10:07:30.25Z"),
                expected,
                "{schedule}"
            );
        }
        assert_eq!(
            next_in("UTC", "* * * * *", "2026-03-10T10:07:00Z"),
            "2026-03-10T10:08:00Z"
        );
    }

    #[test]
    fn hours_that_a_zone_skips_are_not_due_and_those_it_repeats_are_due_twice() {
        let berlin = |schedule: &str, after: &str| next_in("Europe/Berlin", schedule, after);
        assert_eq!(
            berlin("0 9 * * *", "2026-01-10T00:00:00Z"),
            "2026-01-10T08:00:00Z"
        );
        assert_eq!(
            berlin("30 2 * * *", "2026-03-28T12:00:00Z"),
            "2026-03-30T00:30:00Z"
        );
        assert_eq!(
            berlin("30 2 * * *", "2026-10-24T12:00:00Z"),
            "2026-10-25T00:30:00Z"
        );
        assert_eq!(
            berlin("30 2 * * *", "2026-10-25T00:30:00Z"),
            "2026-10-25T01:30:00Z"
        );
        // The schedule's own zone takes precedence.
        assert_eq!(
            berlin("TZ=UTC 0 9 * * *", "2026-01-10T00:00:00Z"),
            "2026-01-10T09:00:00Z"
        );
    }
}
