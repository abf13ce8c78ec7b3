//! A binding as an edit of the pod's stored bytes: the node's name, one condition and the binding's labels are inserted.
//! Parsing the pod, copying it and encoding it again would take most of the time of a binding. Pods that need more than
//! that are left to [`super::assign`], whose result is the same.

use std::{collections::BTreeMap, ops::Range};

use machinery::{
    Object, Value, encode,
    schema::{Shape, Type},
};
use registry::{FieldPlace, fields_until};

use crate::{Draft, Stored, meta};

/// What replaces a range of the bytes.
type Edit = (Range<usize>, Vec<u8>);

/// The pod with its node, if it only needs these edits; `None` if it cannot be bound, or needs more.
pub(super) fn assign(
    stored: &Stored,
    schema: &'static Type,
    binding: &Object,
    node: &str,
    condition: &Object,
) -> Option<Draft> {
    let bytes = stored.bytes();
    let asks_for_more = ["annotations", "resourceVersion"]
        .iter()
        .any(|name| meta::metadata(binding).is_some_and(|given| given.contains_key(name)));
    let uid = meta::text(binding, "uid");
    // Also true if only a string or a manager contains it: such pods are rare.
    let may_be_deleting = contains(&stored.metadata(), b"\"deletionTimestamp\"");
    if asks_for_more || may_be_deleting || !(uid.is_empty() || stored.has_uid(&bytes, uid)) {
        return None;
    }
    let places = stored.fields_after_metadata(&bytes).ok()?;
    let part = |name: &str| {
        let (place, inside) = places
            .iter()
            .find(|(place, _)| place.name == name.as_bytes())?;
        Some((struct_of(schema, name)?, place, inside))
    };
    let ((spec, spec_at, spec_fields), (status, status_at, status_fields)) =
        (part("spec")?, part("status")?);
    let is_set = |name| find(spec_fields, name).is_some();
    if is_set("nodeName") || is_set("schedulingGates") {
        return None;
    }
    let name = Value::from(node).to_string();
    let end = spec_at.value.end - 1;
    let named = insertion(spec, spec_fields, end, "nodeName", name.as_bytes())?;
    if find(status_fields, "nominatedNodeName").is_some() {
        return None;
    }
    let end = status_at.value.end - 1;
    let marked = with_condition(&bytes, status, status_fields, end, condition)?;
    let labels = labels(stored, binding)?;
    let mut edits = vec![named, marked];
    if stored.header.labels().len() != labels.len() {
        edits.push(with_labels(stored, &bytes, schema, &labels)?);
    }
    edits.sort_unstable_by_key(|(range, _)| range.start);
    let field = ("spec.nodeName", node);
    Some(Draft::edited(stored, &bytes, &edits, &labels, field))
}

/// The pod's labels and those of the binding, sorted by key; `None` if the binding changes one.
fn labels<'a>(stored: &'a Stored, binding: &'a Object) -> Option<Vec<(&'a str, &'a str)>> {
    let mut labels: BTreeMap<&str, &str> = stored.header.labels().collect();
    let given = meta::metadata(binding).and_then(|given| given.get("labels"));
    for (key, value) in given.and_then(Value::as_object).into_iter().flatten() {
        let value = value.as_str()?;
        if *labels.entry(key.as_str()).or_insert(value) != value {
            return None;
        }
    }
    Some(labels.into_iter().collect())
}

/// The edit that writes these labels.
fn with_labels(
    stored: &Stored,
    bytes: &[u8],
    schema: &'static Type,
    labels: &[(&str, &str)],
) -> Option<Edit> {
    let schema = struct_of(schema, "metadata")?;
    let own = schema.position("labels")?;
    let is_after = |name: &[u8]| {
        let position = std::str::from_utf8(name)
            .ok()
            .and_then(|name| schema.position(name));
        position.is_none_or(|position| position >= own)
    };
    let place = stored.metadata_place();
    let set = fields_until(bytes, place.start, is_after).ok()?;
    // The resourceVersion follows the uid, so that what is inserted later leaves its comma as it is.
    find(&set, "uid")?;
    let text = |text: &str| Value::from(text).to_string();
    let each = labels
        .iter()
        .map(|(key, value)| format!("{}:{}", text(key), text(value)));
    let map = format!("{{{}}}", each.collect::<Vec<_>>().join(","));
    match find(&set, "labels") {
        Some(known) => Some((known.value.clone(), map.into_bytes())),
        None => insertion(schema, &set, place.end - 1, "labels", map.as_bytes()),
    }
}

/// The insertion of a condition; `None` if there is one of its type.
fn with_condition(
    bytes: &[u8],
    schema: &'static Type,
    status: &[FieldPlace<'_>],
    end: usize,
    condition: &Object,
) -> Option<Edit> {
    let Shape::List(Shape::Struct(element)) = schema.field("conditions")?.shape else {
        return None;
    };
    let mut text = encode::part(element.get(), condition);
    let Some(known) = find(status, "conditions") else {
        let list = [b"[", &*text, b"]"].concat();
        return insertion(schema, status, end, "conditions", &list);
    };
    let known = known.value.clone();
    let kind = condition.get("type").and_then(Value::as_str)?;
    if !bytes[known.clone()].ends_with(b"}]") || contains(&bytes[known.clone()], kind.as_bytes()) {
        return None;
    }
    text.insert(0, b',');
    let at = known.end - 1;
    Some((at..at, text))
}

/// Where and how a field is inserted among those that are set, in the schema's order; `end` is the offset of the
/// closing brace.
fn insertion(
    schema: &Type,
    set: &[FieldPlace<'_>],
    end: usize,
    name: &str,
    value: &[u8],
) -> Option<Edit> {
    let own = schema.position(name)?;
    let mut next = None;
    for field in set {
        let position = schema.position(std::str::from_utf8(field.name).ok()?)?;
        if position == own {
            return None;
        }
        if position > own && next.is_none() {
            next = Some(field.at);
        }
    }
    let field = ["\"", name, "\":"].concat();
    let field = field.as_bytes();
    Some(match next {
        Some(at) => (at..at, [field, value, b","].concat()),
        None if set.is_empty() => (end..end, [field, value].concat()),
        None => (end..end, [b",", field, value].concat()),
    })
}

fn find<'a, 'b>(fields: &'b [FieldPlace<'a>], name: &str) -> Option<&'b FieldPlace<'a>> {
    fields.iter().find(|field| field.name == name.as_bytes())
}

/// The type of a field that is a struct.
fn struct_of(schema: &Type, name: &str) -> Option<&'static Type> {
    match schema.field(name)?.shape {
        Shape::Struct(id) => Some(id.get()),
        _ => None,
    }
}

fn contains(bytes: &[u8], text: &[u8]) -> bool {
    memchr::memmem::find(bytes, text).is_some()
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;

    const NOW: &str = "2026-01-01T00:00:00Z";

    fn object(value: Value) -> Object {
        value.as_object().unwrap().clone()
    }

    fn pod_schema() -> &'static Type {
        machinery::schema::lookup("core/v1.Pod").unwrap()
    }

    fn fields_of(pod: &Object) -> Vec<(std::borrow::Cow<'static, str>, String)> {
        let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
        let phase = pod["status"]["phase"].as_str().unwrap_or_default();
        vec![
            ("spec.nodeName".into(), node.to_owned()),
            ("status.phase".into(), phase.to_owned()),
        ]
    }

    fn draft(pod: &Object) -> Draft {
        let encoded = encode::object(Some(pod_schema()), pod);
        Draft::encoded(pod, encoded, fields_of(pod)).unwrap()
    }

    /// The edited pod, which must be the same as the one that is parsed, changed and encoded.
    fn edited(pod: &Value, binding: &Object, node: &str) -> Option<()> {
        let pod = object(pod.clone());
        for revision in [0, 7, 12_345_678_901] {
            let stored = Stored::stamp(draft(&pod), revision);
            let edited = assign(
                &stored,
                pod_schema(),
                binding,
                node,
                &super::super::scheduled(NOW),
            )?;
            let mut changed = super::super::assign(&stored.parse(), binding, node, NOW).unwrap();
            meta::of_mut(&mut changed).shift_remove("resourceVersion");
            // As when it is read from disk: labels in the order of the bytes.
            let changed = draft(&changed);
            let changed = Draft::from_bytes(changed.bytes().clone(), fields_of).unwrap();
            assert_eq!(edited.bytes(), changed.bytes(), "{pod:?}");
            let (one, other) = (Stored::stamp(edited, 9), Stored::stamp(changed, 9));
            assert_eq!(one.header, other.header, "{pod:?}");
            assert_eq!(one.bytes(), other.bytes());
        }
        Some(())
    }

    /// Objects with each of the fields set or not.
    fn variants(fields: &[(&str, Value)]) -> Vec<Value> {
        let count = 1 << fields.len();
        let variant = |which: usize| {
            let set = fields.iter().enumerate();
            let set = set.filter(|(place, _)| which >> place & 1 == 1);
            let set = set.map(|(_, (name, value))| ((*name).to_owned(), value.clone()));
            Value::Object(set.collect())
        };
        (0..count).map(variant).collect()
    }

    #[test]
    fn an_edited_pod_is_the_same_as_a_parsed_and_encoded_one() {
        let mut metadata = variants(&[
            ("name", json!("a \"b\\")),
            ("labels", json!({"app": "}]\",", "ü": "\n"})),
            (
                "managedFields",
                json!([{"manager": "m", "fieldsV1": {"f:spec": {}}}]),
            ),
        ]);
        for metadata in &mut metadata {
            metadata["uid"] = json!("u");
        }
        let specs = variants(&[
            (
                "containers",
                json!([{"name": "c", "image": "nodeName", "args": ["\"nodeName\":\"x\"", "[{"]}]),
            ),
            ("serviceAccountName", json!("s")),
            ("hostNetwork", json!(true)),
            ("tolerations", json!([{"key": "k", "operator": "Exists"}])),
            ("priority", json!(7)),
        ]);
        let condition = json!({"type": "Ready", "status": "False", "lastProbeTime": null, "lastTransitionTime": null});
        let statuses = variants(&[
            ("phase", json!("Pending")),
            ("conditions", json!([condition])),
            ("qosClass", json!("Burstable")),
            ("hostIP", json!("10.0.0.1")),
        ]);
        let zone = json!({"topology.kubernetes.io/zone": "z", "a": "\"", "ü": "\n"});
        let bindings = [json!({"name": "a"}), json!({"name": "a", "labels": zone})];
        let bindings = bindings.map(|metadata| object(json!({"metadata": metadata})));
        for metadata in &metadata {
            for spec in &specs {
                for status in &statuses {
                    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status});
                    for binding in &bindings {
                        assert_eq!(edited(&pod, binding, "n\"1ü"), Some(()), "{pod}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_pod_that_needs_more_or_cannot_be_bound_is_not_edited() {
        let metadata = json!({"name": "a", "uid": "u", "labels": {"a": "c"}});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata,
            "spec": {"containers": []}, "status": {"phase": "Pending"}});
        let binding = object(json!({"metadata": {"uid": "u"}}));
        assert_eq!(edited(&pod, &binding, "n"), Some(()));
        let mut without_uid = object(pod.clone());
        meta::of_mut(&mut without_uid).shift_remove("uid");
        let more = object(json!({"metadata": {"labels": {"b": "c"}}}));
        assert_eq!(edited(&Value::Object(without_uid), &more, "n"), None);
        for more in [
            json!({"uid": "v"}),
            json!({"labels": {"a": "b"}}),
            json!({"annotations": {"a": "b"}}),
            json!({"resourceVersion": "7"}),
        ] {
            let binding = object(json!({"metadata": more}));
            let stored = Stored::stamp(draft(&object(pod.clone())), 7);
            let condition = super::super::scheduled(NOW);
            let edited = assign(&stored, pod_schema(), &binding, "n", &condition);
            assert!(edited.is_none(), "{more}");
        }
        for (part, name, value) in [
            ("metadata", "deletionTimestamp", json!(NOW)),
            ("spec", "nodeName", json!("n")),
            ("spec", "schedulingGates", json!([{"name": "g"}])),
            ("status", "nominatedNodeName", json!("n")),
            (
                "status",
                "conditions",
                json!([{"type": "PodScheduled", "status": "False"}]),
            ),
        ] {
            let mut other = object(pod.clone());
            other[part][name] = value;
            let stored = Stored::stamp(draft(&other), 7);
            let condition = super::super::scheduled(NOW);
            let edited = assign(&stored, pod_schema(), &binding, "n", &condition);
            assert!(edited.is_none(), "{name}");
        }
    }
}
