//! The kinds of apiextensions.k8s.io.

pub mod custom_resource_definition;
mod schema;
mod structural;
mod versions;
