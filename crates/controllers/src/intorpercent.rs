//! Numbers that may be percentages, as in maxSurge and maxUnavailable.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// An absolute number, or a percentage of `total` rounded up or down. Invalid values count as 0.
pub(crate) fn scaled(value: Option<&IntOrString>, total: i32, round_up: bool) -> i32 {
    match value {
        None => 0,
        Some(IntOrString::Int(number)) => *number,
        Some(IntOrString::String(text)) => {
            let percent = text
                .strip_suffix('%')
                .and_then(|digits| digits.parse::<i64>().ok());
            let product = percent.unwrap_or(0).saturating_mul(total.into());
            let rounded = if round_up {
                product.saturating_add(99).div_euclid(100)
            } else {
                product.div_euclid(100)
            };
            i32::try_from(rounded).unwrap_or(i32::MAX)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_round_as_asked() {
        let percent = IntOrString::String("25%".into());
        assert_eq!(scaled(Some(&percent), 3, true), 1);
        assert_eq!(scaled(Some(&percent), 3, false), 0);
        assert_eq!(scaled(Some(&IntOrString::Int(7)), 3, true), 7);
        assert_eq!(
            scaled(Some(&IntOrString::String("many".into())), 3, true),
            0
        );
        assert_eq!(scaled(None, 3, true), 0);
        let much = IntOrString::String(format!("{}%", i64::MAX));
        assert_eq!(scaled(Some(&much), i32::MAX, true), i32::MAX);
    }
}
