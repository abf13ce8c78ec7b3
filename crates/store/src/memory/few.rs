//! One item or several: most commits have one operation, which then needs no allocation.

/// One item or several, in order.
#[derive(Debug)]
pub enum OneOrMany<T> {
    /// One.
    One(T),
    /// Any number.
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    /// Each through a function.
    pub fn map<R>(self, mut map: impl FnMut(T) -> R) -> OneOrMany<R> {
        match self {
            Self::One(one) => OneOrMany::One(map(one)),
            Self::Many(many) => OneOrMany::Many(many.into_iter().map(map).collect()),
        }
    }

    /// As a slice.
    pub fn as_slice(&self) -> &[T] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }

    /// As a vector.
    pub fn into_vec(self) -> Vec<T> {
        match self {
            Self::One(one) => vec![one],
            Self::Many(many) => many,
        }
    }
}

impl<T> From<Vec<T>> for OneOrMany<T> {
    fn from(mut many: Vec<T>) -> Self {
        match many.pop() {
            Some(one) if many.is_empty() => Self::One(one),
            last => {
                many.extend(last);
                Self::Many(many)
            }
        }
    }
}
