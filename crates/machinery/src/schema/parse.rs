//! Parses the table's text into memory, once.

use super::{Addresses, Field, Member, Off, Patch, Presence, Shape, Table, Topology, Type, TypeId};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::OnceLock;

macro_rules! packages {
    ($($file:literal),* $(,)?) => {
        &[$(include_str!(concat!("table/", $file, ".txt"))),*]
    };
}

const PACKAGES: &[&str] = packages![
    "admission_v1",
    "admissionregistration_v1",
    "apidiscovery_v2",
    "apiextensions_v1",
    "apiregistration_v1",
    "apps_v1",
    "authentication_v1",
    "authorization_v1",
    "autoscaling_v1",
    "autoscaling_v2",
    "batch_v1",
    "certificates_v1",
    "coordination_v1",
    "core_v1",
    "discovery_v1",
    "events_v1",
    "flowcontrol_v1",
    "meta_v1",
    "metrics_v1beta1",
    "networking_v1",
    "node_v1",
    "policy_v1",
    "rbac_v1",
    "resource_v1",
    "scheduling_v1",
    "storage_v1",
    "storagemigration_v1beta1",
];

/// A type's lines, before its fields can be resolved.
struct Block {
    package: &'static str,
    name: &'static str,
    atomic: bool,
    lines: Vec<&'static str>,
}

#[derive(Default)]
struct Names {
    structs: HashMap<(&'static str, &'static str), TypeId>,
    aliases: HashMap<(&'static str, &'static str), &'static str>,
    /// The enumerations of aliases, separated by bars.
    values: HashMap<(&'static str, &'static str), &'static str>,
    /// Inlining needs a type's own lines.
    blocks: Vec<Block>,
    /// The serialized forms of field names, each once.
    forms: RefCell<HashMap<&'static str, Forms>>,
    /// The types that fields are inlined through, each once.
    inlined: RefCell<Vec<&'static str>>,
}

/// The name of a field as it follows another one in JSON, and its step with a leaf as its value.
#[derive(Clone, Copy)]
struct Forms {
    written: &'static str,
    written_step: &'static str,
}

impl Names {
    /// The same text for ever; leaks each text once.
    fn intern(&self, text: String) -> &'static str {
        let mut interned = self.inlined.borrow_mut();
        if let Some(known) = interned.iter().find(|known| **known == text) {
            return known;
        }
        let text = Box::leak(text.into_boxed_str());
        interned.push(text);
        text
    }

    /// The serialized forms of a field's name, leaked: there is one table in a process.
    fn forms(&self, name: &'static str) -> Forms {
        let mut forms = self.forms.borrow_mut();
        *forms.entry(name).or_insert_with(|| Forms {
            written: Box::leak(format!(",\"{name}\":").into_boxed_str()),
            written_step: Box::leak(format!(",\"f:{name}\":{{}}").into_boxed_str()),
        })
    }
}

pub(super) fn table() -> Table {
    let names = collect();
    let types = (0..names.blocks.len()).map(|i| build(&names, i)).collect();
    Table {
        types,
        by_name: names.structs,
    }
}

fn collect() -> Names {
    let mut names = Names::default();
    for text in PACKAGES {
        let mut package = "";
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("# ") {
                package = name;
            } else if line.starts_with(' ') {
                if let Some(block) = names.blocks.last_mut() {
                    block.lines.push(line);
                }
            } else if let Some((name, target)) = line.split_once(" = ") {
                let target = match target.split_once(' ') {
                    Some((target, values)) => {
                        names.values.insert((package, name), values);
                        target
                    }
                    None => target,
                };
                names.aliases.insert((package, name), target);
            } else {
                let (name, atomic) = match line.split_once(' ') {
                    Some((name, _)) => (name, true),
                    None => (line, false),
                };
                // Far fewer types than a u16 can count.
                let id = TypeId(names.blocks.len() as u16);
                names.structs.insert((package, name), id);
                names.blocks.push(Block {
                    package,
                    name,
                    atomic,
                    lines: Vec::new(),
                });
            }
        }
    }
    names
}

fn build(names: &Names, at: usize) -> Type {
    let block = &names.blocks[at];
    let mut fields = Vec::new();
    let mut members = Vec::new();
    flatten(names, at, "", &mut fields, Some(&mut members));
    rank(&mut fields);
    let index = fields
        .iter()
        .enumerate()
        .map(|(i, f): (usize, &Field)| (f.name, i as u16))
        .collect();
    let mut by_rank: Vec<u16> = (0..fields.len() as u16).collect();
    by_rank.sort_unstable_by_key(|&at| fields[usize::from(at)].rank);
    let always = (0..fields.len()).filter(|&i| may_be_written_unset(&fields[i]));
    let always = always.map(|i| i as u16).collect();
    Type {
        package: block.package,
        name: block.name,
        atomic: block.atomic,
        members,
        addresses: Addresses::new(&fields),
        fields,
        index,
        by_rank,
        always,
        gated: OnceLock::new(),
    }
}

/// Sets the rank of each field by its name.
fn rank(fields: &mut [Field]) {
    let mut by_name: Vec<usize> = (0..fields.len()).collect();
    by_name.sort_unstable_by_key(|&at| fields[at].name);
    for (rank, at) in by_name.into_iter().enumerate() {
        fields[at].rank = rank;
    }
}

/// Whether `Field::zero` may be `Some`, without resolving the types it refers to.
fn may_be_written_unset(field: &Field) -> bool {
    match field.presence {
        Presence::Always | Presence::PointerNull => true,
        Presence::Pointer | Presence::OmitZero => false,
        Presence::OmitEmpty => matches!(
            field.shape,
            Shape::Struct(_)
                | Shape::Time
                | Shape::MicroTime
                | Shape::Duration
                | Shape::Quantity
                | Shape::IntOrString
                | Shape::Raw
                | Shape::Json
        ),
    }
}

/// Adds a type's fields; `inside` are the types it is inlined through.
fn flatten(
    names: &Names,
    at: usize,
    inside: &'static str,
    fields: &mut Vec<Field>,
    mut members: Option<&mut Vec<Member>>,
) {
    let block = &names.blocks[at];
    // `apiVersion` is serialized first, though `kind` is declared first.
    let is_type_meta = block.package == "meta/v1" && block.name == "TypeMeta";
    let lines: Vec<&str> = if is_type_meta {
        block.lines.iter().rev().copied().collect()
    } else {
        block.lines.clone()
    };
    for line in lines {
        let mut words = line.split_ascii_whitespace();
        let name = words.next().unwrap_or_default();
        let number = words
            .next()
            .and_then(|n| n.parse().ok())
            .unwrap_or_default();
        let type_text = words.next().unwrap_or_default();
        if name == "+" {
            let (package, local) = full_name(block.package, type_text);
            if let Some(&of) = names.structs.get(&(package, local)) {
                let through = format!("{inside}{local}.");
                flatten(names, of.0 as usize, names.intern(through), fields, None);
                if let Some(members) = members.as_deref_mut() {
                    members.push(Member::Inline { number, of });
                }
            }
            continue;
        }
        if let Some(members) = members.as_deref_mut() {
            members.push(Member::Field(fields.len()));
        }
        let mut field = field(names, block.package, name, number, type_text, words);
        field.inlined = inside;
        fields.push(field);
    }
}

fn field(
    names: &Names,
    package: &'static str,
    name: &'static str,
    number: u32,
    type_text: &'static str,
    words: impl Iterator<Item = &'static str>,
) -> Field {
    let (presence, type_text) = match type_text.as_bytes().first() {
        Some(b'?') => (Presence::OmitEmpty, &type_text[1..]),
        Some(b'*') => (Presence::Pointer, &type_text[1..]),
        Some(b'~') => (Presence::PointerNull, &type_text[1..]),
        Some(b'0') => (Presence::OmitZero, &type_text[1..]),
        _ => (Presence::Always, type_text),
    };
    let Forms {
        written,
        written_step,
    } = names.forms(name);
    let mut field = Field {
        name: &written[2..name.len() + 2],
        written,
        step: &written_step[2..name.len() + 4],
        written_step,
        rank: 0,
        inlined: "",
        number,
        shape: shape(names, package, type_text),
        type_name: type_name(package, type_text),
        values: values(names, package, type_text),
        presence,
        required: false,
        topology: Topology::Default,
        patch: Patch::default(),
        default: None,
        off: None,
        sent: false,
        zero: OnceLock::new(),
    };
    for word in words {
        match word.split_once('=') {
            None if word == "!" => field.required = true,
            None if word == "off" => field.off = Some(Off::Alone),
            Some(("off", "hollow")) => field.off = Some(Off::Hollow),
            None if word == "sent" => field.sent = true,
            None if word == "atomic" => field.topology = Topology::Atomic,
            None if word == "set" => field.topology = Topology::Set,
            None if word == "granular" => field.topology = Topology::Granular,
            Some(("keys", keys)) => field.topology = Topology::Keyed(keys.split(',').collect()),
            Some(("patch", text)) => field.patch = patch(text),
            Some(("default", text)) => field.default = Some(text),
            _ => {}
        }
    }
    field
}

fn patch(text: &'static str) -> Patch {
    let (strategies, key) = match text.split_once('(') {
        Some((strategies, key)) => (strategies, Some(key.trim_end_matches(')'))),
        None => (text, None),
    };
    let has = |name: &str| strategies.split(',').any(|s| s == name);
    Patch {
        merge: has("merge"),
        retain_keys: has("retainKeys"),
        replace: has("replace"),
        key,
    }
}

/// The key and element types of a map, `{Key}Element`; without a name the keys are strings.
fn map_of(text: &'static str) -> Option<(&'static str, &'static str)> {
    text.strip_prefix('{')?.split_once('}')
}

/// Package and name of a type as a line of `package` refers to it.
fn full_name(package: &'static str, text: &'static str) -> (&'static str, &'static str) {
    text.rsplit_once('.').unwrap_or((package, text))
}

fn shape(names: &Names, package: &'static str, text: &'static str) -> Shape {
    if let Some(element) = text.strip_prefix("[]") {
        return Shape::List(Box::leak(Box::new(shape(names, package, element))));
    }
    if let Some((_, element)) = map_of(text) {
        return Shape::Map(Box::leak(Box::new(shape(names, package, element))));
    }
    match text {
        "string" => return Shape::String,
        "bool" => return Shape::Bool,
        "int32" => return Shape::Int32,
        "int64" => return Shape::Int64,
        "float64" => return Shape::Float64,
        "bytes" => return Shape::Bytes,
        "Quantity" => return Shape::Quantity,
        "IntOrString" => return Shape::IntOrString,
        "Time" => return Shape::Time,
        "MicroTime" => return Shape::MicroTime,
        "Duration" => return Shape::Duration,
        "Raw" => return Shape::Raw,
        "FieldsV1" => return Shape::FieldsV1,
        "Any" => return Shape::Any,
        "JSON" => return Shape::Json,
        "PropsOrBool" => return Shape::PropsOrBool,
        "PropsOrArray" => return Shape::PropsOrArray,
        "PropsOrStrings" => return Shape::PropsOrStrings,
        "types.UID" | "types.NodeName" => return Shape::String,
        _ => {}
    }
    let key = full_name(package, text);
    match (names.structs.get(&key), names.aliases.get(&key)) {
        (Some(&id), _) => Shape::Struct(id),
        (None, Some(target)) => shape(names, key.0, target),
        // A test walks the whole table: all names resolve.
        (None, None) => Shape::Any,
    }
}

/// The enumeration of a type, or of its elements.
fn values(names: &Names, package: &'static str, text: &'static str) -> Option<&'static str> {
    let text = text.trim_start_matches("[]");
    // A map may name the type of its keys.
    let text = match text.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
        Some((_, element)) => element,
        None => text,
    };
    names.values.get(&full_name(package, text)).copied()
}

fn type_name(package: &'static str, text: &'static str) -> String {
    if let Some(element) = text.strip_prefix("[]") {
        return format!("[]{}", type_name(package, element));
    }
    if let Some((key, element)) = map_of(text) {
        let key = if key.is_empty() { "string" } else { key };
        return format!(
            "map[{}]{}",
            type_name(package, key),
            type_name(package, element)
        );
    }
    match text {
        "string" | "bool" | "int32" | "int64" | "float64" => text.to_owned(),
        "bytes" => "[]uint8".to_owned(),
        "Quantity" => "resource.Quantity".to_owned(),
        "IntOrString" => "intstr.IntOrString".to_owned(),
        "Raw" => "runtime.RawExtension".to_owned(),
        "Any" => "interface {}".to_owned(),
        "Time" | "MicroTime" | "Duration" | "FieldsV1" => format!("v1.{text}"),
        text if text.starts_with("types.") => text.to_owned(),
        text => {
            let (package, name) = full_name(package, text);
            format!("{}.{name}", package.rsplit('/').next().unwrap_or_default())
        }
    }
}
