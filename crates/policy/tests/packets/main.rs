//! Network policies on a real kernel: each test is a node in a network namespace of its own, with
//! pods, and a neighbour with the addresses of remote pods.

#![allow(clippy::unwrap_used)]

mod connections;
mod forged;
mod lab_node;
mod matrix;
