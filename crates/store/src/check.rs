//! Validates input before it reaches a backend, with the same errors for both.

use std::collections::HashSet;

use crate::{Action, Codec, Error, Key, Op};

/// The maximum length of a key.
pub(crate) const MAX_KEY: usize = 4 << 10;

/// The default maximum size of a value: etcd's default request limit.
pub(crate) const MAX_VALUE: usize = 1536 << 10;

/// The maximum bytes of keys and values in one commit.
pub(crate) const MAX_COMMIT: usize = 64 << 20;

/// Validates a key.
pub(crate) fn key(key: &Key) -> Result<(), Error> {
    if key.is_empty() {
        return Err(Error::Invalid("the key is empty".into()));
    }
    if key.len() > MAX_KEY {
        let message = format!("a key of {} bytes is longer than {MAX_KEY}", key.len());
        return Err(Error::Invalid(message));
    }
    prefix(key)
}

/// Validates a prefix, which may be empty.
pub(crate) fn prefix(prefix: &Key) -> Result<(), Error> {
    if prefix.contains(&0) {
        let shown = String::from_utf8_lossy(prefix).replace('\0', "\\0");
        return Err(Error::Invalid(format!("the key {shown:?} contains NUL")));
    }
    Ok(())
}

/// Validates the operations of a commit.
pub(crate) fn ops<C: Codec>(
    codec: &C,
    ops: &[Op<C::Draft>],
    max_value: usize,
) -> Result<(), Error> {
    if ops.is_empty() {
        return Err(Error::Invalid(
            "a commit needs at least one operation".into(),
        ));
    }
    let (mut seen, mut total) = (HashSet::new(), 0);
    for op in ops {
        key(&op.key)?;
        let shown = || String::from_utf8_lossy(&op.key);
        if ops.len() > 1 && !seen.insert(&op.key) {
            return Err(Error::Invalid(format!(
                "the key {:?} occurs twice in one commit",
                shown()
            )));
        }
        if let Action::Put { draft, .. } = &op.action {
            let length = codec.bytes(draft).len();
            if length > max_value {
                return Err(Error::Invalid(format!(
                    "the value of {:?} has {length} bytes, more than {max_value}",
                    shown()
                )));
            }
            total += length;
        }
        total += op.key.len();
    }
    if total > MAX_COMMIT {
        return Err(Error::Invalid(format!(
            "a commit of {total} bytes is larger than {MAX_COMMIT}"
        )));
    }
    Ok(())
}
