//! The short hash of a pod template: part of the names of ReplicaSets and ControllerRevisions, and
//! a label of their pods.

use k8s_openapi::api::core::v1::PodTemplateSpec;

/// The label of ReplicaSets and their pods.
pub(crate) const TEMPLATE_HASH: &str = "pod-template-hash";

/// The hash of a template. On a collision of two templates the count changes the next hash.
pub(crate) fn template_hash(template: &PodTemplateSpec, collisions: Option<i32>) -> String {
    let bytes = serde_json::to_vec(template).unwrap_or_default();
    short_hash(&bytes, collisions)
}

/// The hash of any bytes: FNV-1a, encoded with letters and digits that form no words.
pub(crate) fn short_hash(bytes: &[u8], collisions: Option<i32>) -> String {
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
    fn a_hash_depends_on_the_template_and_on_collisions() {
        let one = PodTemplateSpec::default();
        let mut other = one.clone();
        other.spec = Some(Default::default());
        assert_ne!(template_hash(&one, None), template_hash(&other, None));
        assert_ne!(template_hash(&one, None), template_hash(&one, Some(1)));
        assert_eq!(template_hash(&one, None), template_hash(&one, None));
    }
}
