//! JSON values for API objects: small, cheap to build and to drop.
//!
//! A [`Map`] is a vector of entries in their order: objects have few fields, and a short vector is
//! searched faster than it is hashed. Long maps have an index beside, so that no input makes a
//! search quadratic. A [`Key`] that is the name of a field in the schema table refers to the table,
//! without an allocation.
//!
//! The interface and the serialized form are those of serde_json where both exist.

mod index;
mod key;
mod macros;
mod map;
pub(crate) mod order;
mod ser;
mod serde;
mod value;
pub(crate) mod write;

pub use key::Key;
pub use map::{Entry, IntoIter, Iter, IterMut, Map};
pub use serde_json::{
    Deserializer, Error, Number, from_reader, from_str, to_string, to_string_pretty, to_vec,
    to_writer,
};
pub use value::{Index, Value};

use ::serde::{
    Serialize,
    de::{Deserialize, DeserializeOwned},
};

pub use crate::json;

/// Parses JSON. UTF-8 is checked once, not for each string.
pub fn from_slice<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Error> {
    match std::str::from_utf8(bytes) {
        Ok(text) => serde_json::from_str(text),
        // Its error has the position.
        Err(_) => serde_json::from_slice(bytes),
    }
}

/// Anything as a value.
pub fn to_value<T: Serialize>(value: T) -> Result<Value, Error> {
    value.serialize(ser::Serializer)
}

/// The value of an expression in [`json!`]: null if it cannot be represented in JSON, such as a map
/// whose names are not text.
#[doc(hidden)]
pub fn to_value_or_null<T: Serialize + ?Sized>(value: &T) -> Value {
    to_value(value).unwrap_or_default()
}

/// A value as anything.
pub fn from_value<T: DeserializeOwned>(value: Value) -> Result<T, Error> {
    serde_json::from_value(value.into())
}

#[cfg(test)]
mod tests;
