//! The functions of the language and of Kubernetes' libraries at v1.36, one file for each library.
//!
//! A library is a table of signatures for the checker, and one implementation for each function,
//! which dispatches on the types of its values: the same code serves checked and dynamic arguments.

mod address;
pub(crate) mod amount;
mod authz;
pub(crate) mod convert;
mod format;
pub(crate) mod library;
mod lists;
mod net;
mod number;
mod operators;
mod optional;
pub(crate) mod overload;
pub(crate) mod printf;
mod quantity;
pub(crate) mod regex;
pub(crate) mod semver;
mod sets;
mod strings;
mod time;
pub(crate) mod timestamp;
mod url;

use std::{collections::HashMap, sync::LazyLock};

use crate::{
    types::{Param, Type, split_arguments},
    value::{Result, Value},
};

pub use authz::{Authorizer, Check, Decision};

/// The one function that exists only for patches.
pub(crate) const ESCAPE_KEY: &str = "jsonpatch.escapeKey";

/// Evaluates a call; a receiver is the first argument.
pub(crate) type Implementation = for<'a> fn(&[Value<'a>]) -> Result<Value<'a>>;

/// A function with all of its overloads.
#[derive(Debug)]
pub(crate) struct Function {
    pub name: &'static str,
    pub overloads: Vec<Overload>,
    pub call: Implementation,
}

#[derive(Debug)]
pub(crate) struct Overload {
    pub id: &'static str,
    /// Called as `receiver.function()`; the receiver is the first of `args`.
    pub member: bool,
    pub args: Vec<Type>,
    pub result: Type,
    /// Type parameters in the signature.
    pub params: Vec<char>,
}

/// A row of a library: name, implementation, and overloads as `id: args -> result`. An id that
/// begins with a dot is of a member function.
pub(crate) type Row = (
    &'static str,
    Implementation,
    &'static [(&'static str, &'static str)],
);

static ALL: LazyLock<HashMap<&'static str, Function>> = LazyLock::new(|| {
    let mut functions: HashMap<&'static str, Function> = HashMap::new();
    let libraries: &[&[Row]] = &[
        operators::ROWS,
        convert::ROWS,
        time::ROWS,
        strings::ROWS,
        lists::ROWS,
        sets::ROWS,
        regex::ROWS,
        url::ROWS,
        net::ROWS,
        quantity::ROWS,
        semver::ROWS,
        format::ROWS,
        optional::ROWS,
        authz::ROWS,
    ];
    for (name, call, overloads) in libraries.iter().copied().flatten() {
        let function = functions.entry(name).or_insert_with(|| Function {
            name,
            overloads: Vec::new(),
            call: *call,
        });
        // Every function has one implementation, in one library.
        debug_assert!(function.overloads.is_empty(), "{name} stands in two tables");
        function
            .overloads
            .extend(overloads.iter().map(|(id, text)| signature(id, text)));
    }
    functions
});

pub(crate) fn lookup(name: &str) -> Option<&'static Function> {
    ALL.get(name)
}

/// The two functions of the name `ip`: of text, and as a member of a network. A dynamic value does not choose between them.
static TEXT_IP: LazyLock<Function> = LazyLock::new(|| Function {
    name: "ip",
    overloads: vec![signature("string_to_ip", "string -> net.IP")],
    call: net::ip,
});
static MEMBER_IP: LazyLock<Function> = LazyLock::new(|| Function {
    name: "ip",
    overloads: vec![signature(".cidr_ip", "net.CIDR -> net.IP")],
    call: net::member_ip,
});

/// The function to call, where a member has other overloads than the function of the same name.
pub(crate) fn dispatched(function: &'static Function, overload: &str) -> &'static Function {
    match overload {
        "string_to_ip" => &TEXT_IP,
        "cidr_ip" => &MEMBER_IP,
        _ => function,
    }
}

fn signature(id: &'static str, text: &str) -> Overload {
    let (args, result) = text.split_once("->").unwrap_or((text, "dyn"));
    let args: Vec<Type> = split_arguments(args).into_iter().map(Type::parse).collect();
    let result = Type::parse(result);
    let mut params = Vec::new();
    for t in args.iter().chain([&result]) {
        collect_params(t, &mut params);
    }
    Overload {
        id: id.trim_start_matches('.'),
        member: id.starts_with('.'),
        args,
        result,
        params,
    }
}

fn collect_params(t: &Type, params: &mut Vec<char>) {
    match t {
        Type::Param(Param::Named(name)) if !params.contains(name) => params.push(*name),
        Type::List(inner) | Type::Optional(inner) | Type::Type(inner) => {
            collect_params(inner, params);
        }
        Type::Map(key, value) => {
            collect_params(key, params);
            collect_params(value, params);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_overload_has_an_id_of_its_own() {
        let mut seen = std::collections::HashSet::new();
        for function in ALL.values() {
            for overload in &function.overloads {
                assert!(seen.insert(overload.id), "{} twice", overload.id);
            }
        }
        assert!(seen.len() > 200, "{}", seen.len());
    }
}
