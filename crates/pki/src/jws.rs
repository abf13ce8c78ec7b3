//! Detached signatures (JWS) by a shared secret: a holder of the secret can verify that a text
//! comes from another holder, without the signature repeating the text.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::hmac;

/// `HEADER..SIGNATURE` of a text by a secret, HMAC with SHA-256; `id` names the secret.
pub fn detached_signature(content: &str, id: &str, secret: &str) -> String {
    let header = format!(r#"{{"alg":"HS256","kid":{}}}"#, serde_json::json!(id));
    let header = URL_SAFE_NO_PAD.encode(header);
    let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(content));
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let signature = hmac::sign(&key, signed.as_bytes());
    format!("{header}..{}", URL_SAFE_NO_PAD.encode(signature))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_names_the_secret_and_the_signature_changes_with_everything() {
        let signature = detached_signature("text", "abcdef", "0123456789abcdef");
        let (header, mark) = signature.split_once("..").unwrap();
        let header = URL_SAFE_NO_PAD.decode(header).unwrap();
        assert_eq!(header, br#"{"alg":"HS256","kid":"abcdef"}"#);
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"0123456789abcdef");
        let signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), "dGV4dA");
        let mark = URL_SAFE_NO_PAD.decode(mark).unwrap();
        assert!(hmac::verify(&key, signed.as_bytes(), &mark).is_ok());
        for (content, id, secret) in [
            ("other", "abcdef", "0123456789abcdef"),
            ("text", "fedcba", "0123456789abcdef"),
            ("text", "abcdef", "fedcba9876543210"),
        ] {
            assert_ne!(detached_signature(content, id, secret), signature);
        }
    }
}
