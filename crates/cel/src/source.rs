//! The text of an expression, and errors with positions in it.

use std::fmt;

/// The text of an expression by characters.
#[derive(Debug, Clone)]
pub struct Source {
    text: String,
    /// Offset in characters of the first character of each line.
    lines: Vec<u32>,
}

/// An error at a position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issue {
    /// Offset in characters.
    pub offset: u32,
    pub message: String,
}

/// All errors of an expression, printed with their lines.
#[derive(Debug, Clone)]
pub struct Issues {
    source: Source,
    pub issues: Vec<Issue>,
}

/// The maximum number of printed errors.
const PRINTED: usize = 100;
/// Longer lines are not shown in messages.
const LONGEST_LINE: usize = 16384;

impl Source {
    pub fn new(text: &str) -> Self {
        let newlines = text.chars().enumerate().filter(|(_, c)| *c == '\n');
        let starts = newlines.map(|(at, _)| at as u32 + 1);
        Self {
            text: text.to_owned(),
            lines: std::iter::once(0).chain(starts).collect(),
        }
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// Line (from 1) and column (from 0) of an offset.
    fn position(&self, offset: u32) -> (usize, usize) {
        let line = self.lines.partition_point(|start| *start <= offset);
        (line, (offset - self.lines[line - 1]) as usize)
    }

    /// The error as upstream prints it: position, message, the line and a marker below it.
    fn display(&self, issue: &Issue) -> String {
        if self.text.is_empty() {
            return format!("ERROR: <input>:1:0: {}", issue.message);
        }
        let (line, column) = self.position(issue.offset);
        let mut text = format!("ERROR: <input>:{line}:{}: {}", column + 1, issue.message);
        let Some(snippet) = self.text.split('\n').nth(line - 1) else {
            return text;
        };
        if snippet.len() > LONGEST_LINE {
            return text;
        }
        let snippet = snippet.replace('\t', " ");
        let wide = |c: char| c.len_utf8() > 1;
        let mut characters = snippet.chars();
        let dots: String = characters
            .by_ref()
            .take(column)
            .map(|c| if wide(c) { '\u{ff0e}' } else { '.' })
            .collect();
        let mark = match characters.next() {
            Some(c) if wide(c) => '\u{ff3e}',
            _ => '^',
        };
        text.push_str(&format!("\n | {snippet}\n | {dots}{mark}"));
        text
    }
}

impl Issues {
    pub fn new(source: Source, mut issues: Vec<Issue>) -> Self {
        issues.sort_by_key(|issue| issue.offset);
        Self { source, issues }
    }
}

impl fmt::Display for Issues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, issue) in self.issues.iter().take(PRINTED).enumerate() {
            let separator = if number == 0 { "" } else { "\n" };
            write!(f, "{separator}{}", self.source.display(issue))?;
        }
        match self.issues.len().checked_sub(PRINTED) {
            None | Some(0) => Ok(()),
            Some(more) => write!(f, "\n{more} more errors were truncated"),
        }
    }
}

impl std::error::Error for Issues {}
