//! The schema table: the facts about every field of every built-in type, stated once. It drives
//! decoding, normalising, encoding, strategic merge, apply, protobuf and OpenAPI.
//!
//! The facts are in `table/*.txt`, one file per package, one field a line:
//!
//! ```text
//! Container                                   a type ("atomic" after it: applied as a whole)
//!  name 1 string !                            JSON name, protobuf number, type, required
//!  ports 6 ?[]ContainerPort keys=containerPort,protocol patch=merge(containerPort)
//!  + 1 ProbeHandler                           the fields of another type, inlined (0: no number)
//! Protocol = string                           another name for a type
//! ```
//!
//! Before a type: nothing, always serialized; `?` omitted if empty (a struct never is); `*` absent
//! or a value; `~` a value or null; `0` omitted if zero. `[]` is a list, `{}` a map with string
//! keys. After it: `!` required, `atomic`, `set`, `granular`, `keys=`, `patch=`, `default=`, `off`
//! for a field behind a feature gate that is off (`off=hollow`: a struct with nothing else is
//! dropped with it), `sent` for a list or map whose empty value differs from an absent one until
//! the object is stored.

mod parse;

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hasher};
use std::sync::{LazyLock, OnceLock};

use crate::json::{Key, Value};

/// When a field is serialized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// Always, also if empty.
    Always,
    /// Not if empty; structs are never empty.
    OmitEmpty,
    /// Not if zero; a struct is zero if none of its fields is set.
    OmitZero,
    /// Absent or a value.
    Pointer,
    /// A value or null.
    PointerNull,
}

/// How a list or map is merged by apply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Topology {
    /// By type: maps and structs are granular, lists atomic.
    Default,
    /// Atomic.
    Atomic,
    /// Granular, though the type is atomic elsewhere.
    Granular,
    /// A list of distinct scalars.
    Set,
    /// A list of objects keyed by these fields.
    Keyed(Vec<&'static str>),
}

/// How strategic merge treats a field.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Patch {
    /// Lists are merged by element.
    pub merge: bool,
    /// The patch may list the only keys to retain.
    pub retain_keys: bool,
    /// The field is replaced as a whole.
    pub replace: bool,
    /// The merge key; `None` for lists of scalars.
    pub key: Option<&'static str>,
}

/// How a field behind a disabled gate is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Off {
    /// Only itself.
    Alone,
    /// With the containing struct, if that has nothing else.
    Hollow,
}

/// A type in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TypeId(u16);

impl TypeId {
    /// The referenced type.
    pub fn get(self) -> &'static Type {
        &TABLE.types[self.0 as usize]
    }
}

/// The type of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    String,
    Bool,
    Int32,
    Int64,
    Float64,
    /// Base64 in JSON.
    Bytes,
    Quantity,
    IntOrString,
    Time,
    MicroTime,
    /// A duration in Go's format: `1m30s`.
    Duration,
    /// Any object, kept unchanged.
    Raw,
    /// The field set of a managedFields entry.
    FieldsV1,
    /// Any JSON value.
    Any,
    /// apiextensions: any JSON value.
    Json,
    /// apiextensions: a schema or a boolean.
    PropsOrBool,
    /// apiextensions: a schema or a list of them.
    PropsOrArray,
    /// apiextensions: a schema or a list of strings.
    PropsOrStrings,
    Struct(TypeId),
    List(&'static Shape),
    Map(&'static Shape),
}

/// A field as in JSON.
#[derive(Debug)]
pub struct Field {
    pub name: &'static str,
    /// The name as it follows another field in JSON: a comma, the quoted name, a colon.
    pub(crate) written: &'static str,
    /// Its step in field sets: `f:` and the name.
    pub step: &'static str,
    /// The step as it follows another one in JSON, with a leaf as its value.
    pub(crate) written_step: &'static str,
    /// Its position among the type's fields sorted by name.
    pub(crate) rank: usize,
    /// The types it is inlined through, each with a dot, as in messages: `VolumeSource.`.
    pub inlined: &'static str,
    /// Its number within the declaring struct; 0 if protobuf has none.
    pub number: u32,
    pub shape: Shape,
    /// The type's name in messages, such as `v1.Protocol` or `[]v1.Container`.
    pub type_name: String,
    /// The enumeration of the type, or of its elements, separated by bars.
    pub values: Option<&'static str>,
    pub presence: Presence,
    pub required: bool,
    pub topology: Topology,
    pub patch: Patch,
    /// JSON text.
    pub default: Option<&'static str>,
    /// How the field is dropped if its feature gate is disabled.
    pub off: Option<Off>,
    /// Whether an empty list or map in the request differs from an absent one until the object is
    /// stored.
    pub sent: bool,
    zero: OnceLock<Option<Value>>,
}

impl Field {
    /// What is serialized if the field is not set; `None` if nothing is.
    pub fn zero(&self) -> Option<&Value> {
        self.zero.get_or_init(|| zero(self)).as_ref()
    }

    /// Whether an absent value differs from zero.
    pub fn is_pointer(&self) -> bool {
        matches!(self.presence, Presence::Pointer | Presence::PointerNull)
    }
}

/// The zero value of a shape as JSON.
pub fn zero_of(shape: Shape) -> Value {
    match shape {
        Shape::String => Value::from(""),
        Shape::Bool => Value::from(false),
        Shape::Int32 | Shape::Int64 | Shape::Float64 | Shape::IntOrString => Value::from(0),
        Shape::Quantity => Value::from("0"),
        Shape::Duration => Value::from("0s"),
        Shape::Struct(id) => {
            let fields = id.get().fields.iter();
            Value::Object(
                fields
                    .filter_map(|f| Some((Key::fixed(f.name), f.zero()?.clone())))
                    .collect(),
            )
        }
        _ => Value::Null,
    }
}

fn zero(field: &Field) -> Option<Value> {
    match field.presence {
        Presence::Always => Some(zero_of(field.shape)),
        Presence::PointerNull => Some(Value::Null),
        Presence::Pointer | Presence::OmitZero => None,
        Presence::OmitEmpty => match field.shape {
            Shape::Struct(_)
            | Shape::Time
            | Shape::MicroTime
            | Shape::Duration
            | Shape::Quantity
            | Shape::IntOrString
            | Shape::Raw
            | Shape::Json => Some(zero_of(field.shape)),
            _ => None,
        },
    }
}

/// A field of the type itself, or an inlined type.
#[derive(Debug)]
pub enum Member {
    /// The index in [`Type::fields`].
    Field(usize),
    /// Inlined under its own protobuf number, or none (0).
    Inline { number: u32, of: TypeId },
}

/// Hashes field names. The set is fixed and small, so client input cannot cause collisions: unknown
/// names only miss.
#[derive(Debug, Clone, Copy, Default)]
struct FieldHash;

impl BuildHasher for FieldHash {
    type Hasher = FieldHasher;

    fn build_hasher(&self) -> FieldHasher {
        FieldHasher(0xcbf2_9ce4_8422_2325)
    }
}

/// Hashes the beginning, the middle and the end: no two names of a type are equal in all of them.
struct FieldHasher(u64);

impl Hasher for FieldHasher {
    fn write(&mut self, bytes: &[u8]) {
        let length = bytes.len();
        let word = |at: usize| match bytes.get(at..at + 8) {
            Some(word) => u64::from_le_bytes(word.try_into().unwrap_or_default()),
            None => 0,
        };
        let words = match length {
            8.. => [word(0), word(length / 2 - 4), word(length - 8)],
            _ => {
                let byte = |at: usize| u64::from(bytes.get(at).copied().unwrap_or_default());
                let half = |at: usize| byte(at) | byte(at + 1) << 8 | byte(at + 2) << 16;
                [half(0), half(3), byte(6)]
            }
        };
        self.0 ^= length as u64;
        for word in words {
            self.0 = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            self.0 ^= self.0 >> 32;
        }
    }

    /// The terminator of a string adds nothing.
    fn write_u8(&mut self, _: u8) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The positions of a struct's fields by the addresses of their names: every name is in memory
/// once, and decoded entries refer to it.
#[derive(Debug)]
struct Addresses {
    /// More than twice as many as fields, a power of two. If two names map to the same slot, the
    /// first has it. Each slot has the name, its position and its rank.
    slots: Box<[(&'static str, u16, u16)]>,
    shift: u32,
}

impl Addresses {
    fn new(fields: &[Field]) -> Self {
        let count = (fields.len() * 4).next_power_of_two().max(2);
        let mut addresses = Self {
            slots: vec![("", 0, 0); count].into(),
            shift: usize::BITS - count.ilog2(),
        };
        for (place, field) in fields.iter().enumerate() {
            let slot = addresses.slot(field.name);
            if addresses.slots[slot].0.is_empty() {
                addresses.slots[slot] = (field.name, place as u16, field.rank as u16);
            }
        }
        addresses
    }

    #[inline]
    fn slot(&self, name: &str) -> usize {
        let address = name.as_ptr() as usize;
        address.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as usize) >> self.shift
    }

    #[inline]
    fn find(&self, name: &str) -> Option<(usize, usize)> {
        let (known, place, rank) = self.slots[self.slot(name)];
        // Unused slots hold the empty string.
        let is_own = std::ptr::eq(known, name) && !name.is_empty();
        is_own.then_some((usize::from(place), usize::from(rank)))
    }
}

/// A struct.
#[derive(Debug)]
pub struct Type {
    /// Such as `apps/v1`.
    pub package: &'static str,
    /// Such as `Deployment`.
    pub name: &'static str,
    /// Whether it is atomic for apply.
    pub atomic: bool,
    /// In declared order, with inlined types.
    pub members: Vec<Member>,
    /// As in JSON: inlined types flattened, `apiVersion` and `kind` first.
    pub fields: Vec<Field>,
    index: HashMap<&'static str, u16, FieldHash>,
    addresses: Addresses,
    /// The indexes of the fields, sorted by name.
    by_rank: Vec<u16>,
    /// The fields that are serialized if nothing is set.
    pub always: Vec<u16>,
    /// The fields behind disabled gates, and those that lead to such.
    pub(crate) gated: OnceLock<Vec<u16>>,
}

impl Type {
    /// The index of a field in [`Type::fields`].
    pub fn position(&self, name: &str) -> Option<usize> {
        // Small structs are searched faster than hashed.
        if self.fields.len() <= 6 {
            return self.fields.iter().position(|f| f.name == name);
        }
        self.index.get(name).map(|&i| i as usize)
    }

    /// The index of an entry's field: without a search for names from the table, as most are.
    #[inline]
    pub fn position_of(&self, key: &Key) -> Option<usize> {
        match self.addresses.find(key) {
            Some((place, _)) => Some(place),
            None => self.position(key),
        }
    }

    /// The rank of an entry's field by name.
    #[inline]
    pub(crate) fn rank_of(&self, key: &Key) -> Option<usize> {
        match self.addresses.find(key) {
            Some((_, rank)) => Some(rank),
            None => self.position(key).map(|place| self.fields[place].rank),
        }
    }

    /// The field of a rank from [`Type::rank_of`].
    #[inline]
    pub(crate) fn ranked(&self, rank: usize) -> &Field {
        &self.fields[usize::from(self.by_rank[rank])]
    }

    /// A field by its JSON name.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.position(name).map(|i| &self.fields[i])
    }

    /// The version part of the package, as messages print it before the name.
    pub fn version(&self) -> &'static str {
        self.package.rsplit('/').next().unwrap_or_default()
    }
}

struct Table {
    types: Vec<Type>,
    by_name: HashMap<(&'static str, &'static str), TypeId>,
}

static TABLE: LazyLock<Table> = LazyLock::new(parse::table);

/// The names of all fields, and their steps.
static NAMES: LazyLock<HashSet<&'static str, FieldHash>> = LazyLock::new(|| {
    let fields = TABLE.types.iter().flat_map(|t| &t.fields);
    fields.flat_map(|field| [field.name, field.step]).collect()
});

/// The table's own copy of a field's name, or of its step.
pub fn name(name: &str) -> Option<&'static str> {
    NAMES.get(name).copied()
}

/// The type by its full name such as `apps/v1.Deployment` or `core/v1.Pod`.
pub fn lookup(name: &str) -> Option<&'static Type> {
    let (package, name) = name.rsplit_once('.')?;
    find(package, name).map(TypeId::get)
}

/// The type by group, version and kind.
pub fn lookup_kind(group: &str, version: &str, kind: &str) -> Option<&'static Type> {
    let package = match group {
        "" => "core",
        "rbac.authorization.k8s.io" => "rbac",
        other => other.split('.').next().unwrap_or_default(),
    };
    find(&format!("{package}/{version}"), kind).map(TypeId::get)
}

fn find(package: &str, name: &str) -> Option<TypeId> {
    TABLE.by_name.get(&(package, name)).copied()
}

/// All types, in the table's order.
pub fn all() -> &'static [Type] {
    &TABLE.types
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_of_a_type_fit_into_a_set_of_128() {
        assert!(all().iter().all(|schema| schema.fields.len() <= 128));
    }

    #[test]
    fn a_field_is_found_by_any_copy_of_its_name() {
        for schema in all() {
            for (place, field) in schema.fields.iter().enumerate() {
                let own = Key::fixed(field.name);
                let copied = Key::from(field.name.to_owned());
                assert_eq!(schema.position_of(&own), Some(place), "{}", field.name);
                assert_eq!(schema.position_of(&copied), Some(place), "{}", field.name);
            }
            assert_eq!(schema.position_of(&Key::fixed("")), None);
            assert_eq!(schema.position_of(&Key::fixed("no such field")), None);
        }
    }

    #[test]
    fn a_deployment_is_found_with_its_fields_in_order() {
        let deployment = lookup("apps/v1.Deployment").unwrap();
        let names: Vec<_> = deployment.fields.iter().map(|f| f.name).collect();
        assert_eq!(names, ["apiVersion", "kind", "metadata", "spec", "status"]);
        assert_eq!(
            lookup_kind("apps", "v1", "Deployment").unwrap().name,
            "Deployment"
        );
        assert!(lookup("apps/v1.Nothing").is_none());
    }

    #[test]
    fn inlined_types_are_flattened_for_json_and_kept_for_protobuf() {
        let volume = lookup("core/v1.Volume").unwrap();
        assert_eq!(volume.fields[1].name, "hostPath");
        assert!(matches!(
            volume.members[1],
            Member::Inline { number: 2, .. }
        ));
    }

    #[test]
    fn list_facts_are_read() {
        let ports = lookup("core/v1.Container").unwrap().field("ports").unwrap();
        assert_eq!(
            ports.topology,
            Topology::Keyed(vec!["containerPort", "protocol"])
        );
        assert_eq!(ports.patch.key, Some("containerPort"));
        assert!(ports.patch.merge);
        assert_eq!(ports.type_name, "[]v1.ContainerPort");
        let protocol = lookup("core/v1.ContainerPort")
            .unwrap()
            .field("protocol")
            .unwrap();
        assert_eq!(protocol.default, Some("\"TCP\""));
    }

    #[test]
    fn the_zero_value_of_a_type_is_written_as_by_go() {
        let pod = lookup("core/v1.Pod").unwrap();
        let zero = zero_of(Shape::Struct(find(pod.package, pod.name).unwrap()));
        let expected = r#"{"metadata":{},"spec":{"containers":null},"status":{}}"#;
        assert_eq!(zero.to_string(), expected);
    }

    #[test]
    fn every_type_of_the_table_is_known_to_the_index() {
        assert!(all().len() > 600);
        for t in all() {
            for f in &t.fields {
                assert_eq!(
                    t.field(f.name).unwrap().number,
                    f.number,
                    "{}.{}",
                    t.name,
                    f.name
                );
            }
        }
    }
}
