//! The environment of an expression: variables with their types, and the objects that schemas
//! declare.

use std::{collections::HashMap, sync::Arc};

use crate::{
    decl::{Decl, DeclKind, Field, escape_keyword},
    functions::{self, ESCAPE_KEY, Function},
    types::Type,
};

/// Variables and declared objects. All environments have the same functions, except those for
/// patches.
#[derive(Debug, Clone, Default)]
pub struct Env {
    variables: Vec<Variable>,
    objects: HashMap<Arc<str>, Decl>,
    /// Whether `Object{}`, `JSONPatch{}` and their functions exist.
    patches: bool,
    /// Whether `cel.bind(name, value, expression)` exists.
    bindings: bool,
    /// The variable whose fields are worked out when they are used.
    lazy: Option<Variable>,
    /// The schema of all sizes, see [`Env::sized_by`].
    size_root: Option<Arc<Decl>>,
}

/// The type of one operation of a JSON patch.
pub const JSON_PATCH: &str = "JSONPatch";
pub(crate) const PATCH_FIELDS: [&str; 4] = ["op", "path", "from", "value"];
/// The type of an apply configuration; `Object.spec` is that of its field `spec`, and so on.
pub const OBJECT: &str = "Object";

#[derive(Debug, Clone)]
pub struct Variable {
    pub name: Arc<str>,
    pub cel_type: Type,
    /// Its schema, for sizes.
    pub decl: Option<Arc<Decl>>,
}

impl Env {
    pub fn new() -> Self {
        Self::default()
    }

    /// Declares a variable of a plain type.
    pub fn variable(mut self, name: &str, cel_type: Type) -> Self {
        self.variables.push(Variable {
            name: name.into(),
            cel_type,
            decl: None,
        });
        self
    }

    /// Declares a variable with the type of a schema.
    pub fn declared(mut self, name: &str, decl: Arc<Decl>) -> Self {
        self.objects_of(&decl);
        self.variables.push(Variable {
            name: name.into(),
            cel_type: decl.cel_type(),
            decl: Some(decl),
        });
        self
    }

    /// Changes a declared variable to the type of a schema.
    pub fn redeclare(mut self, name: &str, decl: &Arc<Decl>) -> Self {
        self.objects_of(decl);
        if let Some(variable) = self.variables.iter_mut().find(|v| &*v.name == name) {
            variable.cel_type = decl.cel_type();
            variable.decl = Some(decl.clone());
        }
        self
    }

    /// Removes a variable, for environments in which nothing is evaluated.
    pub fn without(mut self, name: &str) -> Self {
        self.variables.retain(|variable| &*variable.name != name);
        self
    }

    /// Declares a variable whose fields are evaluated lazily. It has no slot among the values, and
    /// there is at most one.
    pub fn lazy(mut self, name: &str, decl: Arc<Decl>) -> Self {
        self.objects_of(&decl);
        self.lazy = Some(Variable {
            name: name.into(),
            cel_type: decl.cel_type(),
            decl: Some(decl),
        });
        self
    }

    /// Declares or replaces a field of the lazy variable.
    pub fn lazy_field(&mut self, field: Field) {
        self.objects_of(&field.decl);
        let Some(Variable {
            cel_type: Type::Struct(name),
            decl: Some(decl),
            ..
        }) = &mut self.lazy
        else {
            return;
        };
        let declared = self.objects.get_mut(name);
        for decl in declared.into_iter().chain([Arc::make_mut(decl)]) {
            if let DeclKind::Object { fields, .. } = &mut decl.kind {
                fields.insert(field.json.clone(), field.clone());
            }
        }
    }

    /// Declares a variable that is an optional value of a schema's type.
    pub fn declared_optional(mut self, name: &str, decl: Arc<Decl>) -> Self {
        self.objects_of(&decl);
        self.variables.push(Variable {
            name: name.into(),
            cel_type: Type::optional(decl.cel_type()),
            decl: Some(decl),
        });
        self
    }

    /// Lets expressions construct patches: `Object{spec: Object.spec{}}` and `JSONPatch{op: "add"}`.
    pub fn with_patches(mut self) -> Self {
        self.patches = true;
        self
    }

    /// Estimates sizes by this schema, whatever a field path starts with. Upstream estimates rules
    /// of custom resources so: the elements of a list literal and a type name such as `string` have
    /// the size of `self`. Without it, only variables with a schema have sizes.
    pub fn sized_by(mut self, decl: Arc<Decl>) -> Self {
        self.size_root = Some(decl);
        self
    }

    pub(crate) fn size_root(&self) -> Option<&Arc<Decl>> {
        self.size_root.as_ref()
    }

    /// Lets expressions name a value: `cel.bind(name, value, expression)`.
    pub fn with_bindings(mut self) -> Self {
        self.bindings = true;
        self
    }

    pub(crate) fn has_bindings(&self) -> bool {
        self.bindings
    }

    fn objects_of(&mut self, decl: &Decl) {
        decl.for_each_object(&mut |name, object| {
            self.objects
                .entry(name.clone())
                .or_insert_with(|| object.clone());
        });
    }

    /// The slot of a variable among the values of an evaluation.
    pub fn slot(&self, name: &str) -> Option<usize> {
        self.variables.iter().position(|v| &*v.name == name)
    }

    pub fn find(&self, name: &str) -> Option<&Variable> {
        let mut all = self.variables.iter().chain(&self.lazy);
        all.find(|v| &*v.name == name)
    }

    pub(crate) fn is_lazy(&self, name: &str) -> bool {
        self.lazy.as_ref().is_some_and(|lazy| &*lazy.name == name)
    }

    /// The type of objects of a name.
    pub(crate) fn object_type(&self, name: &str) -> Option<Type> {
        if self.is_patch(name) {
            return Some(Type::Struct(name.into()));
        }
        self.objects.get(name).map(Decl::cel_type)
    }

    /// Whether the fields of the objects of a name are declared.
    pub(crate) fn has_object(&self, name: &str) -> bool {
        self.is_patch(name) || self.objects.contains_key(name)
    }

    /// The type of a field of the objects of a name.
    pub(crate) fn field_type(&self, object: &str, field: &str) -> Option<Type> {
        if self.is_patch(object) {
            return match (object, field) {
                (JSON_PATCH, "op" | "path" | "from") => Some(Type::String),
                (JSON_PATCH, "value") => Some(Type::Dyn),
                // Upstream gives other fields a type without a name.
                (JSON_PATCH, _) => Some(Type::Struct("".into())),
                // Apply configurations are checked against their schema when they are applied.
                _ => Some(Type::Dyn),
            };
        }
        match &self.objects.get(object)?.kind {
            DeclKind::Object { fields, .. } => {
                // Reserved words need no escape in a selection.
                let found = fields.get(field);
                let found = found.or_else(|| fields.get(&*escape_keyword(field)?));
                Some(found?.decl.cel_type())
            }
            _ => None,
        }
    }

    /// Whether it is the type of an apply configuration or of a part of one.
    pub(crate) fn is_object(&self, name: &str) -> bool {
        name != JSON_PATCH && self.is_patch(name)
    }

    fn is_patch(&self, name: &str) -> bool {
        let fields = || {
            name.strip_prefix(OBJECT)
                .is_some_and(|rest| rest.starts_with('.'))
        };
        self.patches && (name == JSON_PATCH || name == OBJECT || fields())
    }

    /// The function of a name, if it exists here.
    pub(crate) fn function(&self, name: &str) -> Option<&'static Function> {
        functions::lookup(name).filter(|_| self.patches || name != ESCAPE_KEY)
    }

    pub fn variables(&self) -> &[Variable] {
        &self.variables
    }
}

/// The type of a name: `int`, `string`, `google.protobuf.Timestamp`.
pub(crate) fn named_type(name: &str) -> Option<Type> {
    Some(match name {
        "bool" => Type::Bool,
        "bytes" => Type::Bytes,
        "double" => Type::Double,
        "int" => Type::Int,
        "uint" => Type::Uint,
        "string" => Type::String,
        "null_type" => Type::Null,
        "list" => Type::list(Type::Dyn),
        "map" => Type::map(Type::Dyn, Type::Dyn),
        "type" => Type::Type(Arc::new(Type::Dyn)),
        "optional_type" => Type::optional(Type::Dyn),
        "google.protobuf.Timestamp" => Type::Timestamp,
        "google.protobuf.Duration" => Type::Duration,
        "net.IP" => Type::Opaque("net.IP"),
        "net.CIDR" => Type::Opaque("net.CIDR"),
        _ => return None,
    })
}
