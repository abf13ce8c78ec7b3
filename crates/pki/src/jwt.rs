//! Service account tokens: compact JWTs signed with ES256, and the public keys as a JWKS.
//!
//! Only signatures are verified here. Issuer, audience, times and bound objects are checked by the
//! authenticator, which knows the cluster.

use std::path::{Path, PathBuf};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use rcgen::{KeyPair, PublicKeyData};
use ring::{
    digest::{SHA256, digest},
    rand::SystemRandom,
    signature::{
        ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _,
        UnparsedPublicKey,
    },
};
use rustls::pki_types::{SubjectPublicKeyInfoDer, pem::PemObject};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{Error, authority::key_pair, files};

/// Why a token is invalid. Reveals nothing of its content.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TokenError {
    #[error("not a signed token")]
    Malformed,
    #[error("signed with an algorithm that is not accepted")]
    Algorithm,
    #[error("signed with an unknown key")]
    Signature,
    #[error("claims could not be read")]
    Claims,
    #[error("could not be signed")]
    Sign,
}

/// The DER prefix of every P-256 public key.
const SPKI_P256: &[u8] = &[
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
/// No token of ours is larger; parsing larger ones would only serve an attacker.
const MAX_TOKEN: usize = 64 * 1024;

/// The signing key, and all keys that verify.
pub struct Keys {
    pair: EcdsaKeyPair,
    random: SystemRandom,
    verifying: Vec<PublicKey>,
}

struct PublicKey {
    id: String,
    /// The uncompressed point: 4, x, y.
    point: Vec<u8>,
}

#[derive(Serialize, Deserialize)]
struct Header {
    alg: String,
    kid: String,
}

impl PublicKey {
    fn from_spki(der: &[u8]) -> Option<Self> {
        let point = der.strip_prefix(SPKI_P256)?;
        let id = BASE64_URL_SAFE_NO_PAD.encode(digest(&SHA256, der));
        (point.len() == 65).then(|| Self {
            id,
            point: point.to_vec(),
        })
    }
}

impl Keys {
    /// Loads `sa.key` (signs) and `sa.pub`, `sa-*.pub` (also verify), or creates the key.
    pub(crate) fn ensure(dir: &Path) -> Result<Self, Error> {
        let path = dir.join("sa.key");
        let pem = match files::read(&path)? {
            Some(pem) => pem,
            None => {
                let key = KeyPair::generate()?;
                files::write(&dir.join("sa.pub"), key.public_key_pem().as_bytes())?;
                let pem = key.serialize_pem().into_bytes();
                files::write(&path, &pem)?;
                pem
            }
        };
        let older = older_keys(dir)?;
        Self::from_pem(&pem, &older).map_err(|error| Error::Content {
            path,
            message: error.to_string(),
        })
    }

    /// Keys from PEM: a P-256 signing key, and public keys of former ones.
    pub fn from_pem(signing: &[u8], others: &[Vec<u8>]) -> Result<Self, Error> {
        let unfit = || Error::Certificate("tokens need a P-256 key".to_owned());
        let key = key_pair(signing)?;
        let random = SystemRandom::new();
        let der = key.serialize_der();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &der, &random)
            .map_err(|_| unfit())?;
        let own = PublicKey::from_spki(&key.subject_public_key_info()).ok_or_else(unfit)?;
        debug_assert_eq!(own.point, pair.public_key().as_ref());
        let mut verifying = vec![own];
        for pem in others {
            for der in SubjectPublicKeyInfoDer::pem_slice_iter(pem) {
                let der = der.map_err(|error| Error::Certificate(error.to_string()))?;
                let key = PublicKey::from_spki(der.as_ref()).ok_or_else(unfit)?;
                if verifying.iter().all(|known| known.id != key.id) {
                    verifying.push(key);
                }
            }
        }
        Ok(Self {
            pair,
            random,
            verifying,
        })
    }

    /// Signs the claims.
    pub fn sign(&self, claims: &impl Serialize) -> Result<String, TokenError> {
        let header = Header {
            alg: "ES256".to_owned(),
            kid: self.verifying[0].id.clone(),
        };
        let encode = |json: Result<Vec<u8>, serde_json::Error>| {
            json.map(|json| BASE64_URL_SAFE_NO_PAD.encode(json))
                .map_err(|_| TokenError::Sign)
        };
        let (header, claims) = (
            encode(serde_json::to_vec(&header))?,
            encode(serde_json::to_vec(claims))?,
        );
        let mut token = format!("{header}.{claims}");
        let signature = self
            .pair
            .sign(&self.random, token.as_bytes())
            .map_err(|_| TokenError::Sign)?;
        token.push('.');
        token.push_str(&BASE64_URL_SAFE_NO_PAD.encode(signature));
        Ok(token)
    }

    /// The claims of a token that one of our keys has signed.
    pub fn verify<T: DeserializeOwned>(&self, token: &str) -> Result<T, TokenError> {
        let (signed, signature) = token.rsplit_once('.').ok_or(TokenError::Malformed)?;
        let (header, claims) = signed.split_once('.').ok_or(TokenError::Malformed)?;
        if token.len() > MAX_TOKEN || claims.contains('.') {
            return Err(TokenError::Malformed);
        }
        let decode = |part: &str| {
            BASE64_URL_SAFE_NO_PAD
                .decode(part)
                .map_err(|_| TokenError::Malformed)
        };
        let header: PartialHeader =
            serde_json::from_slice(&decode(header)?).map_err(|_| TokenError::Malformed)?;
        if header.alg != "ES256" {
            return Err(TokenError::Algorithm);
        }
        let signature = decode(signature)?;
        let fits = |key: &&PublicKey| header.kid.as_ref().is_none_or(|kid| *kid == key.id);
        let genuine = self.verifying.iter().filter(fits).any(|key| {
            UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, &key.point)
                .verify(signed.as_bytes(), &signature)
                .is_ok()
        });
        if !genuine {
            return Err(TokenError::Signature);
        }
        serde_json::from_slice(&decode(claims)?).map_err(|_| TokenError::Claims)
    }

    /// The public keys, as in `/openid/v1/jwks`.
    pub fn jwks(&self) -> Value {
        let keys = self.verifying.iter().map(|key| {
            json!({
                "use": "sig",
                "kty": "EC",
                "kid": key.id,
                "crv": "P-256",
                "alg": "ES256",
                "x": BASE64_URL_SAFE_NO_PAD.encode(&key.point[1..33]),
                "y": BASE64_URL_SAFE_NO_PAD.encode(&key.point[33..]),
            })
        });
        json!({ "keys": keys.collect::<Vec<_>>() })
    }
}

#[derive(Deserialize)]
struct PartialHeader {
    alg: String,
    kid: Option<String>,
}

/// The unverified issuer claim of a token, to tell whose token it is before verifying.
pub fn issuer(token: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Claims {
        iss: String,
    }
    let mut parts = token.split('.');
    let (_, claims, _) = (parts.next()?, parts.next()?, parts.next()?);
    if token.len() > MAX_TOKEN || parts.next().is_some() {
        return None;
    }
    let json = BASE64_URL_SAFE_NO_PAD.decode(claims).ok()?;
    serde_json::from_slice::<Claims>(&json)
        .ok()
        .map(|claims| claims.iss)
}

fn older_keys(dir: &Path) -> Result<Vec<Vec<u8>>, Error> {
    let failed = |source| Error::File {
        path: dir.to_owned(),
        source,
    };
    let mut paths: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        if name == "sa.pub" || (name.starts_with("sa-") && name.ends_with(".pub")) {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths
        .iter()
        .map(|path| files::read(path))
        .collect::<Result<Vec<_>, _>>()?)
    .map(|contents| contents.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Keys {
        let key = KeyPair::generate().unwrap();
        Keys::from_pem(key.serialize_pem().as_bytes(), &[]).unwrap()
    }

    #[test]
    fn a_token_is_verified_by_its_key_and_by_no_other() {
        let (ours, theirs) = (keys(), keys());
        let token = ours.sign(&json!({"iss": "here", "sub": "me"})).unwrap();
        assert_eq!(ours.verify::<Value>(&token).unwrap()["sub"], "me");
        assert_eq!(theirs.verify::<Value>(&token), Err(TokenError::Signature));
        assert_eq!(issuer(&token).as_deref(), Some("here"));
    }

    #[test]
    fn a_changed_claim_or_another_algorithm_is_refused() {
        let keys = keys();
        let token = keys.sign(&json!({"sub": "me"})).unwrap();
        let parts: Vec<_> = token.split('.').collect();
        let forged = BASE64_URL_SAFE_NO_PAD.encode(r#"{"sub":"admin"}"#);
        let swapped = format!("{}.{forged}.{}", parts[0], parts[2]);
        assert_eq!(keys.verify::<Value>(&swapped), Err(TokenError::Signature));
        let none = BASE64_URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#);
        let unsigned = format!("{none}.{forged}.");
        assert_eq!(keys.verify::<Value>(&unsigned), Err(TokenError::Algorithm));
        for malformed in ["", "a", "a.b", "a.b.c.d", "..", "e30.e30.e30"] {
            assert_eq!(
                keys.verify::<Value>(malformed),
                Err(TokenError::Malformed),
                "{malformed}"
            );
        }
    }

    #[test]
    fn tokens_of_a_former_key_stay_valid_while_its_public_key_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let first = Keys::ensure(dir.path()).unwrap();
        let token = first.sign(&json!({"sub": "me"})).unwrap();
        std::fs::rename(dir.path().join("sa.pub"), dir.path().join("sa-1.pub")).unwrap();
        std::fs::remove_file(dir.path().join("sa.key")).unwrap();
        let second = Keys::ensure(dir.path()).unwrap();
        assert_eq!(second.verify::<Value>(&token).unwrap()["sub"], "me");
        assert_eq!(second.jwks()["keys"].as_array().unwrap().len(), 2);
        std::fs::remove_file(dir.path().join("sa-1.pub")).unwrap();
        let third = Keys::ensure(dir.path()).unwrap();
        assert_eq!(third.verify::<Value>(&token), Err(TokenError::Signature));
    }
}
