//! The API server: each request passes one fixed pipeline (authentication, authorization,
//! admission, kind, store), and the response is made of stored bytes. Only the API server and the
//! crates below it access the store.
//!
//! [`Config::build`] makes an [`ApiServer`]; as a service it listens on HTTPS, and
//! [`ApiServer::connect`] gives clients in this process a transport without a socket. Both use the
//! same pipeline.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod bootstrap;
mod config;
mod convert;
mod definitions;
mod device_claims;
mod device_selectors;
mod discovery;
mod disruption;
mod handlers;
mod health;
mod hooks;
mod identity;
mod kubernetes_service;
mod local;
mod media;
mod metrics;
mod output;
mod page;
mod pieces;
mod pipeline;
mod policy_parameters;
mod selection;
mod server;
mod servers;
mod started;
mod token_uses;
mod usage;
mod write;

pub use ::{admission, audit};
pub use auth::authn::{self, IssuedToken, TokenIssuer, TokenRequest};
pub use auth::authz;
pub use config::{AccessOptions, Config, Error, Limits};
pub use identity::{ADDRESS as ADDRESS_ANNOTATION, VERSION_ANNOTATION, lease_name};
pub use local::LocalService;
pub use registry::{
    Draft, Encryption, Header, NameSuffixes, ObjectCodec, RandomNameSuffixes, Reader, Registry,
    Resource, Store, Stored, object_key,
};
pub use request::{Body, RequestInfo, ResourceRequest, User};
pub use server::{ApiServer, Diagnose};
pub use write::Fence;

use registry::{failure, meta};
use request::{query, respond, user, yaml};
