//! An answer: a verdict, its causes, and next steps.

use std::fmt;

/// One answer. Causes may be answers themselves: a Deployment is stuck because its pods are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    verdict: String,
    causes: Vec<Cause>,
    next: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Cause {
    Text(String),
    Answer(Answer),
}

impl Answer {
    /// An answer in one sentence.
    pub fn new(verdict: impl Into<String>) -> Self {
        Self {
            verdict: verdict.into(),
            ..Self::default()
        }
    }

    /// Adds a cause.
    #[must_use]
    pub fn because(mut self, cause: impl Into<String>) -> Self {
        self.causes.push(Cause::Text(cause.into()));
        self
    }

    /// Adds causes.
    #[must_use]
    pub fn because_all(mut self, causes: impl IntoIterator<Item = String>) -> Self {
        self.causes.extend(causes.into_iter().map(Cause::Text));
        self
    }

    /// Adds an answer about something else as a cause.
    #[must_use]
    pub fn because_of(mut self, cause: Self) -> Self {
        self.causes.push(Cause::Answer(cause));
        self
    }

    /// Adds a next step for the user.
    #[must_use]
    pub fn next(mut self, step: impl Into<String>) -> Self {
        self.next.push(step.into());
        self
    }

    /// The first sentence.
    pub fn verdict(&self) -> &str {
        &self.verdict
    }

    fn write(&self, out: &mut fmt::Formatter<'_>, depth: usize) -> fmt::Result {
        let indent = "  ".repeat(depth);
        writeln!(out, "{indent}{}", visible(&self.verdict))?;
        for cause in &self.causes {
            match cause {
                Cause::Text(text) => {
                    let mut lines = text.lines();
                    let first = visible(lines.next().unwrap_or_default());
                    writeln!(out, "{indent}  {first}")?;
                    for line in lines {
                        writeln!(out, "{indent}    {}", visible(line))?;
                    }
                }
                Cause::Answer(answer) => answer.write(out, depth + 1)?,
            }
        }
        for step in &self.next {
            writeln!(out, "{indent}  -> {}", visible(step))?;
        }
        Ok(())
    }
}

/// Makes control characters visible: others write the messages in objects, and a terminal would
/// obey them.
fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\x1b' => shown.push_str("^["),
            c if c.is_control() && c != '\n' => shown.extend(c.escape_default()),
            c => shown.push(c),
        }
    }
    shown
}

impl fmt::Display for Answer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(out, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_sequences_in_messages_of_objects_do_not_reach_the_terminal() {
        let answer = Answer::new("pod/a\x1b[2J waits")
            .because("one\x1b]0;title\x07\ntwo\rthree\u{9b}31m")
            .next("kubectl\x1b[A");
        let expected = "pod/a^[[2J waits\n  one^[]0;title\\u{7}\n    two\\rthree\\u{9b}31m\n  -> kubectl^[[A\n";
        assert_eq!(answer.to_string(), expected);
    }

    #[test]
    fn causes_are_indented_below_their_result() {
        let pod = Answer::new("pod/a crashes").because("exit code 1\nlast line");
        let answer = Answer::new("deployment/a is stuck")
            .because_of(pod)
            .next("kubectl logs a");
        let expected = "deployment/a is stuck\n  pod/a crashes\n    exit code 1\n      last line\n  -> kubectl logs a\n";
        assert_eq!(answer.to_string(), expected);
    }
}
