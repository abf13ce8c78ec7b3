//! The specs of the newest pods as JSON text: a pod with one of these specs, with or without a node, is recognised by
//! comparing bytes, so that its spec is neither decoded nor searched for its end. Pods of one workload have the same spec,
//! and a pod that gets its node has its own spec with one more field.

use std::{
    borrow::Cow,
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Weak},
};

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    spec_memo::{Metadata, Outline, Status},
    template::Template,
    token_volume::Pattern,
};

/// How many specs are remembered.
const REMEMBERED: usize = 16;
/// Longer specs are not remembered.
const LONGEST: usize = 16 << 10;

/// The fields of a spec that come before `nodeName` in the API's order.
const BEFORE_NODE_NAME: &[&str] = &[
    "volumes",
    "initContainers",
    "containers",
    "ephemeralContainers",
    "restartPolicy",
    "terminationGracePeriodSeconds",
    "activeDeadlineSeconds",
    "dnsPolicy",
    "nodeSelector",
    "serviceAccountName",
    "serviceAccount",
    "automountServiceAccountToken",
];

/// The text of everything that determines a template.
#[derive(Debug)]
struct Recent {
    namespace: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    owners: Option<String>,
    /// The spec up to where its `nodeName` is or would be, and from there on.
    before: Pattern,
    after: String,
    template: Weak<Template>,
}

/// The newest first.
#[derive(Debug, Default)]
pub(crate) struct RecentSpecs {
    recent: VecDeque<Recent>,
}

/// A value at the start of a text, and the text after it.
fn leading<'a, T: Deserialize<'a>>(text: &'a str) -> Option<(T, &'a str)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter();
    let value = values.next()?.ok()?;
    Some((value, &text[values.byte_offset()..]))
}

/// The text after `apiVersion` and `kind`, in the order of our server or of kube-apiserver.
fn metadata_of(text: &str) -> Option<&str> {
    let ours = text.strip_prefix(r#"{"apiVersion":"v1","kind":"Pod","metadata":"#);
    ours.or_else(|| text.strip_prefix(r#"{"kind":"Pod","apiVersion":"v1","metadata":"#))
}

impl RecentSpecs {
    /// A pod with a remembered spec: its outline without the spec, and its template.
    pub(crate) fn read<'a>(&self, text: &'a str) -> Option<(Outline<'a>, Arc<Template>)> {
        let (metadata, rest) = leading::<Metadata<'_>>(metadata_of(text)?)?;
        let rest = rest.strip_prefix(r#","spec":"#)?;
        let found = self.recent.iter().find_map(|recent| {
            let (node, rest) = recent.matches(rest)?;
            recent.belongs_to(&metadata).then_some((recent, node, rest))
        });
        let (recent, node, rest) = found?;
        let status = match rest.strip_prefix(r#","status":"#) {
            Some(rest) => {
                let (status, rest) = leading::<Status>(rest)?;
                (rest == "}").then_some(Some(status))?
            }
            None => (rest == "}").then_some(None)?,
        };
        let outline = Outline::without_spec(metadata, node, status)?;
        Some((outline, recent.template.upgrade()?))
    }

    /// Remembers the spec of a pod that was read in another way.
    pub(crate) fn remember(&mut self, spec: RememberedSpec, template: &Arc<Template>) {
        let mut recent = spec.0;
        recent.template = Arc::downgrade(template);
        self.recent.truncate(REMEMBERED - 1);
        self.recent.push_front(recent);
    }
}

/// A spec to remember, once its template is known.
pub(crate) struct RememberedSpec(Recent);

impl RememberedSpec {
    /// Of a pod whose fields are in the API's order; `None` if they are not, or too long.
    pub(crate) fn new(
        metadata: &Metadata<'_>,
        fields: &[(Cow<'_, str>, &RawValue)],
    ) -> Option<Self> {
        let is_before = |name: &str| BEFORE_NODE_NAME.contains(&name);
        let split = fields.partition_point(|(name, _)| is_before(name));
        let (first, rest) = fields.split_at(split);
        let is_in_order = first.iter().all(|(name, _)| is_before(name))
            && !rest.iter().any(|(name, _)| is_before(name));
        let length: usize = fields.iter().map(|(_, value)| value.get().len()).sum();
        if first.is_empty() || !is_in_order || length > LONGEST {
            return None;
        }
        let mut before = String::from("{");
        for (at, (name, value)) in first.iter().enumerate() {
            before.push_str(if at == 0 { "\"" } else { ",\"" });
            before.extend([&**name, "\":", value.get()]);
        }
        let mut after = String::new();
        for (name, value) in rest {
            after.extend([",\"", &**name, "\":", value.get()]);
        }
        after.push('}');
        Some(Self(Recent {
            namespace: metadata.namespace.clone(),
            labels: metadata.labels.clone(),
            owners: metadata
                .owner_references
                .map(|owners| owners.get().to_owned()),
            before: Pattern::new(before),
            after,
            template: Weak::new(),
        }))
    }
}

impl Recent {
    /// Whether the text begins with this spec: its node, if it has one, and the text after the spec.
    fn matches<'a>(&self, text: &'a str) -> Option<(Option<&'a str>, &'a str)> {
        let rest = self.before.strip(text)?;
        let Some(named) = rest.strip_prefix(r#","nodeName":""#) else {
            return Some((None, rest.strip_prefix(self.after.as_str())?));
        };
        let (node, rest) = named.split_once('"')?;
        let rest = rest.strip_prefix(self.after.as_str())?;
        // A name with an escape is decoded in another way.
        (!node.contains('\\')).then_some((Some(node), rest))
    }

    fn belongs_to(&self, metadata: &Metadata<'_>) -> bool {
        self.namespace == metadata.namespace
            && self.labels == metadata.labels
            && self.owners.as_deref() == metadata.owner_references.map(RawValue::get)
    }
}
