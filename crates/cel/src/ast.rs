//! The syntax tree of an expression. Every node has an id that indexes positions, types and
//! resolved references.

use std::sync::Arc;

/// Index of a node in the side tables of its expression.
pub(crate) type Id = u32;

#[derive(Debug, Clone)]
pub struct Expr {
    pub id: Id,
    pub kind: Kind,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Literal {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(Arc<str>),
    Bytes(Arc<[u8]>),
}

#[derive(Debug, Clone)]
pub enum Kind {
    Literal(Literal),
    Ident(Arc<str>),
    Select {
        operand: Box<Expr>,
        field: Arc<str>,
        /// `has(operand.field)`.
        test: bool,
    },
    Call {
        function: Arc<str>,
        target: Option<Box<Expr>>,
        args: Vec<Expr>,
    },
    List {
        elements: Vec<Element>,
    },
    Map {
        entries: Vec<MapEntry>,
    },
    Struct {
        name: Arc<str>,
        fields: Vec<StructField>,
    },
    Comprehension(Box<Comprehension>),
}

#[derive(Debug, Clone)]
pub struct Element {
    pub value: Expr,
    /// `[?value]`: omitted if the optional is empty.
    pub optional: bool,
}

#[derive(Debug, Clone)]
pub struct MapEntry {
    pub id: Id,
    pub key: Expr,
    pub value: Expr,
    pub optional: bool,
}

#[derive(Debug, Clone)]
pub struct StructField {
    pub id: Id,
    pub name: Arc<str>,
    pub value: Expr,
    pub optional: bool,
}

/// A fold over a list or a map; every iterating macro becomes one.
#[derive(Debug, Clone)]
pub struct Comprehension {
    pub range: Expr,
    pub variable: Arc<str>,
    /// The second variable: keys and values, or indexes and elements.
    pub variable2: Option<Arc<str>>,
    pub accumulator: Arc<str>,
    pub init: Expr,
    pub condition: Expr,
    pub step: Expr,
    pub result: Expr,
}

/// The name of the accumulator in expanded macros; no identifier can equal it.
pub(crate) const ACCUMULATOR: &str = "@result";
/// Name of the unused iteration variable of `cel.bind` and `optMap`.
pub(crate) const UNUSED: &str = "#unused";
/// Name of the list that `sortBy` sorts.
pub(crate) const SORTED: &str = "@__sortBy_input__";

/// Names of operators as functions.
pub(crate) mod op {
    pub(crate) const CONDITIONAL: &str = "_?_:_";
    pub(crate) const AND: &str = "_&&_";
    pub(crate) const OR: &str = "_||_";
    pub(crate) const NOT: &str = "!_";
    pub(crate) const NEGATE: &str = "-_";
    pub(crate) const EQUALS: &str = "_==_";
    pub(crate) const NOT_EQUALS: &str = "_!=_";
    pub(crate) const LESS: &str = "_<_";
    pub(crate) const LESS_EQUALS: &str = "_<=_";
    pub(crate) const GREATER: &str = "_>_";
    pub(crate) const GREATER_EQUALS: &str = "_>=_";
    pub(crate) const ADD: &str = "_+_";
    pub(crate) const SUBTRACT: &str = "_-_";
    pub(crate) const MULTIPLY: &str = "_*_";
    pub(crate) const DIVIDE: &str = "_/_";
    pub(crate) const MODULO: &str = "_%_";
    pub(crate) const IN: &str = "@in";
    pub(crate) const INDEX: &str = "_[_]";
    pub(crate) const OPTIONAL_INDEX: &str = "_[?_]";
    pub(crate) const OPTIONAL_SELECT: &str = "_?._";
    pub(crate) const NOT_STRICTLY_FALSE: &str = "@not_strictly_false";
    pub(crate) const MAP_INSERT: &str = "cel.@mapInsert";
}

impl Kind {
    pub fn for_each_child<'e>(&'e self, visit: &mut impl FnMut(&'e Expr)) {
        match self {
            Self::Literal(_) | Self::Ident(_) => {}
            Self::Select { operand, .. } => visit(operand),
            Self::Call { target, args, .. } => {
                target.as_deref().into_iter().chain(args).for_each(visit)
            }
            Self::List { elements } => elements.iter().for_each(|element| visit(&element.value)),
            Self::Map { entries } => entries.iter().for_each(|entry| {
                visit(&entry.key);
                visit(&entry.value);
            }),
            Self::Struct { fields, .. } => fields.iter().for_each(|field| visit(&field.value)),
            Self::Comprehension(fold) => {
                [
                    &fold.range,
                    &fold.init,
                    &fold.condition,
                    &fold.step,
                    &fold.result,
                ]
                .into_iter()
                .for_each(visit);
            }
        }
    }
}

impl Expr {
    /// `a.b.c` as one name, if it consists of identifiers only.
    pub fn qualified_name(&self) -> Option<String> {
        match &self.kind {
            Kind::Ident(name) => Some(name.to_string()),
            Kind::Select {
                operand,
                field,
                test: false,
            } => Some(format!("{}.{field}", operand.qualified_name()?)),
            _ => None,
        }
    }
}
