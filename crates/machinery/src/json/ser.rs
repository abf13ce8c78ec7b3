//! Serializes anything into a value.

use super::{Error, Key, Map, Value};
use serde::ser::{self, Error as _, Impossible, Serialize};

pub(super) struct Serializer;

type Result<T> = std::result::Result<T, Error>;

macro_rules! into_value {
    ($($method:ident($type:ty)),*) => {$(
        fn $method(self, value: $type) -> Result<Value> {
            Ok(value.into())
        }
    )*};
}

impl ser::Serializer for Serializer {
    type Ok = Value;
    type Error = Error;
    type SerializeSeq = List;
    type SerializeTuple = List;
    type SerializeTupleStruct = List;
    type SerializeTupleVariant = Variant<List>;
    type SerializeMap = Entries;
    type SerializeStruct = Entries;
    type SerializeStructVariant = Variant<Entries>;

    into_value!(
        serialize_bool(bool),
        serialize_i8(i8),
        serialize_i16(i16),
        serialize_i32(i32),
        serialize_i64(i64),
        serialize_u8(u8),
        serialize_u16(u16),
        serialize_u32(u32),
        serialize_u64(u64),
        serialize_f64(f64),
        serialize_str(&str)
    );

    fn serialize_f32(self, value: f32) -> Result<Value> {
        // The shortest form of the float itself, not of the nearest double.
        Ok(serde_json::Value::from(value).into())
    }

    fn serialize_char(self, value: char) -> Result<Value> {
        Ok(value.to_string().into())
    }

    fn serialize_bytes(self, value: &[u8]) -> Result<Value> {
        Ok(value.iter().copied().collect())
    }

    fn serialize_none(self) -> Result<Value> {
        Ok(Value::Null)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<Value> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<Value> {
        Ok(Value::Null)
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<Value> {
        Ok(Value::Null)
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
    ) -> Result<Value> {
        Ok(variant.into())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<Value> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<Value> {
        Ok(under(variant, value.serialize(self)?))
    }

    fn serialize_seq(self, length: Option<usize>) -> Result<List> {
        Ok(List(Vec::with_capacity(length.unwrap_or_default())))
    }

    fn serialize_tuple(self, length: usize) -> Result<List> {
        self.serialize_seq(Some(length))
    }

    fn serialize_tuple_struct(self, _: &'static str, length: usize) -> Result<List> {
        self.serialize_seq(Some(length))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        length: usize,
    ) -> Result<Variant<List>> {
        let inside = self.serialize_seq(Some(length))?;
        Ok(Variant { variant, inside })
    }

    fn serialize_map(self, length: Option<usize>) -> Result<Entries> {
        Ok(Entries {
            map: Map::with_capacity(length.unwrap_or_default()),
            key: None,
        })
    }

    fn serialize_struct(self, _: &'static str, length: usize) -> Result<Entries> {
        self.serialize_map(Some(length))
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        length: usize,
    ) -> Result<Variant<Entries>> {
        let inside = self.serialize_map(Some(length))?;
        Ok(Variant { variant, inside })
    }
}

fn under(variant: &'static str, value: Value) -> Value {
    Value::Object(Map::from_iter([(variant, value)]))
}

pub(super) struct List(Vec<Value>);

impl List {
    fn push<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<()> {
        self.0.push(value.serialize(Serializer)?);
        Ok(())
    }
}

impl ser::SerializeSeq for List {
    type Ok = Value;
    type Error = Error;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<()> {
        self.push(value)
    }

    fn end(self) -> Result<Value> {
        Ok(Value::Array(self.0))
    }
}

impl ser::SerializeTuple for List {
    type Ok = Value;
    type Error = Error;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<()> {
        self.push(value)
    }

    fn end(self) -> Result<Value> {
        Ok(Value::Array(self.0))
    }
}

impl ser::SerializeTupleStruct for List {
    type Ok = Value;
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<()> {
        self.push(value)
    }

    fn end(self) -> Result<Value> {
        Ok(Value::Array(self.0))
    }
}

pub(super) struct Entries {
    map: Map,
    key: Option<Key>,
}

impl ser::SerializeMap for Entries {
    type Ok = Value;
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<()> {
        self.key = Some(key.serialize(KeySerializer)?);
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<()> {
        let Some(key) = self.key.take() else {
            return Err(Error::custom("a value without a key"));
        };
        self.map.insert(key, value.serialize(Serializer)?);
        Ok(())
    }

    fn end(self) -> Result<Value> {
        Ok(Value::Object(self.map))
    }
}

impl ser::SerializeStruct for Entries {
    type Ok = Value;
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        key: &'static str,
        value: &T,
    ) -> Result<()> {
        self.map.insert(key, value.serialize(Serializer)?);
        Ok(())
    }

    fn end(self) -> Result<Value> {
        Ok(Value::Object(self.map))
    }
}

pub(super) struct Variant<T> {
    variant: &'static str,
    inside: T,
}

impl ser::SerializeTupleVariant for Variant<List> {
    type Ok = Value;
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<()> {
        self.inside.push(value)
    }

    fn end(self) -> Result<Value> {
        Ok(under(self.variant, Value::Array(self.inside.0)))
    }
}

impl ser::SerializeStructVariant for Variant<Entries> {
    type Ok = Value;
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        key: &'static str,
        value: &T,
    ) -> Result<()> {
        ser::SerializeStruct::serialize_field(&mut self.inside, key, value)
    }

    fn end(self) -> Result<Value> {
        Ok(under(self.variant, Value::Object(self.inside.map)))
    }
}

/// Serializes names of entries: text, and values with an unambiguous text form.
struct KeySerializer;

macro_rules! printed {
    ($($method:ident($type:ty)),*) => {$(
        fn $method(self, value: $type) -> Result<Key> {
            Ok(value.to_string().into())
        }
    )*};
}

fn no_key<T>() -> Result<T> {
    Err(Error::custom("key must be a string"))
}

impl ser::Serializer for KeySerializer {
    type Ok = Key;
    type Error = Error;
    type SerializeSeq = Impossible<Key, Error>;
    type SerializeTuple = Impossible<Key, Error>;
    type SerializeTupleStruct = Impossible<Key, Error>;
    type SerializeTupleVariant = Impossible<Key, Error>;
    type SerializeMap = Impossible<Key, Error>;
    type SerializeStruct = Impossible<Key, Error>;
    type SerializeStructVariant = Impossible<Key, Error>;

    printed!(
        serialize_bool(bool),
        serialize_i8(i8),
        serialize_i16(i16),
        serialize_i32(i32),
        serialize_i64(i64),
        serialize_u8(u8),
        serialize_u16(u16),
        serialize_u32(u32),
        serialize_u64(u64),
        serialize_char(char)
    );

    fn serialize_str(self, name: &str) -> Result<Key> {
        Ok(Key::new(name))
    }

    fn serialize_f32(self, _: f32) -> Result<Key> {
        no_key()
    }

    fn serialize_f64(self, _: f64) -> Result<Key> {
        no_key()
    }

    fn serialize_bytes(self, _: &[u8]) -> Result<Key> {
        no_key()
    }

    fn serialize_none(self) -> Result<Key> {
        no_key()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, _: &T) -> Result<Key> {
        no_key()
    }

    fn serialize_unit(self) -> Result<Key> {
        no_key()
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<Key> {
        no_key()
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<Key> {
        Ok(variant.into())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<Key> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Result<Key> {
        no_key()
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Self::SerializeSeq> {
        no_key()
    }

    fn serialize_tuple(self, _: usize) -> Result<Self::SerializeTuple> {
        no_key()
    }

    fn serialize_tuple_struct(
        self,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleStruct> {
        no_key()
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleVariant> {
        no_key()
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Self::SerializeMap> {
        no_key()
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Self::SerializeStruct> {
        no_key()
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeStructVariant> {
        no_key()
    }
}
