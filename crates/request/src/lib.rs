//! Requests and responses, for all parts of the API server: [`RequestInfo`], [`Query`], [`User`],
//! and responses ([`respond`], [`Body`]).

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod audit_trail;
mod body;
mod client;
pub mod heavy;
pub mod query;
mod request_info;
pub mod respond;
pub mod user;
pub mod yaml;
pub mod zpages;

pub use audit_trail::AuditTrail;
pub use body::{Body, BodyError, NextFrame, Pace, RequestBody};
pub use client::Client;
pub use query::Query;
pub use request_info::{RequestInfo, ResourceRequest};
pub use respond::{Answer, Encoding};
pub use user::User;
