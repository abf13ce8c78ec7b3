//! Finds an image by a user-given name.

use std::collections::BTreeMap;

use super::{Image, Reference};

/// The minimum length of id prefixes; shorter ones are names.
const MIN_PREFIX: usize = 7;

/// The image of a name.
pub(super) fn find<'a>(images: &'a BTreeMap<String, Image>, name: &str) -> Option<&'a Image> {
    if name.is_empty() {
        return None;
    }
    if let Some(image) = images
        .get(name)
        .or_else(|| images.get(&format!("sha256:{name}")))
    {
        return Some(image);
    }
    if let Ok(reference) = Reference::parse(name) {
        let full = reference.to_string();
        let named = |image: &&Image| image.tags.contains(&full) || image.digests.contains(&full);
        if let Some(image) = images.values().find(named) {
            return Some(image);
        }
    }
    let digits = name.strip_prefix("sha256:").unwrap_or(name);
    if digits.len() < MIN_PREFIX || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let start = format!("sha256:{digits}");
    let mut found = images
        .range(start.clone()..)
        .take_while(|(id, _)| id.starts_with(&start));
    let (_, image) = found.next()?;
    found.next().is_none().then_some(image)
}

/// Removes a name of an image; true if it has none left.
pub(super) fn take(image: &mut Image, name: &str) -> bool {
    let full = Reference::parse(name)
        .map(|reference| reference.to_string())
        .unwrap_or_default();
    let known = image.tags.contains(&full) || image.digests.contains(&full);
    if !known {
        // Found by its id: remove the whole image.
        return true;
    }
    image.tags.remove(&full);
    image.digests.remove(&full);
    image.tags.is_empty()
}
