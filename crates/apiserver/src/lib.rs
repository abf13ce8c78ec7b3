//! The API server: one request walks one fixed pipeline (who, may they, admit, kind, store), and the
//! answer is made of stored bytes. Nothing else in the house touches the store.
//!
//! [`Config::build`] makes an [`ApiServer`]; as a service it listens on HTTPS, and
//! [`ApiServer::connect`] gives clients in this process a transport without a socket. Both ways lead
//! through the same pipeline.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod admission;
mod api_services;
pub mod audit;
pub mod authn;
pub mod authz;
mod body;
mod bootstrap;
mod codec;
mod config;
mod connection;
mod convert;
mod custom;
mod device_claims;
mod discovery;
mod disruption;
mod failure;
mod fairness;
mod gzip;
mod handlers;
mod health;
mod hooks;
mod identity;
mod impersonation;
mod local;
mod media;
mod meta;
mod metrics;
mod names;
mod openapi;
mod output;
mod page;
mod pieces;
mod pipeline;
mod pretty;
mod proxy;
mod query;
mod reader;
mod registry;
mod request_info;
mod respond;
mod scan;
mod selection;
mod sending;
mod server;
mod services;
mod slices;
mod started;
#[cfg(test)]
mod testing;
mod unenforced;
mod user;
mod write;
mod yaml;

pub use body::Body;
pub use codec::{Draft, Header, ObjectCodec, Stored};
pub use config::{Config, Error, IssuedToken, Limits, TokenIssuer, TokenRequest};
pub use local::LocalService;
pub use names::{Endings, RandomEndings};
pub use reader::Reader;
pub use registry::{Registry, Resource};
pub use request_info::{RequestInfo, ResourceRequest};
pub use server::ApiServer;
pub use user::User;

/// The store as the API server sees it.
pub type Store = std::sync::Arc<dyn store::Store<ObjectCodec>>;
