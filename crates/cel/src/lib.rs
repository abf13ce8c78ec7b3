//! The Common Expression Language as Kubernetes v1.36 uses it: parse, check, estimate, evaluate.
//!
//! [`compile`] checks an expression against an [`Env`] of variables and schemas and reports errors
//! in upstream's words; [`cost::estimate`] gives its maximum cost; a [`Program`] is compiled once
//! and evaluated over values that borrow from the JSON of objects, within a cost limit. Pure: no
//! input panics, and nothing outside of the values is read.
//!
//! Deliberately absent: protocol buffers, name containers, partial evaluation.
#![forbid(unsafe_code)]

mod ast;
mod check;
pub mod cost;
pub mod decl;
mod device;
mod env;
mod functions;
mod lexer;
mod literals;
mod macros;
mod meter;
mod parser;
mod program;
mod source;
mod syntax;
mod types;
mod unify;
pub mod value;

pub use check::{Checked, check, compile};
pub use decl::{Decl, DeclKind, Field, ListSemantics, escape};
pub use device::{DEVICE_COST_LIMIT, Device, DeviceSelector, SelectorError};
pub use env::{Env, JSON_PATCH, OBJECT, Variable};
pub use functions::{Authorizer, Check, Decision, library::Library};
pub use meter::{Meter, SMALL_COST};
pub use parser::{Parsed, parse};
pub use program::{Evaluation, Lazy, Program};
pub use source::{Issue, Issues};
pub use types::Type;
pub use value::{Error, Value};

/// The cost limit of one expression; upstream's.
pub const PER_CALL_LIMIT: u64 = 1_000_000;
