//! API quantities as integers, rounded up as Kubernetes does.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

fn parse(quantity: &Quantity) -> Option<machinery::quantity::Quantity> {
    quantity.0.parse().ok()
}

/// In thousandths; `None` if it is invalid.
pub fn milli(quantity: &Quantity) -> Option<i64> {
    parse(quantity).map(machinery::quantity::Quantity::millis)
}

/// In units; `None` if it is invalid.
pub fn value(quantity: &Quantity) -> Option<i64> {
    parse(quantity).map(machinery::quantity::Quantity::value)
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
