//! The public keys of an issuer (a JWKS), and the verification of token signatures.

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use machinery::json::{self, Map, Value};
use ring::signature::{self, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey};

/// The maximum length of a token. Longer tokens are rejected before decoding, to limit the work that they cause.
const MAX_TOKEN: usize = 64 * 1024;

/// A parsed token whose signature is not verified yet.
pub(super) struct Unverified<'t> {
    signed: &'t str,
    signature: Vec<u8>,
    algorithm: String,
    key_id: Option<String>,
    pub(super) claims: Map,
}

impl<'t> Unverified<'t> {
    /// Parses a compact JWT; `None` if the text is not one.
    pub(super) fn parse(token: &'t str) -> Option<Self> {
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        if token.len() > MAX_TOKEN || claims.contains('.') {
            return None;
        }
        let decode = |part: &str| BASE64_URL_SAFE_NO_PAD.decode(part).ok();
        let header: Value = json::from_slice(&decode(header)?).ok()?;
        let claims: Value = json::from_slice(&decode(claims)?).ok()?;
        Some(Self {
            signed,
            signature: decode(signature)?,
            algorithm: header["alg"].as_str()?.to_owned(),
            key_id: header["kid"].as_str().map(str::to_owned),
            claims: claims.as_object()?.clone(),
        })
    }

    pub(super) fn text(&self, claim: &str) -> &str {
        let found = self.claims.get(claim).and_then(Value::as_str);
        found.unwrap_or_default()
    }
}

/// A public key of an issuer.
#[derive(Debug)]
struct Key {
    id: Option<String>,
    /// The only algorithm that this key may be used with, if the JWKS names one.
    algorithm: Option<String>,
    public: Public,
}

#[derive(Debug)]
enum Public {
    Rsa {
        modulus: Vec<u8>,
        exponent: Vec<u8>,
    },
    /// Uncompressed points: the byte 4, then x and y.
    P256(Vec<u8>),
    P384(Vec<u8>),
}

/// The keys of an issuer.
#[derive(Debug, Default)]
pub(super) struct Keys(Vec<Key>);

impl Keys {
    /// Parses a JWKS. Keys with unsupported types and keys that are not for signatures are ignored.
    pub(super) fn parse(document: &[u8]) -> Result<Self, String> {
        let document: Value = json::from_slice(document).map_err(|error| error.to_string())?;
        let keys = document["keys"]
            .as_array()
            .ok_or("the document has no list of keys")?;
        Ok(Self(keys.iter().filter_map(Key::parse).collect()))
    }

    /// Whether one of the keys verifies the token's signature. A key whose ID differs from the token's is not tried.
    pub(super) fn signed(&self, token: &Unverified<'_>) -> bool {
        let may_be = |key: &&Key| match (&token.key_id, &key.id) {
            (Some(wanted), Some(id)) => wanted == id,
            _ => true,
        };
        self.0.iter().filter(may_be).any(|key| key.signed(token))
    }
}

impl Key {
    fn parse(key: &Value) -> Option<Self> {
        let text = |name: &str| key[name].as_str().map(str::to_owned);
        let bytes = |name: &str| BASE64_URL_SAFE_NO_PAD.decode(key[name].as_str()?).ok();
        if text("use").is_some_and(|it| it != "sig") {
            return None;
        }
        let point = |length: usize| {
            let (x, y) = (bytes("x")?, bytes("y")?);
            let fits = x.len() == length && y.len() == length;
            fits.then(|| [&[4][..], &x, &y].concat())
        };
        let public = match (key["kty"].as_str()?, key["crv"].as_str()) {
            ("RSA", _) => Public::Rsa {
                modulus: bytes("n")?,
                exponent: bytes("e")?,
            },
            ("EC", Some("P-256")) => Public::P256(point(32)?),
            ("EC", Some("P-384")) => Public::P384(point(48)?),
            _ => return None,
        };
        Some(Self {
            id: text("kid").filter(|id| !id.is_empty()),
            algorithm: text("alg"),
            public,
        })
    }

    fn signed(&self, token: &Unverified<'_>) -> bool {
        let algorithm = token.algorithm.as_str();
        if self.algorithm.as_ref().is_some_and(|own| own != algorithm) {
            return false;
        }
        let (message, signature) = (token.signed.as_bytes(), &token.signature);
        match &self.public {
            Public::Rsa { modulus, exponent } => {
                let Some(parameters) = rsa(algorithm) else {
                    return false;
                };
                let (n, e) = (modulus.as_slice(), exponent.as_slice());
                let key = RsaPublicKeyComponents { n, e };
                key.verify(parameters, message, signature).is_ok()
            }
            Public::P256(point) => {
                let key = UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, point);
                algorithm == "ES256" && key.verify(message, signature).is_ok()
            }
            Public::P384(point) => {
                let key = UnparsedPublicKey::new(&signature::ECDSA_P384_SHA384_FIXED, point);
                algorithm == "ES384" && key.verify(message, signature).is_ok()
            }
        }
    }
}

fn rsa(algorithm: &str) -> Option<&'static RsaParameters> {
    Some(match algorithm {
        "RS256" => &signature::RSA_PKCS1_2048_8192_SHA256,
        "RS384" => &signature::RSA_PKCS1_2048_8192_SHA384,
        "RS512" => &signature::RSA_PKCS1_2048_8192_SHA512,
        "PS256" => &signature::RSA_PSS_2048_8192_SHA256,
        "PS384" => &signature::RSA_PSS_2048_8192_SHA384,
        "PS512" => &signature::RSA_PSS_2048_8192_SHA512,
        _ => return None,
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use machinery::json::json;
    use ring::{
        rand::SystemRandom,
        signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair},
    };

    /// An issuer's signing key, with its JWKS.
    pub(crate) struct Signer {
        pair: EcdsaKeyPair,
        id: &'static str,
    }

    impl Signer {
        pub(crate) fn new(id: &'static str) -> Self {
            let random = SystemRandom::new();
            let kind = &ECDSA_P256_SHA256_FIXED_SIGNING;
            let der = EcdsaKeyPair::generate_pkcs8(kind, &random).unwrap();
            let pair = EcdsaKeyPair::from_pkcs8(kind, der.as_ref(), &random).unwrap();
            Self { pair, id }
        }

        pub(crate) fn jwk(&self) -> Value {
            let point = self.pair.public_key().as_ref();
            let part = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
            json!({"kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": self.id,
                "x": part(&point[1..33]), "y": part(&point[33..])})
        }

        pub(crate) fn sign(&self, claims: &Value) -> String {
            let header = json!({"alg": "ES256", "kid": self.id}).to_string();
            let encode = |text: String| BASE64_URL_SAFE_NO_PAD.encode(text);
            let signed = format!("{}.{}", encode(header), encode(claims.to_string()));
            let random = SystemRandom::new();
            let signature = self.pair.sign(&random, signed.as_bytes()).unwrap();
            format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
        }
    }

    #[test]
    fn only_keys_of_the_issuer_sign_its_tokens() {
        let (one, other) = (Signer::new("one"), Signer::new("other"));
        let set = json!({"keys": [one.jwk(), {"kty": "oct", "k": "AA"}]}).to_string();
        let keys = Keys::parse(set.as_bytes()).unwrap();
        assert_eq!(keys.0.len(), 1, "unsupported key types are ignored");
        let claims = json!({"iss": "a", "sub": "eve"});
        let signed = |token: &str| keys.signed(&Unverified::parse(token).unwrap());
        let good = one.sign(&claims);
        assert!(signed(&good));
        assert!(!signed(&other.sign(&claims)));
        let (start, signature) = good.rsplit_once('.').unwrap();
        let (header, _) = start.split_once('.').unwrap();
        let forged = BASE64_URL_SAFE_NO_PAD.encode(json!({"sub": "root"}).to_string());
        assert!(!signed(&format!("{header}.{forged}.{signature}")));
        let none = BASE64_URL_SAFE_NO_PAD.encode(json!({"alg": "none"}).to_string());
        assert!(!signed(&format!("{none}.{forged}.")));
        for text in ["", "a", "a.b", "a.b.c", "....", "e30.e30.e30"] {
            assert!(Unverified::parse(text).is_none(), "{text}");
        }
    }

    /// Verifies a token from another implementation (RFC 7515, appendix A.2).
    #[test]
    fn rsa_signatures_are_verified() {
        let key = json!({"keys": [{"kty": "RSA", "e": "AQAB", "n": "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ"}]});
        let keys = Keys::parse(key.to_string().as_bytes()).unwrap();
        let token = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw";
        let token = Unverified::parse(token).unwrap();
        assert!(keys.signed(&token));
        assert_eq!(token.text("iss"), "joe");
    }
}
