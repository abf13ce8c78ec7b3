//! Errors of the operating system as Kubernetes' clients know them: without the number, and beginning with a small letter.

use std::io;

/// The text of an error, such as `connection refused`.
pub fn describe(error: &io::Error) -> String {
    let text = error.to_string();
    let (text, _) = text.split_once(" (os error").unwrap_or((&text, ""));
    uncapitalized(text)
}

/// A text that begins with a small letter.
pub fn uncapitalized(text: &str) -> String {
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => first.to_lowercase().chain(letters).collect(),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_no_number_and_begin_small() {
        for (error, expected) in [
            (io::Error::from_raw_os_error(111), "connection refused"),
            (io::Error::other("Änderung fehlt"), "änderung fehlt"),
            (io::Error::other(""), ""),
        ] {
            assert_eq!(describe(&error), expected);
        }
    }
}
