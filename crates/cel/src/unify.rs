//! Which types fit which: assignability with type variables.

use std::collections::HashMap;

use crate::types::{Param, Type};

/// What is known of type variables.
#[derive(Debug, Clone, Default)]
pub struct Mapping(HashMap<Param, Type>);

impl Mapping {
    fn find(&self, of: &Type) -> Option<&Type> {
        match of {
            Type::Param(param) => self.0.get(param),
            _ => None,
        }
    }

    /// Replaces bound variables; unbound ones become `dyn` where asked for.
    pub fn substitute(&self, within: &Type, unbound_to_dyn: bool) -> Type {
        if let Some(bound) = self.find(within) {
            return self.substitute(bound, unbound_to_dyn);
        }
        let inner = |t: &Type| self.substitute(t, unbound_to_dyn);
        match within {
            Type::Param(_) if unbound_to_dyn => Type::Dyn,
            Type::List(element) => Type::list(inner(element)),
            Type::Map(key, value) => Type::map(inner(key), inner(value)),
            Type::Optional(value) => Type::optional(inner(value)),
            Type::Type(value) => Type::Type(std::sync::Arc::new(inner(value))),
            other => other.clone(),
        }
    }

    /// Whether `from` fits `to`. Variables are bound on the way; nothing is bound if it does not.
    pub fn assign(&mut self, from: &Type, to: &Type) -> bool {
        self.assign_all(std::slice::from_ref(from), std::slice::from_ref(to))
    }

    pub fn assign_all(&mut self, from: &[Type], to: &[Type]) -> bool {
        if from.len() != to.len() {
            return false;
        }
        let mut attempt = self.clone();
        let fits = from.iter().zip(to).all(|(from, to)| attempt.fits(from, to));
        if fits {
            *self = attempt;
        }
        fits
    }

    fn fits(&mut self, from: &Type, to: &Type) -> bool {
        if let Type::Param(_) = to {
            match self.substitutes(from, to) {
                (true, _) => return true,
                (false, true) => return false,
                (false, false) => {}
            }
        }
        if let Type::Param(_) = from {
            return self.substitutes(to, from).0;
        }
        if from.is_dyn_or_error() || to.is_dyn_or_error() {
            return true;
        }
        match (from, to) {
            (Type::Null, other) | (other, Type::Null) => is_nullable(other),
            (Type::List(a), Type::List(b)) | (Type::Optional(a), Type::Optional(b)) => {
                self.fits(a, b)
            }
            (Type::Map(k1, v1), Type::Map(k2, v2)) => self.fits(k1, k2) && self.fits(v1, v2),
            (Type::Type(_), Type::Type(_)) => true,
            (a, b) => a == b,
        }
    }

    /// Whether `variable`, or what it is bound to, can stand for `other`; and whether it was bound.
    fn substitutes(&mut self, other: &Type, variable: &Type) -> (bool, bool) {
        if other == variable {
            return (true, true);
        }
        if let Some(bound) = self.find(variable).cloned() {
            if *other == bound {
                return (true, true);
            }
            if !self.fits(other, &bound) {
                return (false, true);
            }
            let general = most_general(other, &bound);
            if !self.occurs(variable, &general) {
                self.insert(variable, general);
            }
            return (true, true);
        }
        if self.occurs(variable, other) {
            return (false, false);
        }
        self.insert(variable, other.clone());
        (true, false)
    }

    fn insert(&mut self, variable: &Type, to: Type) {
        if let Type::Param(param) = variable {
            self.0.insert(param.clone(), to);
        }
    }

    fn occurs(&self, variable: &Type, within: &Type) -> bool {
        if variable == within {
            return true;
        }
        match within {
            Type::Param(_) => self
                .find(within)
                .is_some_and(|bound| self.occurs(variable, bound)),
            Type::List(inner) | Type::Optional(inner) | Type::Type(inner) => {
                self.occurs(variable, inner)
            }
            Type::Map(key, value) => self.occurs(variable, key) || self.occurs(variable, value),
            _ => false,
        }
    }
}

fn is_nullable(t: &Type) -> bool {
    matches!(
        t,
        Type::Null
            | Type::Optional(_)
            | Type::Struct(_)
            | Type::Opaque(_)
            | Type::Duration
            | Type::Timestamp
    )
}

/// The more general of two types that fit each other.
pub fn most_general(a: &Type, b: &Type) -> Type {
    if is_equal_or_less_specific(a, b) {
        a.clone()
    } else {
        b.clone()
    }
}

fn is_equal_or_less_specific(a: &Type, b: &Type) -> bool {
    match (a, b) {
        (Type::Dyn | Type::Param(_), _) => true,
        (_, Type::Dyn | Type::Param(_)) => false,
        (Type::List(a), Type::List(b)) | (Type::Optional(a), Type::Optional(b)) => {
            is_equal_or_less_specific(a, b)
        }
        (Type::Map(k1, v1), Type::Map(k2, v2)) => {
            is_equal_or_less_specific(k1, k2) && is_equal_or_less_specific(v1, v2)
        }
        (Type::Type(_), Type::Type(_)) => true,
        (a, b) => a == b,
    }
}
