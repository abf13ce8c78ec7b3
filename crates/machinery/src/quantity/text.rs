//! The text of a quantity: parsing and canonical form, for numbers of any length.
//!
//! Numbers of up to eighteen digits are read as 64-bit integers; longer ones, ones finer than a
//! billionth, and binary numbers with a fraction are kept as decimal digits.

use std::borrow::Cow;

use super::{Error, Format};

/// The power of ten of a thousandth.
pub const MILLI: i32 = -3;
/// The power of ten of a billionth, the finest precision of a quantity.
pub const NANO: i32 = -9;
/// Numbers of up to this many digits are read as 64-bit integers.
const DIGITS: usize = 18;

/// A parsed number.
pub(super) enum Amount {
    /// `value × 10^scale`. Some texts are kept as they are, because they are (nearly) canonical.
    Small {
        value: i64,
        scale: i32,
        kept: bool,
    },
    Large(Decimal),
}

/// `±digits × 10^exponent`; empty for zero, without leading zeros.
pub(super) struct Decimal {
    negative: bool,
    digits: Vec<u8>,
    exponent: i64,
}

/// The canonical form of a quantity, rounded away from zero to `10^finest`; canonical texts are
/// returned unchanged.
pub fn canonical(text: &str, finest: i32) -> Result<Cow<'_, str>, Error> {
    let (amount, format) = read(text)?;
    Ok(match amount {
        Amount::Small { scale, kept, .. } if kept && scale >= finest => Cow::Borrowed(text),
        Amount::Small { value, scale, .. } => {
            let (value, scale) = match finest.checked_sub(scale) {
                Some(places @ 1..) => {
                    let grain = 10_i64.pow(places.unsigned_abs());
                    (value / grain + (value % grain).signum(), finest)
                }
                _ => (value, scale),
            };
            show(value, scale, format).into()
        }
        Amount::Large(mut number) => {
            number.round(finest.into());
            number.show(format).into()
        }
    })
}

/// Sign, digits before and after the point, suffix.
struct Parts<'a> {
    negative: bool,
    /// Without leading zeros.
    whole: &'a str,
    fraction: &'a str,
    suffix: &'a str,
    /// Whether there is any digit, or only a sign.
    number: bool,
}

fn split(text: &str) -> Result<Parts<'_>, Error> {
    let (negative, rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let digits = |s: &str| s.bytes().take_while(u8::is_ascii_digit).count();
    let significant = rest.trim_start_matches('0');
    let mut number = significant.len() < rest.len() || rest.is_empty();
    let (whole, mut rest) = significant.split_at(digits(significant));
    let mut fraction = "";
    if let Some(behind) = rest.strip_prefix('.') {
        (fraction, rest) = behind.split_at(digits(behind));
    }
    number |= !whole.is_empty() || !fraction.is_empty();
    let letters = rest
        .bytes()
        .take_while(|b| b"eEinumkKMGTP".contains(b))
        .count();
    let tail = &rest[letters..];
    let tail = tail.strip_prefix(['-', '+']).unwrap_or(tail);
    if !tail.bytes().all(|b| b.is_ascii_digit()) {
        return Err(Error::Format);
    }
    Ok(Parts {
        negative,
        whole,
        fraction,
        suffix: rest,
        number,
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
            let exponent: i64 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            // Go truncates it to 32 bits in the same way.
            (Base::Ten(exponent as i32), Format::Exponent)
        }
    })
}

pub(super) fn read(text: &str) -> Result<(Amount, Format), Error> {
    if text.is_empty() {
        return Err(Error::Format);
    }
    let parts = split(text)?;
    let (base, format) = interpret(parts.suffix).ok_or(Error::Suffix)?;
    if let Some(small) = small(&parts, &base) {
        return Ok((small, format));
    }
    if !parts.number {
        return Err(Error::Numeric);
    }
    let mut number = Decimal::new(&parts);
    match base {
        Base::Ten(exponent) => {
            number.exponent += i64::from(exponent);
            number.round(NANO.into());
            Ok((Amount::Large(number), format))
        }
        Base::Two(shift) => {
            number.shift(shift);
            number.round(NANO.into());
            Ok(match number.integer() {
                // Binary numbers saturate at 64 bits.
                Some(None) => {
                    let value = if parts.negative { -i64::MAX } else { i64::MAX };
                    (integer(value), format)
                }
                Some(Some(value)) => (integer(value), format),
                None if number.magnitude() <= 0 => (Amount::Large(number), Format::Decimal),
                None => (Amount::Large(number), format),
            })
        }
    }
}

fn integer(value: i64) -> Amount {
    Amount::Small {
        value,
        scale: 0,
        kept: false,
    }
}

/// Values that fit 64 bits, which is nearly all.
fn small(parts: &Parts<'_>, base: &Base) -> Option<Amount> {
    let digits = parts.whole.len().max(1) + parts.fraction.len();
    let bytes = || parts.whole.bytes().chain(parts.fraction.bytes());
    let number = || bytes().fold(0_i64, |n, digit| n * 10 + i64::from(digit - b'0'));
    let (value, scale, kept) = match *base {
        Base::Ten(exponent) => {
            // Wraps as in Go.
            let scale = exponent.wrapping_sub(parts.fraction.len() as i32);
            if digits > DIGITS || scale < NANO {
                return None;
            }
            let canonical =
                scale % 3 == 0 && !parts.whole.is_empty() && !bytes().rev().take(3).eq(*b"000");
            (number(), scale, canonical)
        }
        Base::Two(shift) => {
            // Upstream's estimate of the digits that a power of 1024 needs, of fifteen.
            if !parts.fraction.is_empty() || digits + (shift as usize) * 3 / 10 > 14 {
                return None;
            }
            let number = number();
            (number << shift, 0, number % 8 != 0)
        }
    };
    Some(Amount::Small {
        value: if parts.negative { -value } else { value },
        scale,
        kept,
    })
}

/// The canonical form of `value × 10^scale`.
fn show(value: i64, scale: i32, format: Format) -> String {
    if value == 0 {
        return "0".to_owned();
    }
    if format == Format::Binary && scale == 0 && !(-1023..=1023).contains(&value) {
        let (mut value, mut power) = (value, 0);
        while value % 1024 == 0 {
            value /= 1024;
            power += 1;
        }
        const SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
        return format!("{value}{}", SUFFIXES[power]);
    }
    let (mut value, mut exponent) = (i128::from(value), i64::from(scale));
    while value % 10 == 0 {
        value /= 10;
        exponent += 1;
    }
    while exponent % 3 != 0 {
        value *= 10;
        exponent -= 1;
    }
    format!("{value}{}", suffix(exponent, format))
}

fn suffix(exponent: i64, format: Format) -> Cow<'static, str> {
    const SUFFIXES: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
    match format {
        Format::Exponent if exponent != 0 => format!("e{exponent}").into(),
        // As upstream, exponents beyond the last suffix get none.
        _ => usize::try_from(exponent / 3 + 3)
            .ok()
            .and_then(|place| SUFFIXES.get(place))
            .map_or("", |suffix| *suffix)
            .into(),
    }
}

impl Amount {
    /// In billionths, saturating at 128 bits.
    pub(super) fn nanos(&self) -> i128 {
        let (value, places) = match self {
            Self::Small { value, scale, .. } => (
                Some(i128::from(*value)),
                i64::from(*scale) - i64::from(NANO),
            ),
            Self::Large(number) => {
                let value = number.digits.iter().try_fold(0_i128, |n, digit| {
                    n.checked_mul(10)?.checked_add(i128::from(*digit))
                });
                let value = value.map(|value| if number.negative { -value } else { value });
                (value, number.exponent - i64::from(NANO))
            }
        };
        let negative = match self {
            Self::Small { value, .. } => *value < 0,
            Self::Large(number) => number.negative,
        };
        if value == Some(0) {
            return 0;
        }
        u32::try_from(places)
            .ok()
            .and_then(|places| 10_i128.checked_pow(places))
            .and_then(|factor| value?.checked_mul(factor))
            .unwrap_or(if negative { -i128::MAX } else { i128::MAX })
    }
}

impl Decimal {
    fn new(parts: &Parts<'_>) -> Self {
        let digits = parts.whole.bytes().chain(parts.fraction.bytes());
        Self {
            negative: parts.negative,
            digits: digits
                .map(|digit| digit - b'0')
                .skip_while(|digit| *digit == 0)
                .collect(),
            exponent: -(parts.fraction.len() as i64),
        }
    }

    /// Multiplies by a power of two, at most 2^60.
    fn shift(&mut self, bits: u32) {
        let mut carry = 0_u128;
        for digit in self.digits.iter_mut().rev() {
            carry += u128::from(*digit) << bits;
            *digit = (carry % 10) as u8;
            carry /= 10;
        }
        let mut front = Vec::new();
        while carry > 0 {
            front.push((carry % 10) as u8);
            carry /= 10;
        }
        self.digits.splice(..0, front.into_iter().rev());
    }

    /// Rounds away from zero to a multiple of `10^finest`.
    fn round(&mut self, finest: i64) {
        if self.exponent >= finest || self.digits.is_empty() {
            return;
        }
        let places = usize::try_from(finest - self.exponent).unwrap_or(usize::MAX);
        let kept = self.digits.len().saturating_sub(places);
        let more = self.digits.drain(kept..).any(|digit| digit != 0) || kept == 0;
        self.exponent = finest;
        if !more {
            return;
        }
        for digit in self.digits.iter_mut().rev() {
            if *digit < 9 {
                *digit += 1;
                return;
            }
            *digit = 0;
        }
        self.digits.insert(0, 1);
    }

    /// The number of digits before the point.
    fn magnitude(&self) -> i64 {
        self.digits.len() as i64 + self.exponent
    }

    /// The value if it is an integer: `Some(None)` if it exceeds 64 bits. Such a number counts as
    /// an integer, since its fraction no longer matters.
    fn integer(&self) -> Option<Option<i64>> {
        let before = usize::try_from(self.magnitude()).unwrap_or(0);
        let (whole, fraction) = self.digits.split_at(before.min(self.digits.len()));
        let value = whole.iter().try_fold(0_i64, |n, digit| {
            n.checked_mul(10)?.checked_add(i64::from(*digit))
        });
        let exact = fraction.iter().all(|digit| *digit == 0);
        match value {
            None => Some(None),
            Some(i64::MAX) if !exact => Some(None),
            Some(value) if exact => Some(Some(if self.negative { -value } else { value })),
            Some(_) => None,
        }
    }

    fn show(mut self, format: Format) -> String {
        while self.digits.last() == Some(&0) {
            self.digits.pop();
            self.exponent += 1;
        }
        if self.digits.is_empty() {
            return "0".to_owned();
        }
        while self.exponent % 3 != 0 {
            self.digits.push(0);
            self.exponent -= 1;
        }
        let sign = if self.negative { "-" } else { "" };
        let digits: String = self.digits.iter().map(|d| char::from(d + b'0')).collect();
        format!("{sign}{digits}{}", suffix(self.exponent, format))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_canonical_form_is_kubernetes_own() {
        let cases = [
            ("0", "0"),
            ("1000m", "1"),
            ("1500m", "1500m"),
            ("0.5", "500m"),
            ("1024Mi", "1Gi"),
            ("1.5Gi", "1536Mi"),
            ("512Ki", "512Ki"),
            ("128Mi", "128Mi"),
            ("1000", "1k"),
            ("1e3", "1e3"),
            ("100e1", "1e3"),
            ("12e2", "1200"),
            ("0.1n", "1n"),
            ("0.5Ki", "512"),
            ("100Ei", "9223372036854775807"),
            ("-100Ei", "-9223372036854775807"),
            ("0.0000000001Gi", "107374183n"),
            ("123456789", "123456789"),
            // Parsed as an integer and kept as written.
            ("1E3", "1E3"),
            ("+5Ti", "+5Ti"),
            ("01", "01"),
            ("5.", "5."),
            ("1.500", "1.500"),
            ("+8Ki", "8Ki"),
            // Numbers without digits.
            ("P", "0"),
            ("m", "0"),
            ("+", "0"),
            (".", "0"),
            (".Mi", "0"),
            ("e5", "0"),
            // Away from zero.
            ("-0.1n", "-1n"),
            ("-1.5Ki", "-1536"),
            // Beyond 64 bits.
            ("1e30", "1e30"),
            ("9223372036854775808T", "9223372036854775808T"),
            (
                "123456789012345678901234567890",
                "123456789012345678901234567890",
            ),
            ("1.5e1001", "150e999"),
            ("1000E", "1"),
        ];
        for (text, expected) in cases {
            assert_eq!(canonical(text, NANO).unwrap(), expected, "{text}");
        }
        for (text, expected) in [
            ("-00012u", "-1m"),
            ("1u", "1m"),
            ("1500u", "2m"),
            ("1.0001", "1001m"),
            ("0.00000000000000000001", "1m"),
            ("250m", "250m"),
        ] {
            assert_eq!(canonical(text, MILLI).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn invalid_quantities_are_refused() {
        for (text, error) in [
            ("", Error::Format),
            ("a", Error::Format),
            ("1x", Error::Format),
            ("1mm", Error::Suffix),
            ("1 ", Error::Format),
            ("1K", Error::Suffix),
            ("1e", Error::Suffix),
            ("1-5", Error::Suffix),
            ("1e99999999999999999999", Error::Suffix),
            ("1.2.3", Error::Format),
            ("../x", Error::Format),
            (".Ei", Error::Numeric),
            ("Pi", Error::Numeric),
        ] {
            assert_eq!(canonical(text, NANO).unwrap_err(), error, "{text}");
        }
    }

    proptest! {
        #[test]
        fn canonical_forms_are_of_the_same_value(text in "[-+]?[0-9]{1,20}(\\.[0-9]{0,12})?(n|u|m|k|M|Ki|Mi|Gi|e[0-9]|E-[0-9])?") {
            let form = canonical(&text, NANO).unwrap().into_owned();
            let value = |text: &str| read(text).unwrap().0.nanos();
            prop_assert_eq!(value(&text), value(&form));
            let form = form.trim_start_matches('+');
            let again = canonical(form, NANO).unwrap();
            prop_assert_eq!(value(&again), value(form));
        }
    }
}
