//! Assignability of types with type variables.

use std::{cell::Cell, collections::HashMap, sync::Arc};

use crate::types::{Param, Type};

/// Maximum nesting of types, including variables: everything that walks them recurses.
const DEEPEST_TYPE: u32 = 250;
/// Maximum number of parts of a type.
const LARGEST_TYPE: u32 = 1000;
/// Maximum steps over types for one expression. Ordinary ones take a few per node; types that
/// contain each other twice would double the steps with each level.
const STEPS: u64 = 10_000_000;
/// The steps that creating a part of a type counts for, since it takes memory.
const MAKING: u64 = 16;

/// The bindings of type variables.
#[derive(Debug, Default)]
pub(crate) struct Mapping {
    bound: HashMap<Param, Type>,
    /// Bindings overwritten by the current attempt, restored if it fails.
    overwritten: Vec<(Param, Option<Type>)>,
    steps: Cell<u64>,
    /// Whether a type was too deep or too large to continue.
    exceeded: Cell<bool>,
}

impl Mapping {
    /// Whether a type was too deep, or all of them together too large.
    pub(crate) fn exceeded(&self) -> bool {
        self.exceeded.get()
    }

    /// Counts steps; false if there are too many or the type is too deep.
    fn step(&self, depth: u32, steps: u64) -> bool {
        self.steps.set(self.steps.get().saturating_add(steps));
        if depth > DEEPEST_TYPE || self.steps.get() > STEPS {
            self.exceeded.set(true);
        }
        !self.exceeded.get()
    }

    /// Whether a type is small enough to continue.
    pub(crate) fn admits(&self, t: &Type) -> bool {
        let mut parts = LARGEST_TYPE;
        let fits = is_within(t, DEEPEST_TYPE, &mut parts);
        self.exceeded.set(self.exceeded.get() || !fits);
        self.step(0, u64::from(LARGEST_TYPE - parts))
    }

    fn find(&self, of: &Type) -> Option<&Type> {
        match of {
            Type::Param(param) => self.bound.get(param),
            _ => None,
        }
    }

    /// Replaces bound variables; unbound ones become `dyn` if requested.
    pub(crate) fn substitute(&self, within: &Type, unbound_to_dyn: bool) -> Type {
        let replaced = self.replaced(within, unbound_to_dyn, 0);
        replaced.unwrap_or_else(|| within.clone())
    }

    /// The same; `None` if nothing is replaced, so that the type can be shared.
    fn replaced(&self, within: &Type, to_dyn: bool, depth: u32) -> Option<Type> {
        if !self.step(depth, 1) {
            return Some(Type::Dyn);
        }
        if let Some(bound) = self.find(within) {
            let replaced = self.replaced(bound, to_dyn, depth + 1);
            return Some(replaced.unwrap_or_else(|| bound.clone()));
        }
        let inner = |t: &Arc<Type>| self.replaced(t, to_dyn, depth + 1).map(Arc::new);
        let made = match within {
            Type::Param(_) if to_dyn => Type::Dyn,
            Type::List(element) => Type::List(inner(element)?),
            Type::Optional(value) => Type::Optional(inner(value)?),
            Type::Type(value) => Type::Type(inner(value)?),
            Type::Map(key, value) => match (inner(key), inner(value)) {
                (None, None) => return None,
                (k, v) => Type::Map(
                    k.unwrap_or_else(|| key.clone()),
                    v.unwrap_or_else(|| value.clone()),
                ),
            },
            _ => return None,
        };
        self.step(depth, MAKING);
        Some(made)
    }

    /// Whether `from` is assignable to `to`. Binds variables; nothing is bound if it is not.
    pub(crate) fn assign(&mut self, from: &Type, to: &Type) -> bool {
        self.assign_all(std::slice::from_ref(from), std::slice::from_ref(to))
    }

    pub(crate) fn assign_all(&mut self, from: &[Type], to: &[Type]) -> bool {
        if from.len() != to.len() {
            return false;
        }
        let mut pairs = from.iter().zip(to);
        let fits = pairs.all(|(from, to)| self.fits(from, to, 0)) && !self.exceeded();
        let overwritten = std::mem::take(&mut self.overwritten);
        if !fits {
            for (param, before) in overwritten.into_iter().rev() {
                match before {
                    Some(before) => self.bound.insert(param, before),
                    None => self.bound.remove(&param),
                };
            }
        }
        fits
    }

    fn fits(&mut self, from: &Type, to: &Type, depth: u32) -> bool {
        if !self.step(depth, 1) {
            return false;
        }
        if let Type::Param(_) = to {
            match self.substitutes(from, to, depth) {
                (true, _) => return true,
                (false, true) => return false,
                (false, false) => {}
            }
        }
        if let Type::Param(_) = from {
            return self.substitutes(to, from, depth).0;
        }
        if from.is_dyn_or_error() || to.is_dyn_or_error() {
            return true;
        }
        match (from, to) {
            (Type::Null, other) | (other, Type::Null) => is_nullable(other),
            (Type::List(a), Type::List(b)) | (Type::Optional(a), Type::Optional(b)) => {
                self.fits(a, b, depth + 1)
            }
            (Type::Map(k1, v1), Type::Map(k2, v2)) => {
                self.fits(k1, k2, depth + 1) && self.fits(v1, v2, depth + 1)
            }
            (Type::Type(_), Type::Type(_)) => true,
            (a, b) => a == b,
        }
    }

    /// Whether `variable`, or its binding, can stand for `other`; and whether it was bound.
    fn substitutes(&mut self, other: &Type, variable: &Type, depth: u32) -> (bool, bool) {
        if other == variable {
            return (true, true);
        }
        if let Some(bound) = self.find(variable).cloned() {
            if !self.fits(other, &bound, depth + 1) {
                return (false, true);
            }
            let general = most_general(other, &bound);
            if !self.occurs(variable, &general, depth) {
                self.insert(variable, general);
            }
            return (true, true);
        }
        if self.occurs(variable, other, depth) {
            return (false, false);
        }
        self.insert(variable, other.clone());
        (true, false)
    }

    fn insert(&mut self, variable: &Type, to: Type) {
        if let Type::Param(param) = variable {
            let before = self.bound.insert(param.clone(), to);
            self.overwritten.push((param.clone(), before));
        }
    }

    fn occurs(&self, variable: &Type, within: &Type, depth: u32) -> bool {
        if !self.step(depth, 1) || variable == within {
            return true;
        }
        let inner = |t: &Type| self.occurs(variable, t, depth + 1);
        match within {
            Type::Param(_) => self.find(within).is_some_and(inner),
            Type::List(a) | Type::Optional(a) | Type::Type(a) => inner(a),
            Type::Map(key, value) => inner(key) || inner(value),
            _ => false,
        }
    }
}

/// Whether a type has at most `levels` levels and the remaining number of parts.
fn is_within(t: &Type, levels: u32, parts: &mut u32) -> bool {
    if levels == 0 || *parts == 0 {
        return false;
    }
    *parts -= 1;
    match t {
        Type::List(a) | Type::Optional(a) | Type::Type(a) => is_within(a, levels - 1, parts),
        Type::Map(key, value) => {
            is_within(key, levels - 1, parts) && is_within(value, levels - 1, parts)
        }
        _ => true,
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

/// The more general of two compatible types.
pub(crate) fn most_general(a: &Type, b: &Type) -> Type {
    if is_equal_or_less_specific(a, b) {
        a.clone()
    } else {
        b.clone()
    }
}

fn is_equal_or_less_specific(a: &Type, b: &Type) -> bool {
    match (a, b) {
        (Type::Dyn | Type::Any | Type::Param(_), _) => true,
        (_, Type::Dyn | Type::Any | Type::Param(_)) => false,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn variable(number: u32) -> Type {
        Type::Param(Param::Variable(number))
    }

    #[test]
    fn a_failed_assignment_binds_no_type_parameters() {
        let mut mapping = Mapping::default();
        assert!(mapping.assign(&Type::Int, &variable(0)));
        let (from, to) = (
            [Type::list(Type::Bool), Type::String],
            [variable(1), variable(0)],
        );
        assert!(!mapping.assign_all(&from, &to));
        assert_eq!(mapping.substitute(&variable(0), false), Type::Int);
        assert_eq!(mapping.substitute(&variable(1), false), variable(1));
        assert!(!mapping.exceeded());
    }

    /// Each variable is bound to a map of the next one twice: expanded, 2^40 parts.
    #[test]
    fn exponentially_growing_types_are_refused() {
        let mut mapping = Mapping::default();
        for number in (0..40).rev() {
            let twice = Type::map(variable(number + 1), variable(number + 1));
            mapping.bound.insert(Param::Variable(number), twice);
        }
        mapping.substitute(&variable(0), true);
        assert!(mapping.exceeded());
        assert!(!mapping.assign(&variable(0), &variable(50)));
    }

    #[test]
    fn types_are_neither_deep_nor_large() {
        let nested = |levels: u32| (0..levels).fold(Type::Int, |inner, _| Type::list(inner));
        assert!(Mapping::default().admits(&nested(DEEPEST_TYPE - 1)));
        assert!(!Mapping::default().admits(&nested(DEEPEST_TYPE)));
        let doubled = |times: u32| {
            let double = |inner: Type, _| Type::map(inner.clone(), inner);
            (0..times).fold(Type::Int, double)
        };
        assert!(Mapping::default().admits(&doubled(8)));
        assert!(!Mapping::default().admits(&doubled(60)));
    }
}
