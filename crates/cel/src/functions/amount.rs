//! A quantity as Kubernetes represents it: a 64-bit number with a power of ten if the text fits
//! into one, and a decimal of any size otherwise. Only the former can be converted to an integer,
//! and only without a fraction: `1000m` and `1.5Mi` cannot.

use std::hash::{DefaultHasher, Hash, Hasher};

use machinery::quantity::{Error, Format, Quantity};

/// Decimal digits that always fit into 64 bits.
const DIGITS: i32 = 18;
/// The same for numbers with binary suffixes, as Kubernetes counts them.
const BINARY_DIGITS: i32 = 15;
/// The finest precision: billionths.
const FINEST: i32 = -9;

#[derive(Debug, Clone, Copy)]
pub struct Amount {
    pub quantity: Quantity,
    number: Option<Number>,
    /// All digits, if they fit.
    decimal: Option<Decimal>,
    is_calculated: bool,
    /// A hash of the text that upstream keeps beside the number: that of the parsed quantity, if it is canonical.
    kept_text: Option<u64>,
}

/// `value` times ten to the power of `scale`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Number {
    value: i64,
    scale: i32,
}

/// `digits` times ten to the power of `exponent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Decimal {
    digits: i128,
    exponent: i32,
}

impl PartialEq for Amount {
    fn eq(&self, other: &Self) -> bool {
        self.quantity == other.quantity
    }
}

impl Amount {
    pub fn parse(text: &str) -> Result<Self, Error> {
        let quantity = text.parse()?;
        let number = Number::parse(text);
        Ok(Self {
            quantity,
            number,
            decimal: Decimal::parse(text),
            is_calculated: false,
            kept_text: is_kept(text, number).then(|| hash(text)),
        })
    }

    /// Whether it is a sum or a difference.
    pub fn is_calculated(self) -> bool {
        self.is_calculated
    }

    /// Whether upstream represents both alike: `1` and `1000m` are equal, but have other digits.
    pub fn is_identical(self, other: Self) -> bool {
        let format = |amount: Self| amount.quantity.format();
        self.is_calculated == other.is_calculated
            && self.kept_text == other.kept_text
            && format(self) == format(other)
            && self.number == other.number
            && (self.number.is_some() || self.decimal == other.decimal)
            && self.quantity == other.quantity
    }

    pub fn from_int(value: i64) -> Self {
        let number = Some(Number { value, scale: 0 });
        let quantity = Quantity::from_value(value, Format::Decimal);
        Self {
            quantity,
            number,
            decimal: Some(Decimal::new(value.into(), 0)),
            is_calculated: false,
            kept_text: None,
        }
    }

    /// As a float, computed as upstream does: the digits as a whole number, times a power of ten.
    pub fn approximate(self) -> f64 {
        let Some(Decimal { digits, exponent }) = self.exact() else {
            return self.quantity.to_f64();
        };
        match exponent {
            0 => digits as f64,
            // As text, a power of ten is rounded correctly.
            _ => format!("1e{exponent}").parse().map_or_else(
                |_| self.quantity.to_f64(),
                |power: f64| digits as f64 * power,
            ),
        }
    }

    fn exact(self) -> Option<Decimal> {
        match self.number {
            Some(number) => Some(Decimal::new(number.value.into(), number.scale)),
            None => self.decimal,
        }
    }

    pub fn integer(self) -> Option<i64> {
        let Number { value, scale } = self.number?;
        match scale {
            ..0 => None,
            scale => raised(value, scale),
        }
    }

    pub fn plus(self, other: Self) -> Self {
        Self {
            quantity: self.quantity.plus(other.quantity),
            number: self.number.zip(other.number).and_then(|(a, b)| a.plus(b)),
            decimal: self.exact().zip(other.exact()).and_then(|(a, b)| a.plus(b)),
            is_calculated: true,
            kept_text: None,
        }
    }

    pub fn minus(self, other: Self) -> Self {
        // As upstream: negating the smallest 64-bit number gives itself.
        let difference = |a: Number, b: Number| {
            let value = b.value.wrapping_neg();
            a.plus(Number { value, ..b })
        };
        let number = self.number.zip(other.number);
        let number = number.and_then(|(a, b)| difference(a, b));
        let is_smallest = other.number.is_some_and(|b| b.value == i64::MIN);
        Self {
            quantity: match number {
                Some(_) if is_smallest => self.quantity.plus(other.quantity),
                _ => self.quantity.minus(other.quantity),
            },
            number,
            decimal: self
                .exact()
                .zip(other.exact())
                .and_then(|(a, b)| a.plus(Decimal::new(b.digits.checked_neg()?, b.exponent))),
            is_calculated: true,
            kept_text: None,
        }
    }
}

impl Decimal {
    fn new(digits: i128, exponent: i32) -> Self {
        Self { digits, exponent }
    }

    /// Parses a valid quantity; `None` if it has too many digits, or if it is rounded. As upstream,
    /// all but zero has the finest power of ten.
    fn parse(text: &str) -> Option<Self> {
        let (digits, suffix) = split_suffix(text);
        let (whole, parts) = digits.split_once('.').unwrap_or((digits, ""));
        let (factor, exponent) = match suffix.strip_suffix('i') {
            Some(binary) => (1_i128 << (10 * ("KMGTPE".find(binary)? + 1)), 0),
            None => (1, exponent(suffix)?),
        };
        let exponent = exponent.checked_sub(i32::try_from(parts.len()).ok()?)?;
        if exponent < FINEST {
            return None;
        }
        let digits: i128 = format!("{whole}{parts}").parse().ok()?;
        let digits = digits.checked_mul(factor)?;
        let digits = if text.starts_with('-') {
            -digits
        } else {
            digits
        };
        if digits == 0 {
            return Some(Self::new(0, exponent));
        }
        let finest = 10_i128.checked_pow(u32::try_from(exponent - FINEST).ok()?)?;
        Some(Self::new(digits.checked_mul(finest)?, FINEST))
    }

    /// The sum, with the finer power of ten.
    fn plus(self, other: Self) -> Option<Self> {
        let exponent = self.exponent.min(other.exponent);
        let at = |decimal: Self| {
            let shift = u32::try_from(decimal.exponent - exponent).ok()?;
            decimal.digits.checked_mul(10_i128.checked_pow(shift)?)
        };
        Some(Self::new(at(self)?.checked_add(at(other)?)?, exponent))
    }
}

/// Whether upstream keeps the text of a parsed quantity: only where it looks canonical.
fn is_kept(text: &str, number: Option<Number>) -> bool {
    if text == "0" {
        return true;
    }
    let Some(Number { scale, .. }) = number else {
        return false;
    };
    let (digits, suffix) = split_suffix(text);
    let digits = digits.replace('.', "");
    let digits = match digits.trim_start_matches('0') {
        "" => "0",
        // Zeros before the point are dropped, but one stays.
        _ if text.contains("0.") && digits.starts_with('0') => &digits,
        digits => digits,
    };
    match suffix.ends_with('i') {
        true => digits.parse::<u64>().is_ok_and(|value| value & 7 != 0),
        false => scale % 3 == 0 && !digits.ends_with("000") && !digits.starts_with('0'),
    }
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// A valid quantity without its sign, as digits and suffix.
fn split_suffix(text: &str) -> (&str, &str) {
    let unsigned = text.trim_start_matches(['+', '-']);
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.');
    unsigned.split_at(end.unwrap_or(unsigned.len()))
}

fn raised(value: i64, scale: i32) -> Option<i64> {
    let factor = 10_i64.checked_pow(u32::try_from(scale).ok()?);
    match value {
        0 => Some(0),
        value => value.checked_mul(factor?),
    }
}

impl Number {
    /// Parses a valid quantity.
    fn parse(text: &str) -> Option<Self> {
        let (digits, suffix) = split_suffix(text);
        let (whole, parts) = digits.split_once('.').unwrap_or((digits, ""));
        let whole = match whole.trim_start_matches('0') {
            "" => "0",
            whole => whole,
        };
        let length = i32::try_from(whole.len() + parts.len()).ok()?;
        let (factor, scale, room) = match suffix.strip_suffix('i') {
            Some(_) if !parts.is_empty() => return None,
            Some(binary) => {
                let step = "KMGTPE".find(binary)?;
                let exponent = 10 * (i32::try_from(step).ok()? + 1);
                let room = BINARY_DIGITS - length - exponent * 3 / 10 - 1;
                (1_i64.checked_shl(exponent.try_into().ok()?)?, 0, room)
            }
            None => (1, exponent(suffix)?, DIGITS - length),
        };
        let scale = scale - i32::try_from(parts.len()).ok()?;
        if room < 0 || scale < FINEST {
            return None;
        }
        let value: i64 = format!("{whole}{parts}").parse().ok()?;
        let value = value.checked_mul(factor)?;
        let value = if text.starts_with('-') { -value } else { value };
        Some(Self { value, scale })
    }

    fn plus(self, other: Self) -> Option<Self> {
        let scale = self.scale.min(other.scale);
        match (self.value, other.value) {
            (_, 0) => Some(self),
            (0, _) => Some(other),
            (a, b) => {
                let a = raised(a, self.scale - scale)?;
                let value = a.checked_add(raised(b, other.scale - scale)?)?;
                Some(Self { value, scale })
            }
        }
    }
}

/// The power of ten of a decimal suffix.
fn exponent(suffix: &str) -> Option<i32> {
    Some(match suffix {
        "n" => -9,
        "u" => -6,
        "m" => -3,
        "" => 0,
        "k" => 3,
        "M" => 6,
        "G" => 9,
        "T" => 12,
        "P" => 15,
        "E" => 18,
        suffix => suffix.trim_start_matches(['e', 'E']).parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantity_that_is_whole_and_fits_is_an_integer() {
        for (text, expected) in [
            ("0", Some(0)),
            ("007", Some(7)),
            ("-50k", Some(-50_000)),
            ("1e3", Some(1000)),
            ("1E", Some(1_000_000_000_000_000_000)),
            ("10E", None),
            ("1Mi", Some(1 << 20)),
            ("1.5Mi", None),
            ("1000m", None),
            ("1.0", None),
            ("1.5k", Some(1500)),
            ("999999999999999999", Some(999_999_999_999_999_999)),
            ("9223372036854775807", None),
            ("1e-1", None),
        ] {
            let amount = Amount::parse(text).unwrap();
            assert_eq!(amount.integer(), expected, "{text}");
        }
    }

    #[test]
    fn sums_keep_the_finer_power_of_ten() {
        let sum = |a: &str, b: &str| {
            let (a, b) = (Amount::parse(a).unwrap(), Amount::parse(b).unwrap());
            (a.plus(b).integer(), a.minus(b).integer())
        };
        assert_eq!(sum("1k", "5"), (Some(1005), Some(995)));
        assert_eq!(sum("1", "1000m"), (None, None));
        assert_eq!(sum("1", "0m"), (Some(1), Some(1)));
        assert_eq!(sum("1.5Mi", "1"), (None, None));
    }
}
