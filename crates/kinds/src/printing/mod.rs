//! How values look to people: columns of tables, and values in error messages.

pub mod columns;
pub(crate) mod internal;
pub(crate) mod shown;
