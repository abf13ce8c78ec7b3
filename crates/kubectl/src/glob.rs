//! File name patterns: `*`, `?` and `[a-z]`.

/// Whether a name matches a pattern.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    // The position of the last star, and how much of the name it matches.
    let mut star: Option<(usize, usize)> = None;
    let (mut p, mut n) = (0, 0);
    while n < name.len() {
        match match_class(&pattern[p.min(pattern.len())..], name[n]) {
            Step::Star => {
                star = Some((p, n));
                p += 1;
            }
            Step::Matched(length) => {
                p += length;
                n += 1;
            }
            Step::Failed => match star {
                Some((at, taken)) => {
                    star = Some((at, taken + 1));
                    (p, n) = (at + 1, taken + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p.min(pattern.len())..].iter().all(|c| *c == '*')
}

enum Step {
    Star,
    Matched(usize),
    Failed,
}

fn match_class(pattern: &[char], c: char) -> Step {
    match pattern {
        [] => Step::Failed,
        ['*', ..] => Step::Star,
        ['?', ..] => Step::Matched(1),
        ['[', rest @ ..] => match rest.iter().skip(1).position(|c| *c == ']') {
            Some(end) if in_class(&rest[..=end], c) => Step::Matched(end + 3),
            _ => Step::Failed,
        },
        ['\\', literal, ..] if *literal == c => Step::Matched(2),
        [literal, ..] if *literal == c => Step::Matched(1),
        _ => Step::Failed,
    }
}

fn in_class(class: &[char], c: char) -> bool {
    let (negated, class) = match class {
        ['^' | '!', rest @ ..] => (true, rest),
        class => (false, class),
    };
    let mut found = false;
    let mut at = 0;
    while at < class.len() {
        if class.get(at + 1) == Some(&'-') && at + 2 < class.len() {
            found |= (class[at]..=class[at + 2]).contains(&c);
            at += 3;
        } else {
            found |= class[at] == c;
            at += 1;
        }
    }
    found != negated
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_names() {
        for (pattern, name, expected) in [
            ("*.yaml", "a.yaml", true),
            ("*.yaml", "a.yml", false),
            ("a?c", "abc", true),
            ("[a-c]x", "bx", true),
            ("[^a-c]x", "bx", false),
            ("*", "", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b", "aXc", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
