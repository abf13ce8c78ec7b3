//! A built-in kind as data: names, scope and the functions behind it. One constant of this type per
//! file, one line in [`crate::ALL`].

use std::{borrow::Cow, time::Duration};

use crate::metadata::{self, Check, NameFormat};
use crate::tree::{get, keep};
use crate::unenforced::{self, Unenforced};
use crate::{
    Column, Context, Deletion, Kind, Names, Requester, Scope, ServerSide, Subresource,
    SubresourceInfo, columns,
};
use machinery::{Object, Value, field};

type Resets = &'static [&'static [&'static str]];
type Prepare = fn(&mut Object, &Object, Subresource<'_>, &Context<'_>);

/// Declares [`Builtin`]: each attribute has its type and its default in one place.
macro_rules! attributes {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $default:expr,)*) => {
        /// The facts of a kind. [`Builtin::EMPTY`] has the defaults.
        pub struct Builtin {
            $($(#[$doc])* pub $name: $type,)*
        }

        impl Builtin {
            /// A namespaced kind without behaviour, printed by name and age.
            pub const EMPTY: Self = Self { $($name: $default,)* };
        }
    };
}

attributes! {
    group: &'static str = "",
    version: &'static str = "v1",
    kind: &'static str = "",
    plural: &'static str = "",
    short_names: &'static [&'static str] = &[],
    categories: &'static [&'static str] = &[],
    scope: Scope = Scope::Namespaced,
    /// The type's name in the schema table.
    schema: &'static str = "",
    verbs: &'static [&'static str] = VERBS,
    subresources: &'static [SubresourceInfo] = &[],
    /// Whether `status` can be written only through the status subresource.
    has_status: bool = false,
    /// Whether the kind itself sets the status of a new object.
    settles_status: bool = false,
    /// Paths that a write of the object cannot set if there is a status; they get no manager.
    resets: Resets = &[&["status"]],
    /// Paths that an update of `status` cannot change; `metadata` means its user-written fields.
    status_resets: Resets = &[&["spec"]],
    /// Additional metadata checks on update, and on update of `status`.
    metadata_checks: &'static [Check] = &[Check::Change],
    status_metadata_checks: &'static [Check] = &[Check::Change],
    /// Whether `metadata.generation` counts changes.
    has_generation: bool = false,
    /// Whether it counts changes of annotations, too.
    counts_annotations: bool = false,
    /// Whether PUT creates a missing object.
    creates_on_update: bool = false,
    /// Whether PUT without a resourceVersion is allowed.
    unconditional_update: bool = true,
    /// How long objects live before they expire.
    lifetime: Option<Duration> = None,
    /// Whether a write to a namespace is acknowledged only after it is synced to disk.
    needs_sync: fn(&str) -> bool = |_| true,
    /// Whether a delete returns the deleted object instead of a Status.
    returns_deleted: bool = false,
    /// The Warning header of every request to a deprecated kind.
    deprecation: Option<&'static str> = None,
    /// Whether objects are only returned and never stored.
    is_virtual: bool = false,
    /// The storage type, if objects are stored in another version or group.
    stored_as: Option<&'static str> = None,
    to_stored: fn(Object) -> Object = |object| object,
    from_stored: fn(Object) -> Object = |object| object,
    name_format: NameFormat = metadata::subdomain,
    default: fn(&mut Object) = |_| {},
    /// Defaults that depend on the time of the write (RFC 3339, seconds).
    default_at: fn(&mut Object, &str) = |_, _| {},
    /// Runs after the status was dropped.
    prepare_create: fn(&mut Object, &Context<'_>) = |_, _| {},
    /// Records who created an object.
    record_requester: fn(&mut Object, &Requester<'_>) = |_, _| {},
    /// Whether that changes managedFields.
    changes_managers: bool = false,
    /// Runs after the fields that this kind of write cannot change were restored.
    prepare_update: Prepare = |_, _, _, _| {},
    validate_create: fn(&Object) -> field::Errors = |_| Vec::new(),
    validate_update: fn(&Object, &Object, Subresource<'_>) -> field::Errors = |_, _, _| Vec::new(),
    warnings: fn(&Object, Option<&Object>) -> Vec<String> = |_, _| Vec::new(),
    /// The path of the pod spec in its objects.
    pod_spec: &'static str = "",
    /// Fields without effect yet, which are warned about.
    unenforced: &'static [Unenforced] = &[],
    /// Where they differ from those of a write of the object.
    status_warnings: Option<fn(&Object) -> Vec<String>> = None,
    deletion: fn(&Object, Option<i64>) -> Deletion = |_, _| Deletion::Immediate,
    /// Changes beside `metadata` when an object becomes terminating.
    mark_terminating: fn(&mut Object) = |_| {},
    /// Whether a terminating object stays although its metadata has no finalizers.
    is_held: fn(&Object) -> bool = |_| false,
    /// What the API server does beside these functions.
    server_side: ServerSide = ServerSide::NONE,
    selectable: &'static [&'static str] = &[],
    selectable_fields: fn(&Object) -> Vec<(&'static str, String)> = |_| Vec::new(),
    columns: &'static [Column] = columns::NAME_AGE,
    row: fn(&Object, i64) -> Vec<Value> = columns::name_age,
    row_conditions: fn(&Object) -> Option<Value> = |_| None,
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
        let mut warnings = (self.facts.warnings)(object, old);
        let (fields, pod_spec) = (self.facts.unenforced, self.facts.pod_spec);
        warnings.extend(unenforced::warnings(fields, pod_spec, object, old));
        warnings
    }

    fn status_warnings(&self, object: &Object, old: &Object) -> Vec<String> {
        match self.facts.status_warnings {
            Some(warnings) => warnings(object),
            None => (self.facts.warnings)(object, Some(old)),
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

    fn server_side(&self) -> &ServerSide {
        &self.facts.server_side
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
