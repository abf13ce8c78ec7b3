//! Numbers that may be percentages, hashes of templates, and other small arithmetic of workloads.

use k8s_openapi::{api::core::v1::PodTemplateSpec, apimachinery::pkg::util::intstr::IntOrString};

/// The label and name part that tells a template's generation.
pub const TEMPLATE_HASH: &str = "pod-template-hash";

/// An absolute number, or a percentage of `total` rounded up or down. What is neither counts as 0.
pub fn scaled(value: Option<&IntOrString>, total: i32, round_up: bool) -> i32 {
    match value {
        None => 0,
        Some(IntOrString::Int(number)) => *number,
        Some(IntOrString::String(text)) => {
            let percent = text
                .strip_suffix('%')
                .and_then(|digits| digits.parse::<i64>().ok());
            let product = percent.unwrap_or(0) * i64::from(total);
            let rounded = if round_up {
                (product + 99).div_euclid(100)
            } else {
                product.div_euclid(100)
            };
            i32::try_from(rounded).unwrap_or(i32::MAX)
        }
    }
}

/// A short name for a template, of letters that make no words. Two templates may share one: the
/// collision count makes the next try differ.
pub fn template_hash(template: &PodTemplateSpec, collisions: Option<i32>) -> String {
    let bytes = serde_json::to_vec(template).unwrap_or_default();
    safe_hash(&bytes, collisions)
}

/// A short name for any bytes.
pub fn safe_hash(bytes: &[u8], collisions: Option<i32>) -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let salt = collisions.map(i32::to_le_bytes);
    let all = bytes.iter().chain(salt.iter().flatten());
    let hash = all.fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    });
    let digits = hash.to_string();
    digits
        .bytes()
        .map(|digit| char::from(LETTERS[usize::from(digit) % LETTERS.len()]))
        .collect()
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
    }

    #[test]
    fn a_hash_depends_on_the_template_and_on_collisions() {
        let one = PodTemplateSpec::default();
        let mut other = one.clone();
        other.spec = Some(Default::default());
        assert_ne!(template_hash(&one, None), template_hash(&other, None));
        assert_ne!(template_hash(&one, None), template_hash(&one, Some(1)));
        assert_eq!(template_hash(&one, None), template_hash(&one, None));
    }
}
