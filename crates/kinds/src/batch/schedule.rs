//! When a CronJob runs: five fields or a descriptor, and the zone they are meant in.

use machinery::duration;
use machinery::text::quote;

/// The names and the smallest and largest number of a field.
struct Field {
    low: u64,
    high: u64,
    names: &'static [&'static str],
}

const FIELDS: [Field; 5] = [
    Field {
        low: 0,
        high: 59,
        names: &[],
    },
    Field {
        low: 0,
        high: 23,
        names: &[],
    },
    Field {
        low: 1,
        high: 31,
        names: &[],
    },
    Field {
        low: 1,
        high: 12,
        names: &[
            "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
        ],
    },
    Field {
        low: 0,
        high: 6,
        names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
    },
];

const DESCRIPTORS: [&str; 7] = [
    "@yearly",
    "@annually",
    "@monthly",
    "@weekly",
    "@daily",
    "@midnight",
    "@hourly",
];

/// What is wrong with a schedule.
pub(super) fn check(schedule: &str) -> Result<(), String> {
    let mut schedule = schedule;
    if schedule.starts_with("TZ=") || schedule.starts_with("CRON_TZ=") {
        let (zone, rest) = schedule
            .split_once(' ')
            .ok_or("invalid schedule format: runtime error: slice bounds out of range [:-1]")?;
        let zone = zone.split_once('=').map_or("", |(_, zone)| zone);
        if !zone.is_empty() && !zone_exists(zone) {
            return Err(format!(
                "provided bad location {zone}: unknown time zone {zone}"
            ));
        }
        schedule = rest.trim();
    }
    if schedule.starts_with('@') {
        return descriptor(schedule);
    }
    let fields: Vec<&str> = schedule.split_whitespace().collect();
    if fields.len() != FIELDS.len() {
        return Err(format!(
            "expected exactly 5 fields, found {}: [{}]",
            fields.len(),
            fields.join(" ")
        ));
    }
    for (text, field) in fields.iter().zip(&FIELDS) {
        for part in text.split(',').filter(|p| !p.is_empty()) {
            range(part, field)?;
        }
    }
    Ok(())
}

fn descriptor(text: &str) -> Result<(), String> {
    if DESCRIPTORS.contains(&text) {
        return Ok(());
    }
    match text.strip_prefix("@every ") {
        Some(every) => duration::parse(every)
            .map(drop)
            .map_err(|why| format!("failed to parse duration {text}: time: {why}")),
        None => Err(format!("unrecognized descriptor: {text}")),
    }
}

fn range(part: &str, field: &Field) -> Result<(), String> {
    let pieces: Vec<&str> = part.split('/').collect();
    let ends: Vec<&str> = pieces[0].split('-').collect();
    let (start, mut end) = if matches!(ends[0], "*" | "?") {
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
    if step == 0 {
        return Err(format!("step of range should be a positive number: {part}"));
    }
    Ok(())
}

fn number_or_name(text: &str, field: &Field) -> Result<u64, String> {
    let lower = text.to_lowercase();
    match field.names.iter().position(|n| *n == lower) {
        Some(i) => Ok(field.low + i as u64),
        None => number(text),
    }
}

fn number(text: &str) -> Result<u64, String> {
    let quoted = quote(text);
    let parsed: i64 = text.parse().map_err(|e: std::num::ParseIntError| {
        use std::num::IntErrorKind::{NegOverflow, PosOverflow};
        let why = match e.kind() {
            PosOverflow | NegOverflow => "value out of range",
            _ => "invalid syntax",
        };
        format!("failed to parse int from {text}: strconv.Atoi: parsing {quoted}: {why}")
    })?;
    u64::try_from(parsed).map_err(|_| format!("negative number ({parsed}) not allowed: {text}"))
}

/// What is wrong with the name of a time zone.
pub(super) fn check_zone(name: &str) -> Vec<String> {
    if name.is_empty() {
        return vec!["timeZone must be nil or non-empty string".to_owned()];
    }
    let sound = |part: &str| {
        (1..=14).contains(&part.len())
            && part != "."
            && part != ".."
            && !part.starts_with('-')
            && part
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b".-_+".contains(&b))
    };
    let unknown = format!("unknown time zone {name}");
    if !name.split('/').all(sound) {
        return vec![unknown];
    }
    let mut found = Vec::new();
    if name.eq_ignore_ascii_case("local") {
        found.push(
            "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"
                .to_owned(),
        );
        if name == "Local" {
            return found;
        }
    }
    if !zone_exists(name) {
        found.push(unknown);
    }
    found
}

/// Zones come from the machine's database, as they do for the controller that runs the jobs.
fn zone_exists(name: &str) -> bool {
    name == "UTC"
        || jiff::tz::db()
            .get(name)
            .is_ok_and(|zone| zone.iana_name() == Some(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_are_read() {
        for good in [
            "*/5 * * * *",
            "0 0 1,15 * mon-fri",
            "@hourly",
            "@every 1h30m",
            "0 12 * jan 6",
            "TZ=UTC 0 0 * * *",
        ] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for (bad, why) in [
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
        ] {
            assert_eq!(check(bad), Err(why.to_owned()), "{bad}");
        }
    }

    #[test]
    fn zones_are_named_in_full() {
        assert_eq!(check_zone("UTC"), Vec::<String>::new());
        assert_eq!(check_zone("../x"), ["unknown time zone ../x"]);
        assert_eq!(check_zone(""), ["timeZone must be nil or non-empty string"]);
        assert!(check_zone("Local")[0].starts_with("timeZone must be an explicit time zone"));
    }
}
