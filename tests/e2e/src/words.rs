//! Splits lines of lists of commands.

/// Splits words like a shell: by blanks, with quotes.
pub fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let (mut word, mut is_word, mut quote) = (String::new(), false, None);
    for c in line.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => (quote, is_word) = (Some(c), true),
            (None, ' ') => {
                if is_word {
                    words.push(std::mem::take(&mut word));
                }
                is_word = false;
            }
            (_, c) => {
                word.push(c);
                is_word = true;
            }
        }
    }
    if is_word {
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_are_split_as_by_a_shell() {
        assert_eq!(words("get  x -o 'a b' \"\""), ["get", "x", "-o", "a b", ""]);
        assert_eq!(words("a='b c'd"), ["a=b cd"]);
    }
}
