//! The kinds of discovery.k8s.io.

pub mod endpoint_slice;
