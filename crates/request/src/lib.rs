//! Requests and answers, for all rooms of the API server: what a request is about ([`RequestInfo`]), its [`Query`], its
//! [`User`], and how an answer is made ([`respond`], [`Body`]).

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod body;
mod client;
pub mod heavy;
pub mod query;
mod request_info;
pub mod respond;
pub mod user;
pub mod yaml;

pub use body::{Body, BodyError, Pace};
pub use client::Client;
pub use query::Query;
pub use request_info::{RequestInfo, ResourceRequest};
pub use respond::{Answer, Encoding};
pub use user::User;
