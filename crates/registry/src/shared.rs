//! Shared values that many futures hold, opaque to the compiler's auto trait checks.

use std::{ops::Deref, sync::Arc};

/// An `Arc` of a large type. To decide whether a future that holds an `Arc` is `Send`, the compiler
/// walks through everything in it, again for each method of an async trait: for a registry that
/// includes the webhook clients with all their connections. Here the walk ends, and dependent
/// crates compile in a fraction of the time. Access costs one indirect call.
pub struct Shared<T>(Arc<dyn Holds<T>>);

trait Holds<T>: Send + Sync {
    fn get(&self) -> &T;
}

impl<T: Send + Sync> Holds<T> for T {
    fn get(&self) -> &T {
        self
    }
}

impl<T: Send + Sync + 'static> From<Arc<T>> for Shared<T> {
    fn from(value: Arc<T>) -> Self {
        Self(value)
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        (*self.0).get()
    }
}
