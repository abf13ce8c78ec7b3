//! The order of API versions by stability and age.

/// Stable before beta before alpha, higher before lower.
pub fn priority(version: &str) -> (u8, u32, u32) {
    let digits = |text: &str| text.parse::<u32>().unwrap_or(0);
    let rest = version.strip_prefix('v').unwrap_or_default();
    if let Some((major, minor)) = rest.split_once("beta") {
        (2, digits(major), digits(minor))
    } else if let Some((major, minor)) = rest.split_once("alpha") {
        (1, digits(major), digits(minor))
    } else {
        (
            if rest.parse::<u32>().is_ok() { 3 } else { 0 },
            digits(rest),
            0,
        )
    }
}
