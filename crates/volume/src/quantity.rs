//! Quantities as whole numbers: thousandths or units, rounded up as Kubernetes does.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// In thousandths; `None` if it is no quantity.
pub fn milli(quantity: &Quantity) -> Option<i64> {
    scaled(&quantity.0, 1000)
}

/// In units; `None` if it is no quantity.
pub fn value(quantity: &Quantity) -> Option<i64> {
    scaled(&quantity.0, 1)
}

fn scaled(text: &str, scale: i128) -> Option<i64> {
    let end = text.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '+' | '-')));
    let (number, suffix) = text.split_at(end.unwrap_or(text.len()));
    let (negative, number) = match number.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, number.strip_prefix('+').unwrap_or(number)),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    let (times, over) = factor(suffix)?;
    let numerator = digits.checked_mul(times)?.checked_mul(scale)?;
    let denominator = over.checked_mul(10i128.checked_pow(fraction.len().try_into().ok()?)?)?;
    let rounded = (numerator + denominator - 1) / denominator;
    i64::try_from(if negative { -rounded } else { rounded }).ok()
}

fn factor(suffix: &str) -> Option<(i128, i128)> {
    let binary = |power: u32| Some((1024i128.pow(power), 1));
    let decimal = |power: u32| Some((10i128.pow(power), 1));
    match suffix {
        "" => Some((1, 1)),
        "n" => Some((1, 1_000_000_000)),
        "u" => Some((1, 1_000_000)),
        "m" => Some((1, 1000)),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        _ => {
            let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            let power = 10i128.checked_pow(exponent.unsigned_abs())?;
            Some(if exponent < 0 { (1, power) } else { (power, 1) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        for (text, in_milli, in_units) in cases {
            let quantity = Quantity(text.into());
            assert_eq!(
                (milli(&quantity), value(&quantity)),
                (in_milli, in_units),
                "{text}"
            );
        }
    }
}
