//! Who makes a request and what they may do: authentication ([`authn`]), authorization ([`authz`]) and acting as
//! somebody else ([`impersonation`]). Each is a list of small parts that are asked in order; reading objects goes
//! through `registry`'s `Reader`, and nothing here knows the pipeline.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod authn;
pub mod authz;
pub mod impersonation;
