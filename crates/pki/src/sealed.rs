//! Password-based encryption, for content that leaves the machine or is stored where others can
//! read it. The key is derived by PBKDF2, the content is encrypted in pieces by AES-256-GCM.
//! Changed, moved, missing or truncated pieces are detected.

use std::{
    io::{self, Read, Write},
    num::NonZeroU32,
};

use ring::{
    aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey},
    pbkdf2,
    rand::{SecureRandom, SystemRandom},
};

/// The prefix of sealed content.
pub const MAGIC: &[u8; 16] = b"mainstay-seal-1\n";
/// OWASP's recommendation for PBKDF2 with SHA-256.
const ITERATIONS: NonZeroU32 = NonZeroU32::new(600_000).expect("not zero");
const SALT: usize = 16;
/// The size of a piece.
const PIECE: usize = 1 << 20;
const TAG: usize = 16;

/// Why sealed content cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    #[error("not encrypted by mainstay")]
    NotSealed,
    #[error("wrong password, or the content was modified")]
    Refused,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Encrypts all of `from`.
pub fn seal(password: &str, from: &mut dyn Read, to: &mut dyn Write) -> Result<(), SealError> {
    let mut salt = [0; SALT];
    let random = SystemRandom::new();
    random
        .fill(&mut salt)
        .map_err(|_| io::Error::other("no randomness"))?;
    let key = key(password, &salt)?;
    to.write_all(MAGIC)?;
    to.write_all(&salt)?;
    let mut piece = next_piece(from, PIECE)?;
    for number in 0.. {
        let following = next_piece(from, PIECE)?;
        let is_last = following.is_empty();
        key.seal_in_place_append_tag(nonce(number, is_last)?, Aad::from(&salt), &mut piece)
            .map_err(|_| SealError::Refused)?;
        to.write_all(&piece)?;
        if is_last {
            break;
        }
        piece = following;
    }
    Ok(to.flush()?)
}

/// Decrypts all of `from`. Output before an error must not be used.
pub fn open(password: &str, from: &mut dyn Read, to: &mut dyn Write) -> Result<(), SealError> {
    let (mut magic, mut salt) = ([0; MAGIC.len()], [0; SALT]);
    from.read_exact(&mut magic)
        .map_err(|_| SealError::NotSealed)?;
    if magic != *MAGIC {
        return Err(SealError::NotSealed);
    }
    from.read_exact(&mut salt)
        .map_err(|_| SealError::NotSealed)?;
    let key = key(password, &salt)?;
    let mut piece = next_piece(from, PIECE + TAG)?;
    for number in 0.. {
        let following = next_piece(from, PIECE + TAG)?;
        let is_last = following.is_empty();
        let plain = key
            .open_in_place(nonce(number, is_last)?, Aad::from(&salt), &mut piece)
            .map_err(|_| SealError::Refused)?;
        to.write_all(plain)?;
        if is_last {
            break;
        }
        piece = following;
    }
    Ok(to.flush()?)
}

fn key(password: &str, salt: &[u8]) -> Result<LessSafeKey, SealError> {
    let mut key = [0; 32];
    let algorithm = pbkdf2::PBKDF2_HMAC_SHA256;
    pbkdf2::derive(algorithm, ITERATIONS, salt, password.as_bytes(), &mut key);
    let key = UnboundKey::new(&AES_256_GCM, &key).map_err(|_| SealError::Refused)?;
    Ok(LessSafeKey::new(key))
}

/// Every piece has a distinct nonce under a key that is used once; the last one is marked, so that
/// truncation is detected.
fn nonce(number: u32, is_last: bool) -> Result<Nonce, SealError> {
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    bytes[11] = u8::from(is_last);
    Ok(Nonce::assume_unique_for_key(bytes))
}

/// The next `size` bytes, less at the end.
fn next_piece(from: &mut dyn Read, size: usize) -> io::Result<Vec<u8>> {
    let mut piece = Vec::new();
    from.take(size as u64).read_to_end(&mut piece)?;
    Ok(piece)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(content: &[u8]) -> Vec<u8> {
        let mut sealed = Vec::new();
        seal("secret", &mut &content[..], &mut sealed).unwrap();
        sealed
    }

    fn opened(password: &str, mut sealed: &[u8]) -> Result<Vec<u8>, SealError> {
        let mut content = Vec::new();
        open(password, &mut sealed, &mut content).map(|()| content)
    }

    #[test]
    fn sealed_data_is_opened_only_with_its_password() {
        for size in [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE] {
            let content = vec![7; size];
            let sealed = sealed(&content);
            assert!(opened("secret", &sealed).unwrap() == content, "{size}");
            assert!(matches!(opened("other", &sealed), Err(SealError::Refused)));
        }
    }

    #[test]
    fn changed_or_truncated_sealed_data_is_refused() {
        let whole = sealed(&vec![7; 2 * PIECE]);
        let head = MAGIC.len() + SALT;
        for at in [MAGIC.len(), head, whole.len() - 1] {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            assert!(opened("secret", &changed).is_err(), "{at}");
        }
        // Without the second piece: all that is there is intact, but the end is missing.
        let cut = &whole[..head + PIECE + TAG];
        assert!(matches!(opened("secret", cut), Err(SealError::Refused)));
        let mut swapped = whole[..head].to_vec();
        swapped.extend(&whole[head + PIECE + TAG..]);
        swapped.extend(&whole[head..head + PIECE + TAG]);
        assert!(matches!(
            opened("secret", &swapped),
            Err(SealError::Refused)
        ));
        assert!(matches!(
            opened("secret", b"plain"),
            Err(SealError::NotSealed)
        ));
    }
}
