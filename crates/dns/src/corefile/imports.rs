//! `import`: snippets of the Corefile, and other keys of its ConfigMap and of `coredns-custom`, which CoreDNS' pods have as
//! files.

use std::collections::BTreeMap;

use super::{
    KEY,
    syntax::{self, Line, SyntaxError},
};

/// The maximum number of lines after all imports: snippets can import others several times.
const MOST_LINES: usize = 10_000;
/// The maximum nesting of imports.
const DEEPEST: usize = 8;

/// Replaces every import by what it names, and removes snippets.
pub(super) fn expand(
    lines: Vec<Line>,
    files: &BTreeMap<String, String>,
) -> Result<Vec<Line>, SyntaxError> {
    let (snippets, lines): (Vec<Line>, Vec<Line>) = lines
        .into_iter()
        .partition(|line| snippet(line).is_some() && line.block.is_some());
    let named = snippets
        .iter()
        .filter_map(|line| Some((snippet(line)?, line.block.as_deref()?)));
    let mut imports = Imports {
        snippets: named.collect(),
        files,
        left: MOST_LINES,
    };
    imports.expand(&lines, 0)
}

/// The name in `(name)`.
fn snippet(line: &Line) -> Option<&str> {
    match line.words.as_slice() {
        [word] => word.strip_prefix('(')?.strip_suffix(')'),
        _ => None,
    }
}

struct Imports<'a> {
    snippets: BTreeMap<&'a str, &'a [Line]>,
    files: &'a BTreeMap<String, String>,
    /// How many lines may be added.
    left: usize,
}

impl Imports<'_> {
    fn expand(&mut self, lines: &[Line], depth: usize) -> Result<Vec<Line>, SyntaxError> {
        let mut all = Vec::new();
        for line in lines {
            let wrong = |message: String| SyntaxError {
                line: line.number,
                message,
            };
            self.left = self
                .left
                .checked_sub(1)
                .ok_or_else(|| wrong("imports have too many lines".to_owned()))?;
            match line.words.as_slice() {
                [word, from, ..] if word == "import" => {
                    if depth >= DEEPEST {
                        return Err(wrong("imports are nested too deeply".to_owned()));
                    }
                    let imported = self.find(from).map_err(wrong)?;
                    all.extend(self.expand(&imported, depth + 1)?);
                }
                [word] if word == "import" => {
                    return Err(wrong("import: expected a snippet or a file".to_owned()));
                }
                _ => {
                    let block = line.block.as_deref();
                    let block = block.map(|block| self.expand(block, depth)).transpose()?;
                    all.push(Line {
                        block,
                        ..line.clone()
                    });
                }
            }
        }
        Ok(all)
    }

    fn find(&self, from: &str) -> Result<Vec<Line>, String> {
        if let Some(snippet) = self.snippets.get(from) {
            return Ok(snippet.to_vec());
        }
        let pattern = from.rsplit('/').next().unwrap_or(from);
        let mut lines = Vec::new();
        let mut is_found = pattern.contains(['*', '?']);
        for (key, text) in self.files {
            if key != KEY && matches(pattern.as_bytes(), key.as_bytes()) {
                let parsed = syntax::parse(text);
                lines.extend(parsed.map_err(|error| format!("import {key}: {error}"))?);
                is_found = true;
            }
        }
        match is_found {
            true => Ok(lines),
            false => Err(format!(
                "import: {from} is no snippet, and the ConfigMap has no key {pattern:?}"
            )),
        }
    }
}

/// Whether a name matches a pattern with `*` and `?`.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    // The place to continue from if the current attempt fails: after the last star, one byte later.
    let (mut at, mut read, mut retry) = (0, 0, None);
    while read < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                retry = Some((at + 1, read));
                at += 1;
            }
            Some(byte) if *byte == b'?' || *byte == name[read] => {
                at += 1;
                read += 1;
            }
            _ => match retry {
                Some((after, from)) => {
                    retry = Some((after, from + 1));
                    (at, read) = (after, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_a_shell() {
        for (pattern, name, expected) in [
            ("*.server", "a.server", true),
            ("*.server", "a.override", false),
            ("*.server", ".server.server", true),
            ("*", "", true),
            ("a?c*", "abcd", true),
            ("a?c", "ac", false),
            ("*a*b*", "xxaxxb", true),
            ("*a*b", "xxaxxbx", false),
        ] {
            let found = matches(pattern.as_bytes(), name.as_bytes());
            assert_eq!(found, expected, "{pattern} {name}");
        }
    }

    #[test]
    fn imports_cannot_grow_without_bound() {
        let twice =
            |number: usize| format!("({number}) {{\n import {}\n import {0}\n}}\n", number + 1);
        let itself = "(a) {\n import a\n}\n. {\n import a\n}\n";
        let many: String = (0..7).map(twice).collect();
        let lines = "errors\n".repeat(200);
        let many = format!("{many}(7) {{\n {lines}}}\n. {{\n import 0\n}}\n");
        for text in [itself, &many] {
            let parsed = syntax::parse(text).unwrap();
            assert!(expand(parsed, &BTreeMap::new()).is_err(), "{text}");
        }
    }
}
