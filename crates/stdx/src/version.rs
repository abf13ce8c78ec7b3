//! The Kubernetes release of this program, and which others are compatible. The version is read
//! from a stamp in the program's data, so that it can be changed in a built program.

use std::{fmt, hint::black_box, str::FromStr, sync::OnceLock};

/// The prefix of the stamp; the version and zero bytes follow.
pub const STAMP_PREFIX: &str = "mainstay-version-stamp:";
const STAMP_LENGTH: usize = 64;
const RELEASE: &str = "v1.36.4";

static STAMP: [u8; STAMP_LENGTH] = stamp();

const fn stamp() -> [u8; STAMP_LENGTH] {
    let mut bytes = [0; STAMP_LENGTH];
    let (prefix, release) = (STAMP_PREFIX.as_bytes(), RELEASE.as_bytes());
    let mut at = 0;
    while at < prefix.len() + release.len() {
        bytes[at] = if at < prefix.len() {
            prefix[at]
        } else {
            release[at - prefix.len()]
        };
        at += 1;
    }
    bytes
}

/// A release of Kubernetes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    pub major: u32,
    pub minor: u32,
    pub patch: u32,
}

impl Version {
    /// The release of this program.
    pub fn own() -> Self {
        static OWN: OnceLock<Version> = OnceLock::new();
        *OWN.get_or_init(|| read(black_box(&STAMP)))
    }

    /// Whether the two are compatible: their minor versions differ by at most one.
    pub fn works_with(self, other: Self) -> bool {
        self.major == other.major && self.minor.abs_diff(other.minor) <= 1
    }

    /// `1.36`.
    pub fn release_line(self) -> String {
        format!("{}.{}", self.major, self.minor)
    }
}

fn read(stamp: &[u8; STAMP_LENGTH]) -> Version {
    let text = stamp[STAMP_PREFIX.len()..].split(|byte| *byte == 0).next();
    let text = text.and_then(|text| std::str::from_utf8(text).ok());
    // A damaged stamp must not prevent running: the compiled version is used.
    let parsed = text.and_then(|text| text.parse().ok());
    parsed.or_else(|| RELEASE.parse().ok()).unwrap_or(Version {
        major: 1,
        minor: 0,
        patch: 0,
    })
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            major,
            minor,
            patch,
        } = self;
        write!(f, "v{major}.{minor}.{patch}")
    }
}

/// `v1.36.4`, also with a suffix: `v1.36.4-rc.1+mainstay`.
impl FromStr for Version {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.strip_prefix('v').unwrap_or(text);
        let numbers = numbers.split(['+', '-']).next().unwrap_or_default();
        let numbers: Option<Vec<u32>> = numbers.split('.').map(|part| part.parse().ok()).collect();
        match numbers.as_deref() {
            Some([major, minor, patch]) => Ok(Self {
                major: *major,
                minor: *minor,
                patch: *patch,
            }),
            _ => Err(format!("{text:?} is not a version such as {RELEASE}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> Version {
        text.parse().unwrap()
    }

    #[test]
    fn the_stamp_says_the_version() {
        assert_eq!(Version::own().to_string(), RELEASE);
        let mut other = STAMP;
        let at = STAMP_PREFIX.len();
        other[at..at + 7].copy_from_slice(b"v1.35.9");
        assert_eq!(read(&other), version("1.35.9"));
        other[at] = b'?';
        assert_eq!(read(&other), Version::own());
    }

    #[test]
    fn neighbouring_minor_versions_work_together() {
        let own = version("v1.36.4+mainstay-0.1.0");
        for fine in ["v1.35.0", "v1.36.9", "v1.37.1-rc.1"] {
            assert!(own.works_with(version(fine)), "{fine}");
        }
        for unfit in ["v1.34.9", "v1.38.0", "v2.36.4"] {
            assert!(!own.works_with(version(unfit)), "{unfit}");
        }
        for wrong in ["", "v1.36", "1.x.0", "v1.2.3.4"] {
            assert!(wrong.parse::<Version>().is_err(), "{wrong}");
        }
    }
}
