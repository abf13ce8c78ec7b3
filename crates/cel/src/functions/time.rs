//! Parts of timestamps and durations.

use jiff::tz::TimeZone;

use super::{Row, timestamp::Civil};
use crate::value::{Error, Result, Value};

pub(super) const ROWS: &[Row] = &[
    (
        "getFullYear",
        |args| part(args, Civil::year),
        &[
            (".timestamp_to_year", "timestamp -> int"),
            (".timestamp_to_year_with_tz", "timestamp, string -> int"),
        ],
    ),
    (
        "getMonth",
        |args| part(args, |t| i64::from(t.time.month()) - 1),
        &[
            (".timestamp_to_month", "timestamp -> int"),
            (".timestamp_to_month_with_tz", "timestamp, string -> int"),
        ],
    ),
    (
        "getDayOfYear",
        |args| part(args, |t| i64::from(t.time.day_of_year()) - 1),
        &[
            (".timestamp_to_day_of_year", "timestamp -> int"),
            (
                ".timestamp_to_day_of_year_with_tz",
                "timestamp, string -> int",
            ),
        ],
    ),
    (
        "getDayOfMonth",
        |args| part(args, |t| i64::from(t.time.day()) - 1),
        &[
            (".timestamp_to_day_of_month", "timestamp -> int"),
            (
                ".timestamp_to_day_of_month_with_tz",
                "timestamp, string -> int",
            ),
        ],
    ),
    (
        "getDate",
        |args| part(args, |t| t.time.day().into()),
        &[
            (".timestamp_to_day_of_month_1_based", "timestamp -> int"),
            (
                ".timestamp_to_day_of_month_1_based_with_tz",
                "timestamp, string -> int",
            ),
        ],
    ),
    (
        "getDayOfWeek",
        |args| part(args, |t| t.time.weekday().to_sunday_zero_offset().into()),
        &[
            (".timestamp_to_day_of_week", "timestamp -> int"),
            (
                ".timestamp_to_day_of_week_with_tz",
                "timestamp, string -> int",
            ),
        ],
    ),
    (
        "getHours",
        |args| part_or(args, |t| t.time.hour().into(), 3_600_000_000_000, i64::MAX),
        &[
            (".timestamp_to_hours", "timestamp -> int"),
            (".timestamp_to_hours_with_tz", "timestamp, string -> int"),
            (".duration_to_hours", "duration -> int"),
        ],
    ),
    (
        "getMinutes",
        |args| part_or(args, |t| t.time.minute().into(), 60_000_000_000, i64::MAX),
        &[
            (".timestamp_to_minutes", "timestamp -> int"),
            (".timestamp_to_minutes_with_tz", "timestamp, string -> int"),
            (".duration_to_minutes", "duration -> int"),
        ],
    ),
    (
        "getSeconds",
        |args| part_or(args, |t| t.time.second().into(), 1_000_000_000, i64::MAX),
        &[
            (".timestamp_to_seconds", "timestamp -> int"),
            (".timestamp_to_seconds_tz", "timestamp, string -> int"),
            (".duration_to_seconds", "duration -> int"),
        ],
    ),
    (
        "getMilliseconds",
        |args| part_or(args, |t| t.time.millisecond().into(), 1_000_000, i64::MAX),
        &[
            (".timestamp_to_milliseconds", "timestamp -> int"),
            (
                ".timestamp_to_milliseconds_with_tz",
                "timestamp, string -> int",
            ),
            (".duration_to_milliseconds", "duration -> int"),
        ],
    ),
];

/// A part of a timestamp, in UTC or in the zone of the second argument.
fn part<'a>(args: &[Value<'a>], of: fn(&Civil) -> i64) -> Result<Value<'a>> {
    let Some(Value::Timestamp(time)) = args.first() else {
        return Err(Error::no_such_overload());
    };
    let zone = match args.get(1) {
        None => TimeZone::UTC,
        Some(Value::String(name)) => zone(name)?,
        Some(_) => return Err(Error::no_such_overload()),
    };
    Ok(Value::Int(of(&time.in_zone(&zone)?)))
}

/// The same for a duration: whole units, the remainder below `wrap`.
fn part_or<'a>(
    args: &[Value<'a>],
    of: fn(&Civil) -> i64,
    unit: i64,
    wrap: i64,
) -> Result<Value<'a>> {
    match args {
        [Value::Duration(nanos)] => Ok(Value::Int(nanos / unit % wrap)),
        _ => part(args, of),
    }
}

/// A time zone by name, or an offset such as `-08:00`. The local zone is UTC.
fn zone(name: &str) -> Result<TimeZone> {
    if name == "Local" {
        return Ok(TimeZone::UTC);
    }
    if name.contains('\0') && !name.contains(':') {
        return Err(Error::new("invalid argument"));
    }
    let unknown = || Error::new(format!("unknown time zone {name}"));
    let Some((hours, minutes)) = name.split_once(':') else {
        return match name {
            "" | "UTC" => Ok(TimeZone::UTC),
            _ => TimeZone::get(name).map_err(|_| unknown()),
        };
    };
    let negative = hours.starts_with('-');
    let whole = |text: &str| {
        let quoted = machinery::text::quote(text);
        let why = format!("strconv.Atoi: parsing {quoted}: invalid syntax");
        text.parse::<i32>().map_err(|_| Error::new(why))
    };
    let (hours, minutes) = (whole(hours)?, whole(minutes)?);
    let minutes = if negative { -minutes } else { minutes };
    let offset = jiff::tz::Offset::from_seconds(hours * 3600 + minutes * 60);
    Ok(TimeZone::fixed(offset.map_err(|_| unknown())?))
}
