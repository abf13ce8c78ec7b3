//! Quantities such as `500m`, `1.5Gi` or `1e3`, with Kubernetes' rounding and canonical form.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

const NANO: i128 = 1_000_000_000;
/// Binary quantities are cut at the largest signed 64 bit number.
const BINARY_MAX: i128 = i64::MAX as i128 * NANO;
/// Decimal ones where the arithmetic here would end; far beyond any real resource.
const DECIMAL_MAX: i128 = i128::MAX / 4096;

/// The family of suffixes that a quantity is written with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// `n u m k M G T P E`
    Decimal,
    /// `Ki Mi Gi Ti Pi Ei`
    Binary,
    /// `e3`
    Exponent,
}

/// What is wrong with a quantity, in Kubernetes' words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error(
        "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
    )]
    Format,
    #[error("unable to parse numeric part of quantity")]
    Numeric,
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

/// A fixed-point number with nine decimals. Equal quantities may print differently.
#[derive(Debug, Clone, Copy)]
pub struct Quantity {
    nanos: i128,
    format: Format,
}

impl Quantity {
    /// Zero.
    pub const ZERO: Self = Self {
        nanos: 0,
        format: Format::Decimal,
    };

    /// Whole units.
    pub fn from_value(value: i64, format: Format) -> Self {
        Self {
            nanos: i128::from(value) * NANO,
            format,
        }
    }

    /// Thousandths.
    pub fn from_millis(millis: i64) -> Self {
        Self {
            nanos: i128::from(millis) * (NANO / 1000),
            format: Format::Decimal,
        }
    }

    /// Whole units, rounded up.
    pub fn value(self) -> i64 {
        saturate(ceil_div(self.nanos, NANO))
    }

    /// Thousandths, rounded up.
    pub fn millis(self) -> i64 {
        saturate(ceil_div(self.nanos, NANO / 1000))
    }

    /// As a float, for ratios.
    pub fn to_f64(self) -> f64 {
        self.nanos as f64 / NANO as f64
    }

    /// Whether it is a whole number of units.
    pub fn is_integer(self) -> bool {
        self.nanos % NANO == 0
    }

    /// Whether it is zero.
    pub fn is_zero(self) -> bool {
        self.nanos == 0
    }

    /// Whether it is below zero.
    pub fn is_negative(self) -> bool {
        self.nanos < 0
    }

    /// The family of suffixes.
    pub fn format(self) -> Format {
        self.format
    }

    /// Rounded up to thousandths, the finest grain of a resource.
    #[must_use]
    pub fn rounded_to_millis(self) -> Self {
        let grain = NANO / 1000;
        Self {
            nanos: ceil_div(self.nanos, grain).saturating_mul(grain),
            format: self.format,
        }
    }

    /// The sum, written as the first (or as the second when the first is zero).
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let format = if self.nanos == 0 {
            other.format
        } else {
            self.format
        };
        Self {
            nanos: self.nanos.saturating_add(other.nanos),
            format,
        }
    }

    /// The difference, written as the first (or as the second when the first is zero).
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        let format = if self.nanos == 0 {
            other.format
        } else {
            self.format
        };
        Self {
            nanos: self.nanos.saturating_sub(other.nanos),
            format,
        }
    }
}

fn ceil_div(a: i128, b: i128) -> i128 {
    a.div_euclid(b) + i128::from(a.rem_euclid(b) != 0)
}

fn saturate(n: i128) -> i64 {
    n.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

/// Sign, digits before and behind the point, suffix.
struct Parts<'a> {
    negative: bool,
    whole: &'a str,
    fraction: &'a str,
    suffix: &'a str,
}

fn split(text: &str) -> Result<Parts<'_>, Error> {
    let (negative, rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let digits = |s: &str| s.bytes().take_while(u8::is_ascii_digit).count();
    let (whole, mut rest) = rest.split_at(digits(rest));
    let (mut fraction, mut lone_point) = ("", false);
    if let Some(behind) = rest.strip_prefix('.') {
        (fraction, rest) = behind.split_at(digits(behind));
        lone_point = whole.is_empty() && fraction.is_empty() && !rest.is_empty();
    } else if whole.is_empty() && !rest.is_empty() && !text.is_empty() {
        // A suffix alone still fits the pattern's second half, but not its first.
        return Err(Error::Format);
    }
    let letters = rest
        .bytes()
        .take_while(|b| b"eEinumkKMGTP".contains(b))
        .count();
    let tail = rest[letters..]
        .strip_prefix(['-', '+'])
        .unwrap_or(&rest[letters..]);
    if !tail.bytes().all(|b| b.is_ascii_digit()) {
        return Err(Error::Format);
    }
    if lone_point {
        return Err(Error::Numeric);
    }
    Ok(Parts {
        negative,
        whole,
        fraction,
        suffix: rest,
    })
}

enum Base {
    Ten(i32),
    Two(u32),
}

fn interpret(suffix: &str) -> Option<(Base, Format)> {
    Some(match suffix {
        "" => (Base::Ten(0), Format::Decimal),
        "n" => (Base::Ten(-9), Format::Decimal),
        "u" => (Base::Ten(-6), Format::Decimal),
        "m" => (Base::Ten(-3), Format::Decimal),
        "k" => (Base::Ten(3), Format::Decimal),
        "M" => (Base::Ten(6), Format::Decimal),
        "G" => (Base::Ten(9), Format::Decimal),
        "T" => (Base::Ten(12), Format::Decimal),
        "P" => (Base::Ten(15), Format::Decimal),
        "E" => (Base::Ten(18), Format::Decimal),
        "Ki" => (Base::Two(10), Format::Binary),
        "Mi" => (Base::Two(20), Format::Binary),
        "Gi" => (Base::Two(30), Format::Binary),
        "Ti" => (Base::Two(40), Format::Binary),
        "Pi" => (Base::Two(50), Format::Binary),
        "Ei" => (Base::Two(60), Format::Binary),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            (Base::Ten(exponent.parse().ok()?), Format::Exponent)
        }
    })
}

impl FromStr for Quantity {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if text.is_empty() {
            return Err(Error::Format);
        }
        let parts = split(text)?;
        let (base, mut format) = interpret(parts.suffix).ok_or(Error::Suffix)?;
        let mut nanos = match base {
            Base::Ten(exponent) => scaled(&parts, exponent.saturating_add(9), 1),
            Base::Two(shift) => scaled(&parts, 9, 1 << shift),
        };
        if format == Format::Binary {
            nanos = nanos.min(BINARY_MAX);
            if nanos > 0 && nanos < NANO {
                format = Format::Decimal;
            }
        }
        Ok(Self {
            nanos: if parts.negative { -nanos } else { nanos },
            format,
        })
    }
}

/// `whole.fraction × 10^exponent × factor`, rounded up to a whole number and cut at the largest.
fn scaled(parts: &Parts<'_>, exponent: i32, factor: i128) -> i128 {
    let mut n: i128 = 0;
    let mut rest = false;
    let mut exponent = i64::from(exponent) - parts.fraction.len() as i64;
    let digits = parts.whole.bytes().chain(parts.fraction.bytes());
    let total = parts.whole.len() + parts.fraction.len();
    for (i, digit) in digits.enumerate() {
        match n
            .checked_mul(10)
            .and_then(|n| n.checked_add(i128::from(digit - b'0')))
        {
            Some(next) if next <= DECIMAL_MAX => n = next,
            _ => {
                // Digits that no longer fit count as places; what they hold is rounded up.
                rest = true;
                exponent += (total - i) as i64;
                break;
            }
        }
    }
    if n == 0 {
        return 0;
    }
    let Some(mut n) = n.checked_mul(factor) else {
        return DECIMAL_MAX;
    };
    // Nearly always, in one step.
    if let 1..=18 = exponent {
        return match n.checked_mul(10_i128.pow(exponent as u32)) {
            Some(n) if n <= DECIMAL_MAX => n + i128::from(rest),
            _ => DECIMAL_MAX,
        };
    }
    while exponent > 0 {
        match n.checked_mul(10) {
            Some(next) if next <= DECIMAL_MAX => n = next,
            _ => return DECIMAL_MAX,
        }
        exponent -= 1;
    }
    while exponent < 0 {
        if n == 0 {
            break;
        }
        rest |= n % 10 != 0;
        n /= 10;
        exponent += 1;
    }
    n + i128::from(rest)
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        let small = self.nanos.abs() < 1024 * NANO;
        if self.format == Format::Binary && !small && self.nanos % NANO == 0 {
            let (mut n, mut power) = (self.nanos / NANO, 0);
            while n % 1024 == 0 && power < 6 {
                n /= 1024;
                power += 1;
            }
            return write!(f, "{n}{}", ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][power]);
        }
        let (mut n, mut exponent) = (self.nanos, -9);
        while n % 1000 == 0 && (exponent < 18 || self.format == Format::Exponent) {
            n /= 1000;
            exponent += 3;
        }
        match (self.format, exponent) {
            (_, 0) => write!(f, "{n}"),
            (Format::Exponent, _) => write!(f, "{n}e{exponent}"),
            _ => {
                const SUFFIXES: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
                write!(f, "{n}{}", SUFFIXES[((exponent + 9) / 3) as usize])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn canonical(text: &str) -> String {
        text.parse::<Quantity>()
            .map_or_else(|e| e.to_string(), |q| q.to_string())
    }

    #[test]
    fn the_canonical_form_is_kubernetes_own() {
        let cases = [
            ("0", "0"),
            ("1", "1"),
            ("1000m", "1"),
            ("1500m", "1500m"),
            ("0.5", "500m"),
            ("1.5", "1500m"),
            ("1024Mi", "1Gi"),
            ("1.5Gi", "1536Mi"),
            ("512Ki", "512Ki"),
            ("1000", "1k"),
            ("1e3", "1e3"),
            ("1E3", "1e3"),
            ("1E", "1E"),
            ("100e1", "1e3"),
            ("12e2", "1200"),
            ("0.1n", "1n"),
            ("-1.5", "-1500m"),
            ("+2", "2"),
            (".5", "500m"),
            ("1.", "1"),
            ("0.5Ki", "512"),
            ("100Ei", "9223372036854775807"),
            ("1000000Ki", "1000000Ki"),
            ("0.0000000001Gi", "107374183n"),
            ("123456789", "123456789"),
            ("100M", "100M"),
        ];
        for (text, expected) in cases {
            assert_eq!(canonical(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_quantity_is_refused() {
        for (text, error) in [
            ("", Error::Format),
            ("a", Error::Format),
            ("1x", Error::Format),
            ("1mm", Error::Suffix),
            ("1 ", Error::Format),
            ("1K", Error::Suffix),
            ("1e", Error::Suffix),
            ("1.2.3", Error::Format),
            ("../x", Error::Format),
            (".Mi", Error::Numeric),
        ] {
            assert_eq!(text.parse::<Quantity>().unwrap_err(), error, "{text}");
        }
    }

    #[test]
    fn values_round_up() {
        let q: Quantity = "1.0001".parse().unwrap();
        assert_eq!((q.value(), q.millis()), (2, 1001));
        let q: Quantity = "-1.5".parse().unwrap();
        assert_eq!(q.value(), -1);
        assert!("1Gi".parse::<Quantity>().unwrap() > "1G".parse().unwrap());
        let sum = "500m"
            .parse::<Quantity>()
            .unwrap()
            .plus("1".parse().unwrap());
        assert_eq!(sum.to_string(), "1500m");
    }

    proptest! {
        #[test]
        fn the_canonical_form_reads_back_as_itself(text in "[-+]?[0-9]{0,22}(\\.[0-9]{0,22})?(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|e[0-9]|E-[0-9])?") {
            if let Ok(q) = text.parse::<Quantity>() {
                let printed = q.to_string();
                let again: Quantity = printed.parse().unwrap();
                prop_assert_eq!(again, q);
                prop_assert_eq!(again.to_string(), printed);
            }
        }

        #[test]
        fn parsing_never_panics(text in "\\PC{0,12}") {
            let _ = text.parse::<Quantity>();
        }
    }
}
