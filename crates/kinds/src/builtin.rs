//! A built-in kind as data: names, scope and the functions behind it. One constant of this type per
//! file, one line in [`crate::ALL`].

use std::{borrow::Cow, time::Duration};

use crate::metadata::{self, Check, NameFormat};
use crate::tree::{get, keep};
use crate::{
    Column, Context, Deletion, Kind, Names, Requester, Scope, Subresource, SubresourceInfo, columns,
};
use machinery::{Object, Value, field};

type Resets = &'static [&'static [&'static str]];
type Prepare = fn(&mut Object, &Object, Subresource<'_>, &Context<'_>);

/// The facts of a kind. [`Builtin::EMPTY`] has the defaults.
pub struct Builtin {
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    pub plural: &'static str,
    pub short_names: &'static [&'static str],
    pub categories: &'static [&'static str],
    pub scope: Scope,
    /// The type's name in the schema table.
    pub schema: &'static str,
    pub verbs: &'static [&'static str],
    pub subresources: &'static [SubresourceInfo],
    /// Whether `status` can be written only through the status subresource.
    pub has_status: bool,
    /// Whether the kind itself sets the status of a new object.
    pub settles_status: bool,
    /// Paths that a write of the object cannot set if there is a status; they get no manager.
    pub resets: Resets,
    /// Paths that an update of `status` cannot change; `metadata` means its user-written fields.
    pub status_resets: Resets,
    /// Additional metadata checks on update, and on update of `status`.
    pub metadata_checks: &'static [Check],
    pub status_metadata_checks: &'static [Check],
    /// Whether `metadata.generation` counts changes.
    pub has_generation: bool,
    /// Whether it counts changes of annotations, too.
    pub counts_annotations: bool,
    /// Whether PUT creates a missing object.
    pub creates_on_update: bool,
    /// Whether PUT without a resourceVersion is allowed.
    pub unconditional_update: bool,
    /// How long objects live before they expire.
    pub lifetime: Option<Duration>,
    /// Whether a write to a namespace is acknowledged only after it is synced to disk.
    pub needs_sync: fn(&str) -> bool,
    /// Whether a delete returns the deleted object instead of a Status.
    pub returns_deleted: bool,
    /// The Warning header of every request to a deprecated kind.
    pub deprecation: Option<&'static str>,
    /// Whether objects are only returned and never stored.
    pub is_virtual: bool,
    /// The storage type, if objects are stored in another version or group.
    pub stored_as: Option<&'static str>,
    pub to_stored: fn(Object) -> Object,
    pub from_stored: fn(Object) -> Object,
    pub name_format: NameFormat,
    pub default: fn(&mut Object),
    /// Defaults that depend on the time of the write (RFC 3339, seconds).
    pub default_at: fn(&mut Object, &str),
    /// Runs after the status was dropped.
    pub prepare_create: fn(&mut Object, &Context<'_>),
    /// Records who created an object.
    pub record_requester: fn(&mut Object, &Requester<'_>),
    /// Whether that changes managedFields.
    pub changes_managers: bool,
    /// Runs after the fields that this kind of write cannot change were restored.
    pub prepare_update: Prepare,
    pub validate_create: fn(&Object) -> field::Errors,
    pub validate_update: fn(&Object, &Object, Subresource<'_>) -> field::Errors,
    pub warnings: fn(&Object, Option<&Object>) -> Vec<String>,
    /// Where they differ from those of a write of the object.
    pub status_warnings: Option<fn(&Object) -> Vec<String>>,
    pub deletion: fn(&Object, Option<i64>) -> Deletion,
    /// Changes beside `metadata` when an object becomes terminating.
    pub mark_terminating: fn(&mut Object),
    /// Whether a terminating object stays although its metadata has no finalizers.
    pub is_held: fn(&Object) -> bool,
    pub selectable: &'static [&'static str],
    pub selectable_fields: fn(&Object) -> Vec<(&'static str, String)>,
    pub columns: &'static [Column],
    pub row: fn(&Object, i64) -> Vec<Value>,
    pub row_conditions: fn(&Object) -> Option<Value>,
}

/// The verbs of ordinary kinds.
pub(crate) const VERBS: &[&str] = &[
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
];

impl Builtin {
    /// A namespaced kind without behaviour, printed by name and age.
    pub const EMPTY: Self = Self {
        group: "",
        version: "v1",
        kind: "",
        plural: "",
        short_names: &[],
        categories: &[],
        scope: Scope::Namespaced,
        schema: "",
        verbs: VERBS,
        subresources: &[],
        has_status: false,
        settles_status: false,
        resets: &[&["status"]],
        status_resets: &[&["spec"]],
        metadata_checks: &[Check::Change],
        status_metadata_checks: &[Check::Change],
        has_generation: false,
        counts_annotations: false,
        creates_on_update: false,
        unconditional_update: true,
        lifetime: None,
        needs_sync: |_| true,
        returns_deleted: false,
        deprecation: None,
        is_virtual: false,
        stored_as: None,
        to_stored: |object| object,
        from_stored: |object| object,
        name_format: metadata::subdomain,
        default: |_| {},
        default_at: |_, _| {},
        prepare_create: |_, _| {},
        record_requester: |_, _| {},
        changes_managers: false,
        prepare_update: |_, _, _, _| {},
        validate_create: |_| Vec::new(),
        validate_update: |_, _, _| Vec::new(),
        warnings: |_, _| Vec::new(),
        status_warnings: None,
        deletion: |_, _| Deletion::Immediate,
        mark_terminating: |_| {},
        is_held: |_| false,
        selectable: &[],
        selectable_fields: |_| Vec::new(),
        columns: columns::NAME_AGE,
        row_conditions: |_| None,
        row: columns::name_age,
    };
}

/// `status` with its usual verbs.
pub(crate) const STATUS: SubresourceInfo = SubresourceInfo {
    name: "status",
    group: "",
    version: "",
    kind: "",
    verbs: &["get", "patch", "update"],
};

/// `scale`, of kind autoscaling/v1 Scale.
pub(crate) const SCALE: SubresourceInfo = SubresourceInfo {
    name: "scale",
    group: "autoscaling",
    version: "v1",
    kind: "Scale",
    verbs: &["get", "patch", "update"],
};

/// A [`Builtin`] with its names spelled out, as the registry keeps it.
pub(crate) struct Registered {
    facts: &'static Builtin,
    names: Names,
    subresources: Vec<&'static str>,
}

impl Registered {
    pub(crate) fn new(facts: &'static Builtin) -> Self {
        let own = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect();
        let names = Names {
            group: facts.group.to_owned(),
            version: facts.version.to_owned(),
            kind: facts.kind.to_owned(),
            list_kind: format!("{}List", facts.kind),
            plural: facts.plural.to_owned(),
            singular: facts.kind.to_lowercase(),
            short_names: own(facts.short_names),
            categories: own(facts.categories),
        };
        let subresources = facts.subresources.iter().map(|s| s.name).collect();
        Self {
            facts,
            names,
            subresources,
        }
    }
}

impl Kind for Registered {
    fn names(&self) -> &Names {
        &self.names
    }

    fn scope(&self) -> Scope {
        self.facts.scope
    }

    fn schema(&self) -> Option<&'static str> {
        Some(self.facts.schema)
    }

    fn verbs(&self) -> &'static [&'static str] {
        self.facts.verbs
    }

    fn subresources(&self) -> &[&'static str] {
        &self.subresources
    }

    fn subresource_info(&self, name: &str) -> Option<&'static SubresourceInfo> {
        self.facts.subresources.iter().find(|s| s.name == name)
    }

    fn lifetime(&self) -> Option<Duration> {
        self.facts.lifetime
    }

    fn needs_sync(&self, namespace: &str) -> bool {
        (self.facts.needs_sync)(namespace)
    }

    fn returns_deleted(&self) -> bool {
        self.facts.returns_deleted
    }

    fn deprecation(&self) -> Option<Cow<'_, str>> {
        self.facts.deprecation.map(Cow::Borrowed)
    }

    fn record_requester(&self, object: &mut Object, requester: &Requester<'_>) {
        (self.facts.record_requester)(object, requester);
    }

    fn mark_terminating(&self, object: &mut Object) {
        (self.facts.mark_terminating)(object);
    }

    fn is_held(&self, object: &Object) -> bool {
        (self.facts.is_held)(object)
    }

    fn is_virtual(&self) -> bool {
        self.facts.is_virtual
    }

    fn stored_as(&self) -> Option<&'static str> {
        self.facts.stored_as
    }

    fn to_stored(&self, object: Object) -> Object {
        (self.facts.to_stored)(object)
    }

    fn from_stored(&self, object: Object) -> Object {
        (self.facts.from_stored)(object)
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        (self.facts.name_format)(name, prefix)
    }

    fn default(&self, object: &mut Object) {
        (self.facts.default)(object);
    }

    fn default_at(&self, object: &mut Object, now: &str) {
        (self.facts.default_at)(object, now);
    }

    fn prepare_create(&self, object: &mut Object, context: &Context<'_>) {
        if self.facts.has_status && !self.facts.settles_status {
            object.shift_remove("status");
        }
        (self.facts.prepare_create)(object, context);
    }

    fn prepare_update(
        &self,
        object: &mut Object,
        old: &Object,
        subresource: Subresource<'_>,
        context: &Context<'_>,
    ) {
        match subresource {
            None if self.facts.has_status => keep(object, old, "status"),
            Some("status") => keep_all_but_status(object, old, self.facts.status_resets),
            _ => {}
        }
        (self.facts.prepare_update)(object, old, subresource, context);
    }

    fn validate_create(&self, object: &Object) -> field::Errors {
        (self.facts.validate_create)(object)
    }

    fn validate_update(
        &self,
        object: &Object,
        old: &Object,
        subresource: Subresource<'_>,
    ) -> field::Errors {
        (self.facts.validate_update)(object, old, subresource)
    }

    fn metadata_checks(&self, subresource: Subresource<'_>) -> &'static [Check] {
        match subresource {
            Some("status") => self.facts.status_metadata_checks,
            _ => self.facts.metadata_checks,
        }
    }

    fn resets(&self, subresource: Subresource<'_>) -> Resets {
        match subresource {
            Some("status") => self.facts.status_resets,
            Some("finalize") => self.facts.resets,
            // Kinds with a status subresource ignore `status` here, also on create.
            None if self.facts.has_status || self.subresource_info(STATUS.name).is_some() => {
                self.facts.resets
            }
            _ => &[],
        }
    }

    fn warnings(&self, object: &Object, old: Option<&Object>) -> Vec<String> {
        (self.facts.warnings)(object, old)
    }

    fn status_warnings(&self, object: &Object, old: &Object) -> Vec<String> {
        match self.facts.status_warnings {
            Some(warnings) => warnings(object),
            None => self.warnings(object, Some(old)),
        }
    }

    fn changes_managers(&self) -> bool {
        self.facts.changes_managers
    }

    fn has_generation(&self) -> bool {
        self.facts.has_generation
    }

    fn counts_annotations(&self) -> bool {
        self.facts.counts_annotations
    }

    fn allows_unconditional_update(&self) -> bool {
        self.facts.unconditional_update
    }

    fn allows_create_on_update(&self) -> bool {
        self.facts.creates_on_update
    }

    fn deletion(&self, object: &Object, requested: Option<i64>) -> Deletion {
        (self.facts.deletion)(object, requested)
    }

    fn selectable_fields(&self, object: &Object) -> Vec<(Cow<'static, str>, String)> {
        let fields = (self.facts.selectable_fields)(object).into_iter();
        fields.map(|(name, value)| (name.into(), value)).collect()
    }

    fn selectable_names(&self) -> Vec<&str> {
        self.facts.selectable.to_vec()
    }

    fn columns(&self) -> &'static [Column] {
        self.facts.columns
    }

    fn row_conditions(&self, object: &Object) -> Option<Value> {
        (self.facts.row_conditions)(object)
    }

    fn row(&self, object: &Object, now: i64) -> Vec<Value> {
        (self.facts.row)(object, now)
    }
}

/// Through `status`, only the status and the metadata that the kind allows may change.
fn keep_all_but_status(object: &mut Object, old: &Object, resets: Resets) {
    let is_kept = |key: &str| !matches!(key, "apiVersion" | "kind" | "metadata" | "status");
    object.retain(|key, _| !is_kept(key) || old.contains_key(key));
    for (key, value) in old {
        if is_kept(key) {
            object.insert(key.clone(), value.clone());
        }
    }
    let kept: Vec<&str> = match resets.iter().find(|path| path[0] == "metadata") {
        None => return,
        Some([_]) => WRITTEN_METADATA.to_vec(),
        Some(_) => resets
            .iter()
            .filter_map(|path| path.get(1).copied())
            .collect(),
    };
    keep_metadata(object, old, &kept);
}

/// Restores the user-written metadata.
pub(crate) fn keep_written_metadata(object: &mut Object, old: &Object) {
    keep_metadata(object, old, WRITTEN_METADATA);
}

fn keep_metadata(object: &mut Object, old: &Object, names: &[&str]) {
    let before = get(old, "metadata");
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        for name in names {
            match &before[*name] {
                Value::Null => drop(metadata.shift_remove(name)),
                value => drop(metadata.insert((*name).to_owned(), value.clone())),
            }
        }
    }
}

/// User-written metadata.
const WRITTEN_METADATA: &[&str] = &[
    "deletionTimestamp",
    "selfLink",
    "labels",
    "annotations",
    "finalizers",
    "ownerReferences",
];
