//! What a kind is ([`Kind`]), and a built-in kind as data ([`Builtin`]): names, scope and the functions
//! behind it. One constant of this type per file, one line in [`crate::ALL`].

use std::{borrow::Cow, time::Duration};

use crate::metadata::{self, Check};
use crate::tree::{get, keep};
use crate::unenforced::{self, Unenforced};
use crate::{
    Column, Context, Deletion, Names, Requester, Scope, ServerSide, Subresource, SubresourceInfo,
    columns,
};
use machinery::{Object, Value, field};

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

type Resets = &'static [&'static [&'static str]];
type Prepare = fn(&mut Object, &Object, Subresource<'_>, &Context<'_>);

/// Declares [`Builtin`] and [`Kind`], with each attribute in one place. A fact or step becomes a
/// field of [`Builtin`], a method of [`Kind`] that has the same default, and in [`Registered`] the
/// one calls the other. Where they differ, fields and methods are declared for themselves.
macro_rules! attributes {
    (
        facts { $($(#[$fact_doc:meta])* $fact:ident: $fact_type:ty = $fact_default:expr,)* }
        steps {
            $(
                $(#[$step_doc:meta])*
                fn $step:ident($($arg:ident: $arg_type:ty),*) $(-> $returned:ty)? = $step_default:expr;
            )*
        }
        fields { $($(#[$doc:meta])* $name:ident: $type:ty = $default:expr,)* }
        methods { $($methods:tt)* }
        registered { $($registered:tt)* }
    ) => {
        /// The facts of a built-in kind. [`Builtin::EMPTY`] has the defaults.
        pub struct Builtin {
            $($(#[$fact_doc])* pub $fact: $fact_type,)*
            $($(#[$step_doc])* pub $step: fn($($arg_type),*) $(-> $returned)?,)*
            $($(#[$doc])* pub $name: $type,)*
        }

        impl Builtin {
            /// A namespaced kind without behaviour, printed by name and age.
            pub const EMPTY: Self = Self {
                $($fact: $fact_default,)*
                $($step: $step_default,)*
                $($name: $default,)*
            };
        }

        /// A kind. Built-in kinds and custom resources go through the same interface. Objects that
        /// come in are decoded and normalised; metadata common to all kinds (uid, creationTimestamp,
        /// generation, managedFields, name and label checks) is handled by the caller.
        pub trait Kind: Send + Sync + 'static {
            $($(#[$fact_doc])* fn $fact(&self) -> $fact_type {
                $fact_default
            })*
            $($(#[$step_doc])* fn $step(&self, $($arg: $arg_type),*) $(-> $returned)? {
                (Builtin::EMPTY.$step)($($arg),*)
            })*
            $($methods)*
        }

        impl Kind for Registered {
            $(fn $fact(&self) -> $fact_type {
                self.facts.$fact
            })*
            $(fn $step(&self, $($arg: $arg_type),*) $(-> $returned)? {
                (self.facts.$step)($($arg),*)
            })*
            $($registered)*
        }
    };
}

attributes! {
    facts {
        /// How long objects live before they expire; `None`: until they are deleted.
        lifetime: Option<Duration> = None,
        /// Whether a delete returns the deleted object instead of a Status.
        returns_deleted: bool = false,
        /// Whether its version is served without being named in `--runtime-config`.
        is_on_by_default: bool = true,
        /// Whether objects are only returned and never stored (reviews).
        is_virtual: bool = false,
        /// The storage type if it is another version or group, such as `core/v1.Event` for
        /// events.k8s.io/v1: both share keys and bytes.
        stored_as: Option<&'static str> = None,
        /// Whether `prepare_create` changes managedFields.
        changes_managers: bool = false,
        /// Whether `metadata.generation` counts changes of everything but metadata and status.
        has_generation: bool = false,
        /// Whether it counts changes of annotations, too.
        counts_annotations: bool = false,
        /// Whether an update without a resourceVersion is allowed.
        allows_unconditional_update: bool = true,
        /// Whether a PUT to a name that does not exist creates it.
        allows_create_on_update: bool = false,
    }
    steps {
        /// Whether a write to a namespace is acknowledged only after it is synced to disk.
        fn needs_sync(namespace: &str) -> bool = |_| true;
        /// Converts from this version to the storage version, including apiVersion and kind.
        fn to_stored(object: Object) -> Object = |object| object;
        /// Converts from the storage version to this one.
        // Named as the pair of `to_stored`; `self` converts and is not what is constructed.
        #[allow(clippy::wrong_self_convention)]
        fn from_stored(object: Object) -> Object = |object| object;
        /// Errors of a name, or of a `generateName` prefix.
        fn validate_name(name: &str, prefix: bool) -> Vec<String> = metadata::subdomain;
        /// Sets defaults. Idempotent.
        fn default(object: &mut Object) = |_| {};
        /// Sets defaults that depend on the time of the write (RFC 3339, seconds).
        fn default_at(object: &mut Object, now: &str) = |_, _| {};
        /// Records in a new object who created it, where its kind has fields for that.
        fn record_requester(object: &mut Object, requester: &Requester<'_>) = |_, _| {};
        /// Errors of a new object.
        fn validate_create(object: &Object) -> field::Errors = |_| Vec::new();
        /// Errors of a changed object.
        fn validate_update(
            object: &Object,
            old: &Object,
            subresource: Subresource<'_>
        ) -> field::Errors = |_, _, _| Vec::new();
        /// What a delete means; `requested` is the client's gracePeriodSeconds.
        fn deletion(object: &Object, requested: Option<i64>) -> Deletion = |_, _| Deletion::Immediate;
        /// Changes beside `metadata` when an object becomes terminating.
        fn mark_terminating(object: &mut Object) = |_| {};
        /// Whether a terminating object stays although its metadata has no finalizers.
        fn is_held(object: &Object) -> bool = |_| false;
        /// The conditions of a Table row, such as that the pod has completed.
        fn row_conditions(object: &Object) -> Option<Value> = |_| None;
    }
    fields {
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
        /// The Warning header of every request to a deprecated kind.
        deprecation: Option<&'static str> = None,
        /// Runs after the status was dropped.
        prepare_create: fn(&mut Object, &Context<'_>) = |_, _| {},
        /// Runs after the fields that this kind of write cannot change were restored.
        prepare_update: Prepare = |_, _, _, _| {},
        warnings: fn(&Object, Option<&Object>) -> Vec<String> = |_, _| Vec::new(),
        /// The path of the pod spec in its objects.
        pod_spec: &'static str = "",
        /// Fields without effect yet, which are warned about.
        unenforced: &'static [Unenforced] = &[],
        /// Where they differ from those of a write of the object.
        status_warnings: Option<fn(&Object) -> Vec<String>> = None,
        /// What the API server does beside these functions.
        server_side: ServerSide = ServerSide::NONE,
        selectable: &'static [&'static str] = &[],
        selectable_fields: fn(&Object) -> Vec<(&'static str, String)> = |_| Vec::new(),
        columns: &'static [Column] = columns::NAME_AGE,
        row: fn(&Object, i64) -> Vec<Value> = columns::name_age,
    }
    methods {
        fn names(&self) -> &Names;
        fn scope(&self) -> Scope;
        /// The type in the schema table, such as `apps/v1.Deployment`; `None` for custom resources.
        fn schema(&self) -> Option<&'static str>;
        /// Verbs of the main resource, in discovery's order.
        fn verbs(&self) -> &'static [&'static str] {
            VERBS
        }
        /// Subresources such as `status`, `scale`, `binding`.
        fn subresources(&self) -> &[&'static str] {
            &[]
        }
        /// What discovery says about a subresource.
        fn subresource_info(&self, _name: &str) -> Option<&'static SubresourceInfo> {
            None
        }
        /// The Warning header of every request to a deprecated kind.
        fn deprecation(&self) -> Option<Cow<'_, str>> {
            None
        }
        /// Drops fields that a client may not set on create (mostly status).
        fn prepare_create(&self, _object: &mut Object, _context: &Context<'_>) {}
        /// Restores what this kind of write may not change: the status on an update of the object,
        /// everything but the status on an update of `status`.
        fn prepare_update(
            &self,
            _object: &mut Object,
            _old: &Object,
            _subresource: Subresource<'_>,
            _context: &Context<'_>,
        ) {
        }
        /// Metadata checks on update, beside those of all kinds.
        fn metadata_checks(&self, _subresource: Subresource<'_>) -> &'static [metadata::Check] {
            &[metadata::Check::Change]
        }
        /// Paths that this kind of write cannot change.
        fn resets(&self, _subresource: Subresource<'_>) -> &'static [&'static [&'static str]] {
            &[]
        }
        /// Warning headers for a write.
        fn warnings(&self, _object: &Object, _old: Option<&Object>) -> Vec<String> {
            Vec::new()
        }
        /// Warning headers for a write to `status`.
        fn status_warnings(&self, object: &Object, old: &Object) -> Vec<String> {
            self.warnings(object, Some(old))
        }
        /// The errors of a changed object, and the warnings of validation, which are sent also if there are errors.
        fn check_update(
            &self,
            object: &Object,
            old: &Object,
            subresource: Subresource<'_>,
        ) -> (field::Errors, Vec<String>) {
            (self.validate_update(object, old, subresource), Vec::new())
        }
        /// Fields beside metadata.name and metadata.namespace that field selectors may name, with
        /// their values in this object.
        fn selectable_fields(&self, _object: &Object) -> Vec<(Cow<'static, str>, String)> {
            Vec::new()
        }
        /// The names of those fields.
        fn selectable_names(&self) -> Vec<&str> {
            Vec::new()
        }
        /// What the API server does for objects of this kind because it takes more than the object.
        fn server_side(&self) -> &ServerSide {
            &ServerSide::NONE
        }
        fn columns(&self) -> &[Column];
        /// One cell per column; `now` in seconds since the epoch, for ages.
        fn row(&self, object: &Object, now: i64) -> Vec<Value>;
    }
    registered {
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

        fn deprecation(&self) -> Option<Cow<'_, str>> {
            self.facts.deprecation.map(Cow::Borrowed)
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

        fn row(&self, object: &Object, now: i64) -> Vec<Value> {
            (self.facts.row)(object, now)
        }
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
