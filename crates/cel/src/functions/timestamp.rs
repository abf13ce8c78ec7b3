//! Timestamps: RFC 3339 text, and calendar fields in a time zone. Years from 1 to 9999 are
//! supported, slightly more than jiff's instants.

use std::cmp::Ordering;

use jiff::{SignedDuration, Timestamp as Instant, civil::DateTime, tz::TimeZone};

use crate::value::{Error, Result};

const NANOS: i128 = 1_000_000_000;
/// The range of timestamps: 0001-01-01 to 9999-12-31 in seconds.
const FIRST_SECOND: i64 = -62_135_596_800;
const LAST_SECOND: i64 = 253_402_300_799;
const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);

/// Go's zero time.
pub(super) const FIRST: Timestamp = Timestamp {
    seconds: FIRST_SECOND,
    nanos: 0,
    offset: 0,
};
/// Seconds of 400 years, the period of the calendar.
const CYCLE: i64 = 146_097 * 86_400;

/// A date and time in a zone.
pub(super) struct Civil {
    pub(super) time: DateTime,
    /// Years outside of the calendar's range: to be added to those of `time`.
    beyond: i64,
}

impl Civil {
    pub(super) fn year(&self) -> i64 {
        i64::from(self.time.year()) + self.beyond
    }
}

/// A point in time, in UTC.
#[derive(Debug, Clone, Copy)]
pub struct Timestamp {
    pub seconds: i64,
    pub nanos: u32,
    /// The offset from UTC, in seconds, that it was written with. Only for display.
    pub offset: i32,
}

impl PartialEq for Timestamp {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Timestamp {}

impl PartialOrd for Timestamp {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timestamp {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.seconds, self.nanos).cmp(&(other.seconds, other.nanos))
    }
}

impl Timestamp {
    pub(super) fn nanos_since_epoch(self) -> i128 {
        i128::from(self.seconds) * NANOS + i128::from(self.nanos)
    }

    pub(super) fn from_nanos(nanos: i128) -> Result<Self> {
        let overflow = || Error::new("timestamp overflow");
        let seconds = i64::try_from(nanos.div_euclid(NANOS)).map_err(|_| overflow())?;
        if !is_in_range(seconds) {
            return Err(overflow());
        }
        Ok(Self {
            seconds,
            nanos: nanos.rem_euclid(NANOS) as u32,
            offset: 0,
        })
    }

    /// The same time, displayed with another offset from UTC in seconds.
    pub(super) fn with_offset(self, offset: i32) -> Self {
        Self { offset, ..self }
    }

    /// The calendar at an offset from UTC.
    fn civil(self, offset: i32) -> Result<DateTime> {
        let since = SignedDuration::new(self.seconds + i64::from(offset), self.nanos as i32);
        let civil = EPOCH.checked_add(since);
        civil.map_err(|_| Error::new("timestamp overflow"))
    }

    /// The calendar in a zone.
    pub(super) fn in_zone(self, zone: &TimeZone) -> Result<Civil> {
        // Outside of jiff's range, the offset of its first or last instant applies.
        let instant = Instant::new(self.seconds, self.nanos as i32);
        let instant = instant.unwrap_or(match self.seconds < 0 {
            true => Instant::MIN,
            false => Instant::MAX,
        });
        let offset = zone.to_offset(instant).seconds();
        if let Ok(time) = self.civil(offset) {
            return Ok(Civil { time, beyond: 0 });
        }
        let earlier = Self {
            seconds: self.seconds - CYCLE,
            ..self
        };
        let time = earlier.civil(offset)?;
        Ok(Civil { time, beyond: 400 })
    }
}

/// Parses an RFC 3339 time: a date, `T`, a time with an optional fraction, and a zone.
/// Whether a timestamp can have these seconds since 1970.
pub(crate) fn is_in_range(seconds: i64) -> bool {
    (FIRST_SECOND..=LAST_SECOND).contains(&seconds)
}

pub(crate) fn parse(text: &str) -> Result<Timestamp> {
    let invalid = || Error::new(format!("invalid timestamp {text:?}"));
    let (local, offset) = match text.strip_suffix('Z') {
        Some(local) => (local, 0),
        None => {
            let at = text.len().checked_sub(6).ok_or_else(invalid)?;
            let (local, zone) = text.split_at_checked(at).ok_or_else(invalid)?;
            (local, offset(zone).ok_or_else(invalid)?)
        }
    };
    // The hour may have one digit, the other fields may not.
    let padded;
    let local = match local.as_bytes().get(12) {
        Some(b':') => {
            padded = format!("{}0{}", &local.get(..11).ok_or_else(invalid)?, &local[11..]);
            &padded
        }
        _ => local,
    };
    let bytes = local.as_bytes();
    let shape = |(at, byte): (usize, &u8)| match at {
        4 | 7 => *byte == b'-',
        10 => *byte == b'T',
        13 | 16 => *byte == b':',
        19 => matches!(byte, b'.' | b','),
        _ => byte.is_ascii_digit(),
    };
    if bytes.len() < 19 || bytes.len() == 20 || !bytes.iter().enumerate().all(shape) {
        return Err(invalid());
    }
    let number = |from: usize, to: usize| local[from..to].parse::<i16>().unwrap_or(-1);
    let small = |from: usize| i8::try_from(number(from, from + 2)).unwrap_or(-1);
    // Digits beyond nanoseconds are dropped.
    let fraction = local.get(20..).unwrap_or_default();
    let nanos = format!("{:0<9.9}", fraction).parse().unwrap_or(0);
    let civil = DateTime::new(
        number(0, 4),
        small(5),
        small(8),
        small(11),
        small(14),
        small(17),
        nanos,
    );
    let since = civil.map_err(|_| invalid())?.duration_since(EPOCH);
    let nanos = since.as_nanos() - i128::from(offset) * NANOS;
    Ok(Timestamp::from_nanos(nanos)?.with_offset(offset))
}

/// `+05:30` in seconds.
fn offset(zone: &str) -> Option<i32> {
    let bytes = zone.as_bytes();
    let sign = match bytes[0] {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let digits = [1, 2, 4, 5].iter().all(|at| bytes[*at].is_ascii_digit());
    let (hours, minutes) = (zone.get(1..3)?, zone.get(4..6)?);
    let (hours, minutes): (i32, i32) = (hours.parse().ok()?, minutes.parse().ok()?);
    let valid = digits && bytes[3] == b':' && hours <= 24 && minutes < 60;
    valid.then_some(sign * (hours * 3600 + minutes * 60))
}

/// RFC 3339 with as many fractional digits as needed.
pub(crate) fn text(time: Timestamp) -> String {
    let Ok(civil) = time.civil(time.offset) else {
        return format!("{}s", time.seconds);
    };
    let fraction = match time.nanos {
        0 => String::new(),
        nanos => format!(".{}", format!("{nanos:09}").trim_end_matches('0')),
    };
    let zone = match time.offset / 60 {
        0 => "Z".to_owned(),
        minutes => {
            let sign = if minutes < 0 { '-' } else { '+' };
            let minutes = minutes.abs();
            format!("{sign}{:02}:{:02}", minutes / 60, minutes % 60)
        }
    };
    format!("{}{fraction}{zone}", civil.strftime("%Y-%m-%dT%H:%M:%S"))
}
