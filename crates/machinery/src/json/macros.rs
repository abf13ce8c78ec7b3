//! Values written as JSON in the code.

/// A [`Value`](crate::json::Value) written as JSON, with expressions in it: whatever serializes
/// can be a value, and a name is text, or an identifier or an expression in parentheses that is.
#[macro_export]
macro_rules! json {
    (null) => { $crate::json::Value::Null };
    ([ $($list:tt)* ]) => {
        $crate::json::Value::Array($crate::json_list!([] $($list)*))
    };
    ({}) => { $crate::json::Value::Object($crate::json::Map::new()) };
    ({ $($map:tt)* }) => {{
        let mut map = $crate::json::Map::new();
        $crate::json_map!(map $($map)*);
        $crate::json::Value::Object(map)
    }};
    ($value:expr) => { $crate::json::of(&$value) };
}

/// The elements between brackets, one after the other.
#[doc(hidden)]
#[macro_export]
macro_rules! json_list {
    ([$($done:expr,)*]) => { ::std::vec![$($done),*] };
    ([$($done:expr,)*] null $(, $($rest:tt)*)?) => {
        $crate::json_list!([$($done,)* $crate::json!(null),] $($($rest)*)?)
    };
    ([$($done:expr,)*] [$($list:tt)*] $(, $($rest:tt)*)?) => {
        $crate::json_list!([$($done,)* $crate::json!([$($list)*]),] $($($rest)*)?)
    };
    ([$($done:expr,)*] {$($map:tt)*} $(, $($rest:tt)*)?) => {
        $crate::json_list!([$($done,)* $crate::json!({$($map)*}),] $($($rest)*)?)
    };
    ([$($done:expr,)*] $value:expr $(, $($rest:tt)*)?) => {
        $crate::json_list!([$($done,)* $crate::json!($value),] $($($rest)*)?)
    };
}

/// The entries between braces, one after the other.
#[doc(hidden)]
#[macro_export]
macro_rules! json_map {
    ($out:ident) => {};
    ($out:ident $key:tt : null $(, $($rest:tt)*)?) => {
        $out.insert($crate::json_key!($key), $crate::json!(null));
        $crate::json_map!($out $($($rest)*)?);
    };
    ($out:ident $key:tt : [$($list:tt)*] $(, $($rest:tt)*)?) => {
        $out.insert($crate::json_key!($key), $crate::json!([$($list)*]));
        $crate::json_map!($out $($($rest)*)?);
    };
    ($out:ident $key:tt : {$($map:tt)*} $(, $($rest:tt)*)?) => {
        $out.insert($crate::json_key!($key), $crate::json!({$($map)*}));
        $crate::json_map!($out $($($rest)*)?);
    };
    ($out:ident $key:tt : $value:expr $(, $($rest:tt)*)?) => {
        $out.insert($crate::json_key!($key), $crate::json!($value));
        $crate::json_map!($out $($($rest)*)?);
    };
}

/// A name: a literal lives for good, anything else is copied.
#[doc(hidden)]
#[macro_export]
macro_rules! json_key {
    ($key:literal) => {
        $crate::json::Key::fixed($key)
    };
    ($key:expr) => {
        $crate::json::Key::new(::std::convert::AsRef::<str>::as_ref(&$key))
    };
}
