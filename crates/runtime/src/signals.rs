//! Signals by name.

use nix::sys::signal::Signal;

/// The number of `SIGTERM`, `TERM`, `15`, `SIGRTMIN+3`, `SIGRTMINPLUS3` and the like.
pub(crate) fn number(name: &str) -> Option<i32> {
    if let Ok(number) = name.parse::<i32>() {
        return (1..=64).contains(&number).then_some(number);
    }
    let name = name.to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    let relative = |rest: &str, signs: [&str; 2]| -> Option<i32> {
        match rest {
            "" => Some(0),
            _ => signs
                .iter()
                .find_map(|sign| rest.strip_prefix(sign))?
                .parse()
                .ok(),
        }
    };
    let found = if let Some(rest) = name.strip_prefix("RTMIN") {
        34 + relative(rest, ["+", "PLUS"])?
    } else if let Some(rest) = name.strip_prefix("RTMAX") {
        64 - relative(rest, ["-", "MINUS"])?
    } else {
        let name = match name {
            "CLD" => "CHLD",
            "POLL" => "IO",
            "IOT" => "ABRT",
            other => other,
        };
        format!("SIG{name}").parse::<Signal>().ok()? as i32
    };
    (1..=64).contains(&found).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn signals_have_many_names() {
        assert_eq!(number("SIGTERM"), Some(15));
        assert_eq!(number("quit"), Some(3));
        assert_eq!(number("9"), Some(9));
        assert_eq!(number("SIGRTMIN+3"), Some(37));
        assert_eq!(number("SIGRTMINPLUS15"), Some(49));
        assert_eq!(number("RTMAX"), Some(64));
        assert_eq!(number("SIGRTMAXMINUS14"), Some(50));
        assert_eq!(number("SIGCLD"), Some(17));
        assert_eq!(number("NOPE"), None);
        assert_eq!(number("99"), None);
    }
}
