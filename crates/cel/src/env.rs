//! What an expression may refer to: variables with their types, and the objects that schemas
//! declare.

use std::{collections::HashMap, sync::Arc};

use crate::{decl::Decl, types::Type};

/// Variables and declared objects. Functions are the same everywhere.
#[derive(Debug, Clone, Default)]
pub struct Env {
    variables: Vec<Variable>,
    objects: HashMap<Arc<str>, Decl>,
}

#[derive(Debug, Clone)]
pub struct Variable {
    pub name: Arc<str>,
    pub cel_type: Type,
    /// The schema behind it, for sizes.
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

    /// Declares a variable whose type a schema gives.
    pub fn declared(mut self, name: &str, decl: Arc<Decl>) -> Self {
        self.objects_of(&decl);
        self.variables.push(Variable {
            name: name.into(),
            cel_type: decl.cel_type(),
            decl: Some(decl),
        });
        self
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

    fn objects_of(&mut self, decl: &Decl) {
        decl.for_each_object(&mut |name, object| {
            self.objects
                .entry(name.clone())
                .or_insert_with(|| object.clone());
        });
    }

    /// The place of a variable in the values that an evaluation gets.
    pub fn slot(&self, name: &str) -> Option<usize> {
        self.variables.iter().position(|v| &*v.name == name)
    }

    pub fn find(&self, name: &str) -> Option<&Variable> {
        self.variables.iter().find(|v| &*v.name == name)
    }

    pub fn object(&self, name: &str) -> Option<&Decl> {
        self.objects.get(name)
    }

    pub fn variables(&self) -> &[Variable] {
        &self.variables
    }
}

/// The type that a name stands for: `int`, `string`, `google.protobuf.Timestamp`.
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
        "dyn" => Type::Dyn,
        "optional_type" => Type::optional(Type::Dyn),
        "google.protobuf.Timestamp" => Type::Timestamp,
        "google.protobuf.Duration" => Type::Duration,
        "net.IP" => Type::Opaque("net.IP"),
        "net.CIDR" => Type::Opaque("net.CIDR"),
        "kubernetes.Quantity"
        | "kubernetes.URL"
        | "kubernetes.Semver"
        | "kubernetes.NamedFormat" => Type::Struct(name.into()),
        _ => return None,
    })
}
