//! Assignability of types, and the types that free type variables are bound to.

use std::collections::HashMap;
use std::sync::Arc;

use crate::types::{OPTIONAL, Type};

/// The bindings of free type variables. The bindings of a failed comparison are undone.
#[derive(Debug, Default)]
pub(crate) struct Mapping {
    map: HashMap<Arc<str>, Type>,
    trail: Vec<(Arc<str>, Option<Type>)>,
}

impl Mapping {
    fn add(&mut self, name: &Arc<str>, to: Type) {
        let before = self.map.insert(name.clone(), to);
        self.trail.push((name.clone(), before));
    }

    fn find(&self, of: &Type) -> Option<&Type> {
        match of {
            Type::Param(name) => self.map.get(name),
            _ => None,
        }
    }

    fn attempt(&mut self, check: impl FnOnce(&mut Mapping) -> bool) -> bool {
        self.trail.clear();
        let fits = check(self);
        if !fits {
            while let Some((name, before)) = self.trail.pop() {
                match before {
                    Some(before) => self.map.insert(name, before),
                    None => self.map.remove(&name),
                };
            }
        }
        fits
    }

    /// Whether a value of one type is assignable to the other.
    pub(crate) fn assignable(&mut self, one: &Type, other: &Type) -> bool {
        self.attempt(|mapping| mapping.fits(one, other))
    }

    pub(crate) fn all_assignable(&mut self, ones: &[Type], others: &[Type]) -> bool {
        self.attempt(|mapping| mapping.all_fit(ones, others))
    }

    fn all_fit(&mut self, ones: &[Type], others: &[Type]) -> bool {
        ones.len() == others.len() && ones.iter().zip(others).all(|(a, b)| self.fits(a, b))
    }

    fn fits(&mut self, one: &Type, other: &Type) -> bool {
        if let Type::Param(name) = other {
            match self.substitution(one, name, other) {
                (true, _) => return true,
                (false, true) => return false,
                (false, false) => {}
            }
        }
        if let Type::Param(name) = one {
            return self.substitution(other, name, one).0;
        }
        if one.is_dyn_or_error() || other.is_dyn_or_error() {
            return true;
        }
        match (one, other) {
            (Type::Null, _) => nullable(other),
            (_, Type::Null) => nullable(one),
            (Type::Type(_), Type::Type(_)) => true,
            (Type::List(a), Type::List(b)) => self.fits(a, b),
            (Type::Map(a, b), Type::Map(c, d)) => self.fits(a, c) && self.fits(b, d),
            (Type::Opaque(a, p), Type::Opaque(b, q)) => a == b && self.all_fit(p, q),
            _ => one == other,
        }
    }

    /// Binds `param` to `of` if possible; returns whether it is possible and whether it was bound
    /// before.
    fn substitution(&mut self, of: &Type, name: &Arc<str>, param: &Type) -> (bool, bool) {
        if of == param {
            return (true, true);
        }
        if let Some(known) = self.find(param).cloned() {
            if *of == known {
                return (true, true);
            }
            if self.fits(of, &known) {
                let general = most_general(of, &known).clone();
                if self.apart(param, &general) {
                    self.add(name, general);
                }
                return (true, true);
            }
            return (false, true);
        }
        if self.apart(param, of) {
            self.add(name, of.clone());
            return (true, false);
        }
        (false, false)
    }

    /// Whether a type does not contain a variable.
    fn apart(&self, param: &Type, within: &Type) -> bool {
        if param == within {
            return false;
        }
        match within {
            Type::Param(_) => self.find(within).is_none_or(|known| self.apart(param, known)),
            Type::List(of) => self.apart(param, of),
            Type::Map(key, value) => self.apart(param, key) && self.apart(param, value),
            Type::Opaque(_, parameters) => parameters.iter().all(|p| self.apart(param, p)),
            Type::Type(Some(of)) => self.apart(param, of),
            _ => true,
        }
    }

    /// Replaces variables in a type by their bindings, and free ones by `dyn` if requested.
    pub(crate) fn substitute(&self, of: &Type, to_dyn: bool) -> Type {
        if let Some(known) = self.find(of) {
            return self.substitute(known, to_dyn);
        }
        match of {
            Type::Param(_) if to_dyn => Type::Dyn,
            Type::List(of) => Type::list(self.substitute(of, to_dyn)),
            Type::Map(key, value) => {
                Type::map(self.substitute(key, to_dyn), self.substitute(value, to_dyn))
            }
            Type::Opaque(name, parameters) => Type::Opaque(
                name.clone(),
                parameters.iter().map(|p| self.substitute(p, to_dyn)).collect(),
            ),
            Type::Type(Some(of)) => Type::Type(Some(Arc::new(self.substitute(of, to_dyn)))),
            same => same.clone(),
        }
    }
}

/// Whether null is assignable to a type.
fn nullable(of: &Type) -> bool {
    matches!(of, Type::Null | Type::Opaque(..) | Type::Object(_) | Type::Timestamp | Type::Duration)
}

pub(crate) fn most_general<'t>(one: &'t Type, other: &'t Type) -> &'t Type {
    if less_specific(one, other) { one } else { other }
}

fn less_specific(one: &Type, other: &Type) -> bool {
    if matches!(one, Type::Dyn | Type::Any | Type::Param(_)) {
        return true;
    }
    if matches!(other, Type::Dyn | Type::Any | Type::Param(_)) {
        return false;
    }
    match (one, other) {
        (Type::Opaque(a, p), Type::Opaque(b, q)) => {
            a == b && p.len() == q.len() && p.iter().zip(q.iter()).all(|(x, y)| less_specific(x, y))
        }
        (Type::List(a), Type::List(b)) => less_specific(a, b),
        (Type::Map(a, b), Type::Map(c, d)) => less_specific(a, c) && less_specific(b, d),
        (Type::Type(_), Type::Type(_)) => true,
        _ => one == other,
    }
}

/// Returns the type in an optional, or the type itself.
pub(crate) fn unwrapped(of: &Type) -> (Type, bool) {
    match of {
        Type::Opaque(name, parameters) if &**name == OPTIONAL => {
            (parameters.first().cloned().unwrap_or(Type::Dyn), true)
        }
        other => (other.clone(), false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Type {
        Type::parse(text).unwrap()
    }

    /// `internalIsAssignable` of cel-go's `checker/types.go`.
    #[test]
    fn dyn_is_assignable_to_all_types_and_null_to_some() {
        for (one, other, expected) in [
            ("int", "int", true),
            ("int", "uint", false),
            ("dyn", "int", true),
            ("int", "dyn", true),
            ("null", "int", false),
            ("null", "timestamp", true),
            ("null", "my.Message", true),
            ("null", "optional_type(int)", true),
            ("null", "list(int)", false),
            ("list(int)", "list(dyn)", true),
            ("map(string, int)", "map(string, uint)", false),
            ("type(int)", "type(string)", true),
            ("my.Message", "your.Message", false),
            ("list(int)", "map(int, int)", false),
            ("optional_type(int)", "optional_type(string)", false),
        ] {
            assert_eq!(
                Mapping::default().assignable(&of(one), &of(other)),
                expected,
                "{one} {other}"
            );
        }
    }

    /// `isValidTypeSubstitution` and `mapping` of cel-go's `checker/types.go` and `mapping.go`.
    #[test]
    fn a_type_variable_keeps_its_first_type_or_a_more_general_one() {
        for (assigned, expected) in [
            (&[("A", "int", true), ("A", "int", true)][..], "int"),
            (&[("A", "int", true), ("A", "string", false)], "int"),
            (&[("A", "list(int)", true), ("A", "list(dyn)", true)], "list(dyn)"),
            (&[("A", "int", true), ("A", "dyn", true)], "dyn"),
            (&[("A", "list(A)", false)], "A"),
            (&[("A", "B", true), ("B", "int", true)], "int"),
        ] {
            let mut mapping = Mapping::default();
            for (name, to, fits) in assigned {
                assert_eq!(mapping.assignable(&of(to), &of(name)), *fits, "{assigned:?}");
            }
            assert_eq!(mapping.substitute(&of("A"), false), of(expected), "{assigned:?}");
        }
        assert_eq!(Mapping::default().substitute(&of("list(A)"), true), of("list(dyn)"));
    }

    /// `isAssignableList` of cel-go's `checker/types.go` copies the mapping before it compares.
    #[test]
    fn a_failed_comparison_binds_no_variable() {
        let mut mapping = Mapping::default();
        let (given, wanted) = ([of("int"), of("int")], [of("A"), of("string")]);
        assert!(!mapping.all_assignable(&given, &wanted));
        assert_eq!(mapping.substitute(&of("A"), false), of("A"));
    }

    /// `isEqualOrLessSpecific` of cel-go's `checker/types.go`.
    #[test]
    fn the_most_general_type_has_dyn_in_its_place() {
        for (one, other, expected) in [
            ("dyn", "int", "dyn"),
            ("int", "dyn", "dyn"),
            ("list(int)", "list(dyn)", "list(dyn)"),
            ("map(string, dyn)", "map(string, int)", "map(string, dyn)"),
            ("A", "int", "A"),
        ] {
            assert_eq!(*most_general(&of(one), &of(other)), of(expected), "{one} {other}");
        }
    }
}
