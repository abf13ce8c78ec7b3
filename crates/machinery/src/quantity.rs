//! Quantities such as `500m`, `1.5Gi` or `1e3`, with Kubernetes' rounding and canonical form.
//!
//! Texts of any size have a canonical form ([`canonical`]); the arithmetic of [`Quantity`]
//! saturates at the largest 128-bit number of billionths, far beyond any real resource.

mod text;

pub use text::{MILLI, NANO as FINEST, canonical};

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

const NANO: i128 = 1_000_000_000;

/// The suffix family of a quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// `n u m k M G T P E`
    Decimal,
    /// `Ki Mi Gi Ti Pi Ei`
    Binary,
    /// `e3`
    Exponent,
}

/// Why a quantity is invalid, in Kubernetes' words.
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

    /// Billionths.
    pub fn from_nanos(nanos: i64) -> Self {
        Self {
            nanos: i128::from(nanos),
            format: Format::Decimal,
        }
    }

    /// Whole units, rounded away from zero.
    pub fn value(self) -> i64 {
        saturate(outward(self.nanos, NANO))
    }

    /// Thousandths, rounded away from zero.
    pub fn millis(self) -> i64 {
        saturate(outward(self.nanos, NANO / 1000))
    }

    /// As the scheduler and the kubelet count a resource: CPU in thousandths, others in whole units.
    pub fn units(self, resource: &str) -> i64 {
        match resource {
            "cpu" => self.millis(),
            _ => self.value(),
        }
    }

    /// As a float, for ratios.
    pub fn to_f64(self) -> f64 {
        self.nanos as f64 / NANO as f64
    }

    /// Whether it is a whole number of units.
    pub fn is_integer(self) -> bool {
        // A saturated value has no fraction.
        self.nanos % NANO == 0 || self.nanos.unsigned_abs() >= i128::MAX.unsigned_abs()
    }

    /// Whether it is zero.
    pub fn is_zero(self) -> bool {
        self.nanos == 0
    }

    /// Whether it is below zero.
    pub fn is_negative(self) -> bool {
        self.nanos < 0
    }

    /// The suffix family.
    pub fn format(self) -> Format {
        self.format
    }

    /// The sum, in the format of the first (or of the second if the first is zero).
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

    /// The difference, in the format of the first (or of the second if the first is zero).
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

/// [`Quantity::value`] of a text; `None` if it is invalid.
pub fn value(text: &str) -> Option<i64> {
    text.parse().ok().map(Quantity::value)
}

/// [`Quantity::millis`] of a text; `None` if it is invalid.
pub fn millis(text: &str) -> Option<i64> {
    text.parse().ok().map(Quantity::millis)
}

/// [`Quantity::units`] of a text; `None` if it is invalid.
pub fn units(text: &str, resource: &str) -> Option<i64> {
    let quantity: Quantity = text.parse().ok()?;
    Some(quantity.units(resource))
}

/// The quotient, rounded away from zero.
fn outward(a: i128, b: i128) -> i128 {
    a / b + (a % b).signum()
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

impl FromStr for Quantity {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (amount, format) = text::read(text)?;
        Ok(Self {
            nanos: amount.nanos(),
            format,
        })
    }
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

    #[test]
    fn quantities_become_whole_numbers_rounded_up() {
        let cases = [
            ("100m", Some(100), Some(1)),
            ("1", Some(1000), Some(1)),
            ("1.5", Some(1500), Some(2)),
            ("64Mi", Some(67_108_864_000), Some(67_108_864)),
            ("1e3", Some(1_000_000), Some(1000)),
            ("0.5Gi", Some(536_870_912_000), Some(536_870_912)),
            ("1k", Some(1_000_000), Some(1000)),
            ("x", None, None),
            ("", None, None),
        ];
        for (text, in_millis, whole) in cases {
            assert_eq!((millis(text), value(text)), (in_millis, whole), "{text}");
            let (cpu, memory) = (units(text, "cpu"), units(text, "memory"));
            assert_eq!((cpu, memory), (in_millis, whole), "{text}");
        }
    }

    #[test]
    fn quantities_are_printed_in_canonical_form() {
        for (text, expected) in [
            ("1000m", "1"),
            ("0.5", "500m"),
            ("1.5Gi", "1536Mi"),
            ("1E3", "1e3"),
            ("12e2", "1200"),
            ("0.1n", "1n"),
            ("-1.5", "-1500m"),
            ("+2", "2"),
            ("0.5Ki", "512"),
            ("100Ei", "9223372036854775807"),
            ("0.0000000001Gi", "107374183n"),
            ("m", "0"),
            // The saturation limit.
            ("1e300", "170141183460469231731687303715884105727e-9"),
        ] {
            assert_eq!(
                text.parse::<Quantity>().unwrap().to_string(),
                expected,
                "{text}"
            );
        }
    }

    #[test]
    fn values_round_away_from_zero() {
        let q: Quantity = "1.0001".parse().unwrap();
        assert_eq!((q.value(), q.millis()), (2, 1001));
        let q: Quantity = "-1.5".parse().unwrap();
        assert_eq!(q.value(), -2);
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
