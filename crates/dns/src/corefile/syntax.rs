//! The syntax of a Corefile: words, blocks in braces, comments. Knows no directive.

/// A syntax error with its line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Corefile:{line}: {message}")]
pub struct SyntaxError {
    /// The line, from one.
    pub line: usize,
    /// What is wrong with it.
    pub message: String,
}

/// A line, and its block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Its number, from one.
    pub number: usize,
    /// Its words; never empty.
    pub words: Vec<String>,
    /// The lines in its braces.
    pub block: Option<Vec<Line>>,
}

/// The maximum nesting of blocks: `rewrite` and `hosts` in a server are at level two.
const DEEPEST: usize = 4;

/// Splits a text into lines with their blocks.
pub fn parse(text: &str) -> Result<Vec<Line>, SyntaxError> {
    let mut open: Vec<Vec<Line>> = vec![Vec::new()];
    for (index, text) in text.lines().enumerate() {
        let number = index + 1;
        let wrong = |message: &str| SyntaxError {
            line: number,
            message: message.to_owned(),
        };
        let mut words = split_words(text).map_err(|message| wrong(&message))?;
        if words.first().is_some_and(|word| word == "}") {
            let block = open.pop().unwrap_or_default();
            let opener = open.last_mut().and_then(|lines| lines.last_mut());
            let opener = opener.ok_or_else(|| wrong("a } without its {"))?;
            opener.block = Some(block);
            if words.len() > 1 {
                return Err(wrong("nothing may follow a }"));
            }
            continue;
        }
        let opens = words.last().is_some_and(|word| word == "{");
        if opens {
            words.pop();
        }
        if words.is_empty() {
            if opens {
                return Err(wrong("a { without a name before it"));
            }
            continue;
        }
        if words.iter().any(|word| word == "{" || word == "}") {
            return Err(wrong("a brace in the middle of a line"));
        }
        if let Some(lines) = open.last_mut() {
            lines.push(Line {
                number,
                words,
                block: None,
            });
        }
        if opens {
            if open.len() > DEEPEST {
                return Err(wrong("blocks are nested too deeply"));
            }
            open.push(Vec::new());
        }
    }
    match open.as_slice() {
        [lines] => Ok(lines.clone()),
        _ => Err(SyntaxError {
            line: text.lines().count(),
            message: "a { without its }".to_owned(),
        }),
    }
}

/// The words of a line: `#` at the start of a word begins a comment, double quotes keep spaces.
fn split_words(line: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut letters = line.chars().peekable();
    while let Some(letter) = letters.next() {
        if letter.is_whitespace() {
            continue;
        }
        if letter == '#' {
            break;
        }
        let mut word = String::new();
        if letter == '"' {
            loop {
                match letters.next() {
                    Some('"') => break,
                    Some('\\') if letters.peek() == Some(&'"') => word.extend(letters.next()),
                    Some(letter) => word.push(letter),
                    None => return Err("unterminated quote".to_owned()),
                }
            }
        } else {
            word.push(letter);
            while let Some(letter) = letters.next_if(|letter| !letter.is_whitespace()) {
                word.push(letter);
            }
        }
        words.push(word);
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(lines: &[Line]) -> String {
        let lines = lines.iter().map(|line| {
            let block = line.block.as_ref().map(|block| shown(block));
            let block = block.map(|block| format!("{{{block}}}"));
            format!("{}{}", line.words.join("·"), block.unwrap_or_default())
        });
        lines.collect::<Vec<_>>().join("|")
    }

    #[test]
    fn lines_have_words_and_blocks() {
        let text = "# all of it\n.:53 a.b {\n  errors # why\n  hosts {\n\t192.0.2.1 a\n }\n cache 30\n}\nx {\n}\n";
        let lines = parse(text).unwrap();
        assert_eq!(
            shown(&lines),
            ".:53·a.b{errors|hosts{192.0.2.1·a}|cache·30}|x{}"
        );
        assert_eq!(lines[1].number, 9);
    }

    #[test]
    fn quotes_keep_spaces_and_quotes() {
        let lines = parse(r#"log "a \"b\" # c" d#e"#).unwrap();
        assert_eq!(lines[0].words, ["log", r#"a "b" # c"#, "d#e"]);
    }

    #[test]
    fn unterminated_blocks_and_quotes_are_refused_with_their_line() {
        for (text, line) in [
            ("a {\n", 1),
            ("}\n", 1),
            ("a {\n} b\n", 2),
            ("a\n{\n}\n", 2),
            ("a { b }\n", 1),
            ("\n\"a\n", 2),
            ("a {\na {\na {\na {\na {\na {\n}}}}}}", 5),
        ] {
            assert_eq!(parse(text).unwrap_err().line, line, "{text:?}");
        }
    }
}
