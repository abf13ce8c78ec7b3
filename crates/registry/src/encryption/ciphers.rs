//! Ciphers for stored values, in upstream's formats.

use aes::{Aes128, Aes192, Aes256};
use aes_gcm::{
    AesGcm, KeyInit,
    aead::{Aead, Payload, consts::U12},
};
use cbc::cipher::{BlockDecryptMut, BlockEncryptMut, KeyIvInit, block_padding::Pkcs7};
use crypto_secretbox::XSalsa20Poly1305;

/// A cipher with its key.
pub(super) enum Cipher {
    Gcm(Gcm),
    Cbc(Vec<u8>),
    Secretbox(Box<XSalsa20Poly1305>),
}

pub(super) enum Gcm {
    Aes128(Box<AesGcm<Aes128, U12>>),
    Aes192(Box<AesGcm<Aes192, U12>>),
    Aes256(Box<AesGcm<Aes256, U12>>),
}

const GCM_NONCE: usize = 12;
const CBC_BLOCK: usize = 16;
const SECRETBOX_NONCE: usize = 24;

const TOO_SHORT: &str = "the stored data was shorter than the required size";

impl Cipher {
    /// Returns `None` unless the key has 16, 24 or 32 bytes.
    pub(super) fn gcm(key: &[u8]) -> Option<Self> {
        Some(Self::Gcm(match key.len() {
            16 => Gcm::Aes128(Box::new(AesGcm::new_from_slice(key).ok()?)),
            24 => Gcm::Aes192(Box::new(AesGcm::new_from_slice(key).ok()?)),
            32 => Gcm::Aes256(Box::new(AesGcm::new_from_slice(key).ok()?)),
            _ => return None,
        }))
    }

    pub(super) fn cbc(key: &[u8]) -> Option<Self> {
        matches!(key.len(), 16 | 24 | 32).then(|| Self::Cbc(key.to_vec()))
    }

    pub(super) fn secretbox(key: &[u8]) -> Option<Self> {
        let cipher = XSalsa20Poly1305::new_from_slice(key).ok()?;
        Some(Self::Secretbox(Box::new(cipher)))
    }

    /// Encrypts `value` and appends nonce and ciphertext to `out`; `random` fills the nonce (the IV for AES-CBC).
    /// AES-GCM authenticates `place`, the key in the store, as associated data, so a value cannot be moved to another
    /// key.
    pub(super) fn seal(
        &self,
        out: &mut Vec<u8>,
        place: &[u8],
        value: &[u8],
        random: impl FnOnce(&mut [u8]),
    ) -> Option<()> {
        let start = out.len();
        let nonce = match self {
            Self::Gcm(_) => GCM_NONCE,
            Self::Cbc(_) => CBC_BLOCK,
            Self::Secretbox(_) => SECRETBOX_NONCE,
        };
        out.resize(start + nonce, 0);
        random(&mut out[start..]);
        let nonce = out[start..].to_vec();
        let sealed = match self {
            Self::Gcm(gcm) => gcm.seal(&nonce, place, value)?,
            Self::Cbc(key) => encrypt(key, &nonce, value)?,
            Self::Secretbox(cipher) => cipher.encrypt(nonce.as_slice().into(), value).ok()?,
        };
        out.extend_from_slice(&sealed);
        Some(())
    }

    pub(super) fn open(&self, place: &[u8], sealed: &[u8]) -> Result<Vec<u8>, String> {
        let split = |at: usize| sealed.split_at_checked(at).ok_or(TOO_SHORT.to_owned());
        let wrong = || "the stored data cannot be decrypted with this key".to_owned();
        match self {
            Self::Gcm(gcm) => {
                let (nonce, sealed) = split(GCM_NONCE)?;
                gcm.open(nonce, place, sealed).ok_or_else(wrong)
            }
            Self::Cbc(key) => {
                let (iv, sealed) = split(CBC_BLOCK)?;
                decrypt(key, iv, sealed).ok_or_else(wrong)
            }
            Self::Secretbox(cipher) => {
                let (nonce, sealed) = split(SECRETBOX_NONCE)?;
                cipher.decrypt(nonce.into(), sealed).map_err(|_| wrong())
            }
        }
    }
}

impl Gcm {
    fn seal(&self, nonce: &[u8], aad: &[u8], msg: &[u8]) -> Option<Vec<u8>> {
        let (nonce, payload) = (nonce.into(), Payload { msg, aad });
        match self {
            Self::Aes128(cipher) => cipher.encrypt(nonce, payload).ok(),
            Self::Aes192(cipher) => cipher.encrypt(nonce, payload).ok(),
            Self::Aes256(cipher) => cipher.encrypt(nonce, payload).ok(),
        }
    }

    fn open(&self, nonce: &[u8], aad: &[u8], msg: &[u8]) -> Option<Vec<u8>> {
        let (nonce, payload) = (nonce.into(), Payload { msg, aad });
        match self {
            Self::Aes128(cipher) => cipher.decrypt(nonce, payload).ok(),
            Self::Aes192(cipher) => cipher.decrypt(nonce, payload).ok(),
            Self::Aes256(cipher) => cipher.decrypt(nonce, payload).ok(),
        }
    }
}

fn encrypt(key: &[u8], iv: &[u8], value: &[u8]) -> Option<Vec<u8>> {
    Some(match key.len() {
        16 => cbc::Encryptor::<Aes128>::new_from_slices(key, iv)
            .ok()?
            .encrypt_padded_vec_mut::<Pkcs7>(value),
        24 => cbc::Encryptor::<Aes192>::new_from_slices(key, iv)
            .ok()?
            .encrypt_padded_vec_mut::<Pkcs7>(value),
        _ => cbc::Encryptor::<Aes256>::new_from_slices(key, iv)
            .ok()?
            .encrypt_padded_vec_mut::<Pkcs7>(value),
    })
}

fn decrypt(key: &[u8], iv: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
    match key.len() {
        16 => cbc::Decryptor::<Aes128>::new_from_slices(key, iv)
            .ok()?
            .decrypt_padded_vec_mut::<Pkcs7>(sealed)
            .ok(),
        24 => cbc::Decryptor::<Aes192>::new_from_slices(key, iv)
            .ok()?
            .decrypt_padded_vec_mut::<Pkcs7>(sealed)
            .ok(),
        _ => cbc::Decryptor::<Aes256>::new_from_slices(key, iv)
            .ok()?
            .decrypt_padded_vec_mut::<Pkcs7>(sealed)
            .ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Cipher> {
        let mut all: Vec<Cipher> = [16, 24, 32]
            .iter()
            .flat_map(|length| {
                let key = vec![9; *length];
                [Cipher::gcm(&key), Cipher::cbc(&key)]
            })
            .map(Option::unwrap)
            .collect();
        all.push(Cipher::secretbox(&[9; 32]).unwrap());
        all
    }

    #[test]
    fn what_is_sealed_can_be_opened_and_hides_its_value() {
        for cipher in all() {
            for value in [
                b"".as_slice(),
                b"{}",
                &[b'a'; 15],
                &[b'a'; 16],
                &[b'a'; 4096],
            ] {
                let mut sealed = b"prefix:".to_vec();
                cipher
                    .seal(&mut sealed, b"/k", value, |nonce| nonce.fill(3))
                    .unwrap();
                let sealed = sealed.strip_prefix(b"prefix:").unwrap();
                assert_eq!(cipher.open(b"/k", sealed).unwrap(), value);
                let hides =
                    value.len() < 15 || !sealed.windows(15).any(|part| part == &value[..15]);
                assert!(hides);
            }
        }
    }

    #[test]
    fn what_was_changed_is_refused_where_the_cipher_can_tell() {
        for cipher in all() {
            let mut sealed = Vec::new();
            cipher
                .seal(&mut sealed, b"/k", b"secret", |nonce| nonce.fill(3))
                .unwrap();
            for cut in 0..sealed.len() {
                let _ = cipher.open(b"/k", &sealed[..cut]);
            }
            if matches!(cipher, Cipher::Gcm(_)) {
                assert!(
                    cipher.open(b"/other", &sealed).is_err(),
                    "moved to another key"
                );
            }
            if !matches!(cipher, Cipher::Cbc(_)) {
                let last = sealed.len() - 1;
                sealed[last] ^= 1;
                assert!(cipher.open(b"/k", &sealed).is_err());
            }
        }
    }

    /// NaCl's format puts the tag before the ciphertext. The test vector is from the reference implementation.
    #[test]
    fn a_secretbox_is_that_of_nacl() {
        let hex = |text: &str| -> Vec<u8> {
            let bytes = text.as_bytes().chunks(2);
            let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16);
            bytes.map(|pair| byte(pair).unwrap()).collect()
        };
        let key = hex("1b27556473e985d462cd51197a9a46c76009549eac6474f206c4ee0844f68389");
        let nonce = hex("69696ee955b62b73cd62bda875fc73d68219e0036b7a0b37");
        let text = hex(
            "be075fc53c81f2d5cf141316ebeb0c7b5228c52a4c62cbd44b66849b64244ffce5ecbaaf33bd751a1ac728d45e6c61296cdc3c01233561f41db66cce314adb310e3be8250c46f06dceea3a7fa1348057e2f6556ad6b1318a024a838f21af1fde048977eb48f59ffd4924ca1c60902e52f0a089bc76897040e082f937763848645e0705",
        );
        let sealed = hex(
            "f3ffc7703f9400e52a7dfb4b3d3305d98e993b9f48681273c29650ba32fc76ce48332ea7164d96a4476fb8c531a1186ac0dfc17c98dce87b4da7f011ec48c97271d2c20f9b928fe2270d6fb863d51738b48eeee314a7cc8ab932164548e526ae90224368517acfeabd6bb3732bc0e9da99832b61ca01b6de56244a9e88d5f9b37973f622a43d14a6599b1f654cb45a74e355a5",
        );
        let cipher = Cipher::secretbox(&key).unwrap();
        let mut out = Vec::new();
        cipher
            .seal(&mut out, b"", &text, |fill| fill.copy_from_slice(&nonce))
            .unwrap();
        assert_eq!(&out[SECRETBOX_NONCE..], sealed);
    }
}
