//! Image references: `[host[:port]/]path[:tag][@digest]`, with the usual defaults.

use std::fmt;

use crate::error::{Error, Result};

/// A full image reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// The registry's host and port.
    pub registry: String,
    /// The path in the registry.
    pub repository: String,
    /// The tag, if there is no digest or beside it.
    pub tag: Option<String>,
    /// The digest.
    pub digest: Option<String>,
}

const DEFAULT_REGISTRY: &str = "docker.io";

impl Reference {
    /// Parses a user-given reference.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = || Error::Invalid(format!("{text:?} is not the name of an image"));
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => (rest, Some(check_digest(digest).ok_or_else(wrong)?)),
            None => (text, None),
        };
        let (name, tag) = match rest.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => (name, Some(tag.to_owned())),
            _ => (rest, None),
        };
        let (registry, path) = match name.split_once('/') {
            Some((host, path)) if is_host(host) => (host, path.to_owned()),
            _ => (DEFAULT_REGISTRY, name.to_owned()),
        };
        let registry = if registry == "index.docker.io" {
            DEFAULT_REGISTRY
        } else {
            registry
        };
        let repository = if registry == DEFAULT_REGISTRY && !path.contains('/') {
            format!("library/{path}")
        } else {
            path
        };
        if !is_repository(&repository) || tag.as_ref().is_some_and(|tag| !is_tag(tag)) {
            return Err(wrong());
        }
        let tag = if tag.is_none() && digest.is_none() {
            Some("latest".to_owned())
        } else {
            tag
        };
        Ok(Self {
            registry: registry.to_owned(),
            repository,
            tag,
            digest,
        })
    }

    /// The name without tag and digest.
    pub fn name(&self) -> String {
        format!("{}/{}", self.registry, self.repository)
    }

    /// What to request from the registry: the digest if there is one, else the tag.
    pub fn target(&self) -> &str {
        self.digest
            .as_deref()
            .or(self.tag.as_deref())
            .unwrap_or("latest")
    }

    /// The same repository by digest.
    pub fn with_digest(&self, digest: &str) -> String {
        format!("{}@{digest}", self.name())
    }
}

impl fmt::Display for Reference {
    /// The digest takes precedence over the tag.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.digest, &self.tag) {
            (Some(digest), _) => write!(f, "{}@{digest}", self.name()),
            (None, tag) => write!(f, "{}:{}", self.name(), tag.as_deref().unwrap_or("latest")),
        }
    }
}

fn is_host(text: &str) -> bool {
    let start = |letter: char| letter.is_ascii_alphanumeric() || letter == '[';
    text.starts_with(start) && (text.contains(['.', ':']) || text == "localhost")
}

fn is_repository(text: &str) -> bool {
    let letter =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte);
    let part = |part: &str| {
        let edges = part.bytes().next().into_iter().chain(part.bytes().last());
        !part.is_empty()
            && part.bytes().all(letter)
            && edges.into_iter().all(|b| b.is_ascii_alphanumeric())
    };
    text.len() <= 255 && text.split('/').all(part)
}

fn is_tag(text: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=128).contains(&text.len()) && text.bytes().all(letter) && !text.starts_with(['.', '-'])
}

/// Digests are compared as text, so only the canonical form is valid.
pub(super) fn check_digest(text: &str) -> Option<String> {
    let hex = text.strip_prefix("sha256:")?;
    let digits = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    (hex.len() == 64 && hex.bytes().all(digits)).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_are_completed() {
        let full = |text: &str| Reference::parse(text).unwrap().to_string();
        assert_eq!(full("busybox"), "docker.io/library/busybox:latest");
        assert_eq!(full("user/app:1"), "docker.io/user/app:1");
        assert_eq!(full("mainstay.local/hello"), "mainstay.local/hello:latest");
        assert_eq!(full("localhost:5000/a/b:v1"), "localhost:5000/a/b:v1");
        let digest = format!("sha256:{}", "a".repeat(64));
        assert_eq!(
            full(&format!("reg.io/x:1@{digest}")),
            format!("reg.io/x@{digest}")
        );
    }

    #[test]
    fn invalid_image_references_are_refused() {
        for text in [
            "",
            "UPPER",
            "a//b",
            "a:b:c",
            "x@sha256:12",
            "-a",
            "a b",
            "../etc",
        ] {
            assert!(Reference::parse(text).is_err(), "{text:?}");
        }
    }
}
