//! Makes cargo unify the features of build dependencies, too; there is nothing to build.

fn main() {}
