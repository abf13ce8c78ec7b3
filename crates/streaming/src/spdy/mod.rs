//! SPDY/3.1 as Kubernetes' clients speak it: many streams on one upgraded connection.
//!
//! Flow control windows are neither kept nor sent: no client of Kubernetes does, and the
//! connection's own backpressure bounds what is held in memory.

mod connection;
mod frame;
mod headers;

pub use connection::{Connection, Incoming, Role};
