//! Continue tokens of lists: the next key, and the revision of the first page.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use machinery::Status;
use serde::{Deserialize, Serialize};
use store::Revision;

/// A decoded continue token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Continue {
    /// `None`: the current revision (after an expired token).
    pub(crate) revision: Option<Revision>,
    /// The first key of the next page, after the resource's prefix.
    pub(crate) start: String,
}

#[derive(Serialize, Deserialize)]
struct Token {
    v: String,
    rv: i64,
    start: String,
}

impl Continue {
    pub(crate) fn encode(&self) -> String {
        let token = Token {
            v: "meta.k8s.io/v1".to_owned(),
            rv: self.revision.map_or(-1, |revision| revision as i64),
            start: self.start.clone(),
        };
        // Two strings and a number always serialize.
        URL_SAFE_NO_PAD.encode(machinery::json::to_vec(&token).unwrap_or_default())
    }

    pub(crate) fn decode(text: &str) -> Result<Self, Status> {
        let refuse = |why: &str| {
            Status::bad_request(format!(
                "invalid continue token: continue key is not valid: {why}"
            ))
        };
        let bytes = URL_SAFE_NO_PAD
            .decode(text.trim_end_matches('='))
            .map_err(|error| {
                let at = match error {
                    base64::DecodeError::InvalidByte(at, _) => at,
                    _ => text.len() / 4 * 4,
                };
                refuse(&format!("illegal base64 data at input byte {at}"))
            })?;
        let token: Token =
            machinery::json::from_slice(&bytes).map_err(|error| refuse(&error.to_string()))?;
        if token.v != "meta.k8s.io/v1" {
            let why = format!("server does not recognize this encoded version {}", token.v);
            return Err(refuse(&why));
        }
        if token.start.is_empty() || token.rv == 0 {
            let why = "incorrect encoded start resourceVersion (version meta.k8s.io/v1)";
            return Err(refuse(why));
        }
        if token.start.starts_with('/') || token.start.split('/').any(|part| part == "..") {
            return Err(refuse("the key is not below the list's own"));
        }
        Ok(Self {
            revision: u64::try_from(token.rv).ok(),
            start: token.start,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_the_way_to_the_client_and_back() {
        for revision in [Some(7), None] {
            let token = Continue {
                revision,
                start: "default/a\0".to_owned(),
            };
            assert_eq!(Continue::decode(&token.encode()).unwrap(), token);
        }
        for bad in [
            "",
            "x",
            "eyJ2IjoiOSJ9",
            &Continue {
                revision: Some(1),
                start: "../x".into(),
            }
            .encode(),
        ] {
            assert_eq!(Continue::decode(bad).unwrap_err().code, 400, "{bad}");
        }
    }
}
