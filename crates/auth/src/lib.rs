//! Authentication ([`authn`]), authorization ([`authz`]) and impersonation ([`impersonation`]).
//! Each is a list of small parts that are tried in order; objects are read through `registry`'s
//! `Reader`, and nothing here knows the pipeline.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod answers;
pub mod authn;
pub mod authz;
pub mod impersonation;
