//! The `json!` macro.

/// A [`Value`](crate::json::Value) in JSON syntax, with expressions: any serializable expression
/// can be a value; a name is a literal, or an identifier or parenthesised expression that is text.
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
    ($value:expr) => { $crate::json::to_value_or_null(&$value) };
}

/// The elements of an array, one after the other.
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

/// The entries of an object, one after the other.
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

/// A name: a literal is static, anything else is copied.
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
