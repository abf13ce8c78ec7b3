//! Floating-point numbers as text, as Go formats them.

/// The shortest form that parses as the same number: `1.5`, `1e+06`, `+Inf`.
pub(super) fn text(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..6).contains(&exponent) {
        return number.to_string();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

/// Parses a decimal or hexadecimal number; `None` if it is too large.
pub(super) fn parse(text: &str) -> Option<f64> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let hexadecimal = digits
        .strip_prefix("0x")
        .or_else(|| digits.strip_prefix("0X"));
    if let Some(digits) = hexadecimal {
        let value = parse_hexadecimal(&digits.replace('_', ""))?;
        return Some(if negative { -value } else { value });
    }
    let number: f64 = match text.contains('_') {
        true => separated(text)?.parse().ok()?,
        false => text.parse().ok()?,
    };
    let names_infinity = digits
        .as_bytes()
        .first()
        .is_some_and(u8::is_ascii_alphabetic);
    (number.is_finite() || names_infinity).then_some(number)
}

/// A number without the underscores between its digits.
fn separated(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let between = |at: usize| at > 0 && is_digit(at - 1) && is_digit(at + 1);
    let mut underscores = text.match_indices('_');
    underscores
        .all(|(at, _)| between(at))
        .then(|| text.replace('_', ""))
}

/// `1.8p4`: digits of base 16, and an exponent of base 2.
fn parse_hexadecimal(digits: &str) -> Option<f64> {
    let (mantissa, exponent) = digits.split_once(['p', 'P'])?;
    let exponent: i32 = exponent.parse().ok()?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let mut value = 0.0;
    for digit in whole.chars().chain(fraction.chars()) {
        value = value * 16.0 + f64::from(digit.to_digit(16)?);
    }
    let value = value * f64::from(exponent - 4 * fraction.len() as i32).exp2();
    value.is_finite().then_some(value)
}
