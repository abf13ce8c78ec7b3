//! SPDY/3.1 as Kubernetes' clients use it: many streams on one upgraded connection.
//!
//! Flow control windows are neither tracked nor sent: no Kubernetes client does, and the
//! connection's backpressure bounds the memory.

mod connection;
mod frame;
mod headers;

pub use connection::{Connection, Incoming, Role};
