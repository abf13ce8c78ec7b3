//! The compiled form of an expression. Its shape matches upstream's cost accounting: a chain of
//! selections and indexes is one attribute, and constants are folded.

use std::sync::Arc;

use crate::{
    cost::runtime::Rule,
    functions::{Function, overload},
    types::Type,
    value::Value,
};

#[derive(Debug)]
pub(super) enum Node {
    Constant(Value<'static>),
    Attribute(Box<Attribute>),
    And(Box<[Node; 2]>),
    Or(Box<[Node; 2]>),
    NotStrictlyFalse(Box<Node>),
    /// `optional.or(x)` and `optional.orValue(x)`: `x` is evaluated only if needed.
    OptionalOr {
        unwrap: bool,
        args: Box<[Node; 2]>,
    },
    /// `x in [constants]`, without a cost.
    Member {
        element: Box<Node>,
        list: Vec<Value<'static>>,
    },
    Call(Box<Call>),
    List(Vec<(Node, bool)>),
    Map(Vec<(Node, Node, bool)>),
    /// An object constructed by the expression.
    Object {
        name: Arc<str>,
        fields: Vec<(Node, Node, bool)>,
    },
    Fold(Box<Fold>),
}

/// A value with its qualifiers.
#[derive(Debug)]
pub(super) struct Attribute {
    pub(super) base: Base,
    pub(super) qualifiers: Vec<Qualifier>,
    /// `has(...)`: whether the last qualifier finds something.
    pub(super) test: bool,
}

#[derive(Debug)]
pub(super) enum Base {
    /// A variable of the environment.
    Variable {
        slot: usize,
        name: Arc<str>,
    },
    /// A variable of a comprehension.
    Local(usize),
    /// A field of the lazily evaluated variable.
    Lazy {
        field: Arc<str>,
        optional: bool,
        test: bool,
    },
    Operand(Node),
    Conditional(Box<(Node, Attribute, Attribute)>),
}

#[derive(Debug)]
pub(super) struct Qualifier {
    pub(super) key: Key,
    pub(super) optional: bool,
    /// Whether it names a field of a constructed object.
    pub(super) is_field: bool,
}

#[derive(Debug)]
pub(super) enum Key {
    Constant(Value<'static>),
    Attribute(Attribute),
}

#[derive(Debug)]
pub(super) struct Call {
    pub(super) function: &'static Function,
    pub(super) rule: Rule,
    pub(super) args: Vec<Node>,
    /// Whether the second argument is evaluated, and the call charged, even if the first fails.
    pub(super) is_eager: bool,
    /// The type that the checker resolved for the first argument, where its value may have another one.
    pub(super) first: Option<&'static Type>,
}

impl Call {
    /// Whether the first argument has the type that the checker resolved.
    pub(super) fn takes(&self, args: &[Value<'_>]) -> bool {
        match (self.first, args.first()) {
            (Some(wanted), Some(found)) => overload::assignable(wanted, found),
            _ => true,
        }
    }
}

#[derive(Debug)]
pub(super) struct Fold {
    pub(super) range: Node,
    pub(super) variable: usize,
    pub(super) variable2: Option<usize>,
    pub(super) accumulator: usize,
    /// Evaluated when the accumulator is first used.
    pub(super) init: Node,
    pub(super) condition: Node,
    pub(super) step: Step,
    pub(super) result: Node,
}

#[derive(Debug)]
pub(super) enum Step {
    Any(Node),
    /// `accumulator + [element]` for elements that pass the filter: appended in place.
    Append {
        filter: Option<Node>,
        element: Node,
    },
    /// `cel.@mapInsert(accumulator, entry...)`, likewise.
    Insert {
        filter: Option<Node>,
        entry: Vec<Node>,
    },
}

impl Attribute {
    pub(super) fn from_base(base: Base) -> Self {
        Self {
            base,
            qualifiers: Vec::new(),
            test: false,
        }
    }
}

impl Node {
    pub(super) fn into_attribute(self) -> Attribute {
        match self {
            Self::Attribute(attribute) => *attribute,
            node => Attribute::from_base(Base::Operand(node)),
        }
    }

    pub(super) fn constant(&self) -> Option<&Value<'static>> {
        match self {
            Self::Constant(value) => Some(value),
            _ => None,
        }
    }
}
