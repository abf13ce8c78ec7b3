//! Cron schedules: five fields, names, ranges, steps, and the common shorthands. Pure.

use jiff::{ToSpan, Zoned, civil};

/// The minutes at which something shall happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Schedule {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Both days of the month and of the week were said: either suffices.
    either_day: bool,
}

const MONTHS: [&str; 12] = [
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

impl Schedule {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let text = match text.trim() {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            other => other,
        };
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [minutes, hours, days, months, weekdays] = fields[..] else {
            return Err(format!("expected exactly 5 fields, found {}", fields.len()));
        };
        let any = |field: &str| field.starts_with('*') || field == "?";
        let mut weekdays_set = field(weekdays, 0, 7, &WEEKDAYS, 0)?;
        if weekdays_set & (1 << 7) != 0 {
            weekdays_set |= 1;
        }
        Ok(Self {
            minutes: field(minutes, 0, 59, &[], 0)?,
            hours: field(hours, 0, 23, &[], 0)?,
            days: field(days, 1, 31, &[], 0)?,
            months: field(months, 1, 12, &MONTHS, 1)?,
            weekdays: weekdays_set,
            either_day: !any(days) && !any(weekdays),
        })
    }

    /// The first time after `after`, in its time zone; nothing when there is none for years.
    pub(super) fn next(&self, after: &Zoned) -> Option<Zoned> {
        let zone = after.time_zone().clone();
        let start = after.datetime().checked_add(1.minute()).ok()?;
        let mut time = start.date().at(start.hour(), start.minute(), 0, 0);
        let limit = after.year() + 5;
        while time.year() <= limit {
            if !has(self.months, time.month()) {
                time = time.first_of_month().checked_add(1.month()).ok()?;
                time = time.date().at(0, 0, 0, 0);
            } else if !self.is_day(time) {
                time = time.date().tomorrow().ok()?.at(0, 0, 0, 0);
            } else if !has(self.hours, time.hour()) {
                time = time
                    .date()
                    .at(time.hour(), 0, 0, 0)
                    .checked_add(1.hour())
                    .ok()?;
            } else if !has(self.minutes, time.minute()) {
                time = time.checked_add(1.minute()).ok()?;
            } else {
                let zoned = time.to_zoned(zone.clone()).ok()?;
                // In the hour that a clock skips or repeats, time must still go forward.
                if zoned > *after {
                    return Some(zoned);
                }
                time = time.checked_add(1.minute()).ok()?;
            }
        }
        None
    }

    fn is_day(&self, time: civil::DateTime) -> bool {
        let day = has(self.days, time.day());
        let weekday = has(self.weekdays, time.weekday().to_sunday_zero_offset());
        if self.either_day {
            day || weekday
        } else {
            day && weekday
        }
    }
}

fn has(set: u64, number: i8) -> bool {
    set & (1 << number) != 0
}

fn field(text: &str, low: u32, high: u32, names: &[&str], first: u32) -> Result<u64, String> {
    let mut set = 0;
    for part in text.split(',') {
        set |= range(part, low, high, names, first)?;
    }
    Ok(set)
}

fn range(part: &str, low: u32, high: u32, names: &[&str], first: u32) -> Result<u64, String> {
    let bad = || format!("cannot read {part:?}");
    let number = |word: &str| {
        let lower = word.to_ascii_lowercase();
        match names.iter().position(|name| *name == lower) {
            Some(at) => u32::try_from(at).ok().map(|at| at + first),
            None => word.parse().ok(),
        }
    };
    let (span, step) = part
        .split_once('/')
        .map_or((part, None), |(span, step)| (span, Some(step)));
    let step = match step {
        Some(step) => step
            .parse::<usize>()
            .ok()
            .filter(|step| *step > 0)
            .ok_or_else(bad)?,
        None => 1,
    };
    let (from, to) = match span {
        "*" | "?" => (low, if high == 7 { 6 } else { high }),
        span => match span.split_once('-') {
            Some((from, to)) => (number(from).ok_or_else(bad)?, number(to).ok_or_else(bad)?),
            None => {
                let from = number(span).ok_or_else(bad)?;
                (from, if part.contains('/') { high } else { from })
            }
        },
    };
    if from < low || to > high || from > to {
        return Err(bad());
    }
    Ok((from..=to)
        .step_by(step)
        .fold(0, |set, number| set | 1 << number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(schedule: &str, after: &str) -> String {
        let after: Zoned = after.parse().unwrap();
        let next = Schedule::parse(schedule).unwrap().next(&after);
        next.map_or("never".into(), |next| next.datetime().to_string())
    }

    #[test]
    fn the_next_time_is_the_first_minute_that_fits() {
        let at = "2026-03-10T10:07:30+00:00[UTC]";
        for (schedule, expected) in [
            ("* * * * *", "2026-03-10T10:08:00"),
            ("*/15 * * * *", "2026-03-10T10:15:00"),
            ("0 9 * * *", "2026-03-11T09:00:00"),
            ("30 10-12/2 * * *", "2026-03-10T10:30:00"),
            ("0 0 1 * *", "2026-04-01T00:00:00"),
            ("0 0 * * MON", "2026-03-16T00:00:00"),
            ("0 0 * * 7", "2026-03-15T00:00:00"),
            ("0 0 13 * FRI", "2026-03-13T00:00:00"),
            ("0 0 29 feb *", "2028-02-29T00:00:00"),
            ("@hourly", "2026-03-10T11:00:00"),
            ("0 0 31 2 *", "never"),
        ] {
            assert_eq!(next(schedule, at), expected, "{schedule}");
        }
    }

    #[test]
    fn a_day_of_the_month_or_of_the_week_suffices_when_both_are_said() {
        assert_eq!(
            next("0 0 20 * FRI", "2026-03-10T00:00:00+00:00[UTC]"),
            "2026-03-13T00:00:00"
        );
    }

    #[test]
    fn nonsense_is_refused() {
        for schedule in [
            "",
            "* * * *",
            "60 * * * *",
            "* * 0 * *",
            "a * * * *",
            "*/0 * * * *",
            "5-2 * * * *",
        ] {
            assert!(Schedule::parse(schedule).is_err(), "{schedule}");
        }
    }
}
