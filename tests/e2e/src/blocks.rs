//! Command blocks of Markdown documents: indented ones, and fences without a language or with `sh`.
//! A comment before a block changes where it is run: `<!-- run alone -->` on a machine without a
//! cluster, `<!-- not run: WHY -->` nowhere.

/// A block of commands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The number of its first line.
    pub line: usize,
    pub commands: String,
    pub run: Run,
}

/// Where a block is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Run {
    /// On a cluster, after the blocks before it.
    WithPage,
    /// On a machine of its own, where no cluster runs yet.
    Alone,
    /// Nowhere, and why.
    Never(String),
}

/// The blocks of a document, in order.
pub fn blocks(text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut run: Option<Run> = None;
    let lines: Vec<&str> = text.lines().collect();
    let mut at = 0;
    while at < lines.len() {
        let line = lines[at];
        if let Some(comment) = line.strip_prefix("<!-- not run:") {
            let why = comment.trim_end_matches("-->").trim();
            run = Some(Run::Never(why.to_owned()));
            at += 1;
        } else if line == "<!-- run alone -->" {
            run = Some(Run::Alone);
            at += 1;
        } else if let Some(language) = line.trim_start().strip_prefix("```") {
            let end = lines[at + 1..]
                .iter()
                .position(|line| line.trim_start().starts_with("```"));
            let end = at + 1 + end.unwrap_or(lines.len() - at - 1);
            if ["", "sh"].contains(&language.trim()) {
                push(&mut blocks, at + 2, &lines[at + 1..end], run.take());
            }
            run = None;
            at = end + 1;
        } else if line.starts_with("    ") && is_blank_before(&lines, at) {
            let length = lines[at..]
                .iter()
                .take_while(|line| line.starts_with("    ") || line.trim().is_empty())
                .count();
            let body: Vec<&str> = lines[at..at + length]
                .iter()
                .map(|line| line.strip_prefix("    ").unwrap_or(""))
                .collect();
            push(&mut blocks, at + 1, &body, run.take());
            at += length;
        } else {
            if !line.trim().is_empty() {
                run = None;
            }
            at += 1;
        }
    }
    blocks
}

/// An indented line inside a paragraph or a list is not a block.
fn is_blank_before(lines: &[&str], at: usize) -> bool {
    at == 0 || lines[at - 1].trim().is_empty() || lines[at - 1].starts_with("<!--")
}

fn push(blocks: &mut Vec<Block>, line: usize, body: &[&str], run: Option<Run>) {
    blocks.push(Block {
        line,
        commands: format!("{}\n", body.join("\n").trim_end()),
        run: run.unwrap_or(Run::WithPage),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_and_other_text_is_not() {
        let text = "# A\n\n    kubectl get pods\n    kubectl get nodes\n\n    mainstay status\n\nwords\n\n\
                    ```yaml\nkind: Pod\n```\n\n```sh\nkubectl version\n```\n\n<!-- not run: needs a second machine -->\n\n    \
                    mainstay agent\n\n<!-- run alone -->\n\n    mainstay up\n\n- a list\n\n1. more\n    words\n";
        let found = blocks(text);
        let shown: Vec<(usize, &str, Run)> = found
            .iter()
            .map(|block| (block.line, &*block.commands, block.run.clone()))
            .collect();
        let expected = [
            (
                3,
                "kubectl get pods\nkubectl get nodes\n\nmainstay status\n",
                Run::WithPage,
            ),
            (15, "kubectl version\n", Run::WithPage),
            (
                20,
                "mainstay agent\n",
                Run::Never("needs a second machine".to_owned()),
            ),
            (24, "mainstay up\n", Run::Alone),
        ];
        assert_eq!(shown, expected);
    }
}
