//! The server in one process, driven over its API: one file per promise. One binary, because each
//! is linked on its own.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod apply;
mod audit;
mod bootstrap;
mod conduct;
mod custom;
mod deletion;
mod discovery;
mod every_kind;
mod every_verb;
mod forms;
mod holes;
mod identity;
mod kube_rs;
mod kubectl;
mod kubelet;
mod limits;
mod negotiation;
mod openapi;
mod paths;
mod planted;
mod races;
mod ranges;
mod ratcheting;
mod reads;
mod rehearsals;
mod services;
mod streams;
mod subresources;
mod support;
mod versions;
mod watches;
mod websockets;
mod wire;
mod writes;
