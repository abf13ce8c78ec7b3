//! The CEL types of kinds: of built-in kinds from the schema table, of custom resources from their
//! definition. Fields without a single type (quantities, any JSON) are left out, as upstream's
//! documents do.

use std::{collections::HashMap, sync::Arc};

use cel::{Decl, DeclKind, Field, ListSemantics, escape};
use machinery::schema::{self, Shape, Type};

use crate::Resource;

/// The type of a resource's objects; `None` if there is no schema.
pub(super) fn of_resource(resource: &Resource) -> Option<Arc<Decl>> {
    let name = &resource.kind.names().kind;
    if let Some(schema) = resource.schema {
        return Some(of_type(schema, name, &mut Vec::new()));
    }
    let definition = resource.definition.as_ref()?;
    let metadata = schema::lookup("meta/v1.ObjectMeta")?;
    let metadata = of_type(metadata, &format!("{name}.metadata"), &mut Vec::new());
    let declared = apiextensions::declare_resource(definition.open_api(), name, metadata);
    declared.map(Arc::new)
}

fn decl(kind: DeclKind) -> Arc<Decl> {
    Arc::new(Decl::new(kind, u64::MAX))
}

/// A struct; a recursive reference to itself is an object without declared fields.
fn of_type(schema: &'static Type, name: &str, around: &mut Vec<&'static str>) -> Arc<Decl> {
    let mut fields = HashMap::new();
    if !around.contains(&schema.name) {
        around.push(schema.name);
        for field in &schema.fields {
            let below = format!("{name}.{}", field.name);
            let declared = of_shape(field.shape, &below, around);
            if let (Some(decl), Some(escaped)) = (declared, escape(field.name)) {
                let json = field.name.into();
                fields.insert(escaped.into(), Field { json, decl });
            }
        }
        around.pop();
    }
    decl(DeclKind::Object {
        name: name.into(),
        fields,
    })
}

fn of_shape(shape: Shape, name: &str, around: &mut Vec<&'static str>) -> Option<Arc<Decl>> {
    Some(match shape {
        Shape::String => decl(DeclKind::String),
        Shape::Bool => decl(DeclKind::Bool),
        Shape::Int32 | Shape::Int64 => decl(DeclKind::Int),
        Shape::Float64 => decl(DeclKind::Double),
        Shape::Bytes => decl(DeclKind::Bytes),
        Shape::Time | Shape::MicroTime => decl(DeclKind::Timestamp),
        Shape::Duration => decl(DeclKind::Duration),
        Shape::IntOrString => decl(DeclKind::Dyn),
        Shape::Raw | Shape::FieldsV1 => decl(DeclKind::Object {
            name: name.into(),
            fields: HashMap::new(),
        }),
        Shape::Struct(id) => of_type(id.get(), name, around),
        Shape::List(element) => decl(DeclKind::List {
            element: of_shape(*element, &format!("{name}.@items"), around)?,
            semantics: ListSemantics::Atomic,
        }),
        Shape::Map(element) => decl(DeclKind::map(of_shape(
            *element,
            &format!("{name}.@values"),
            around,
        )?)),
        Shape::Quantity
        | Shape::Any
        | Shape::Json
        | Shape::PropsOrBool
        | Shape::PropsOrArray
        | Shape::PropsOrStrings => return None,
    })
}
