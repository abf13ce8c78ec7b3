//! `-o custom-columns=NAME:.metadata.name,…` and `-o custom-columns-file=FILE`

use std::cell::RefCell;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::{gotemplate, jsonpath::Template, tabwriter::Tabwriter};

/// Headings with the paths of their cells.
#[derive(Debug, Clone)]
pub(crate) struct Columns {
    columns: Vec<(String, Template)>,
    /// Omits the headings.
    pub no_headers: bool,
    writer: RefCell<Tabwriter>,
}

impl Columns {
    /// Parses `HEADING:PATH,…`.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let column = |part: &str| -> Result<(String, Template)> {
            let Some((heading, path)) = part.split_once(':') else {
                bail!("unexpected custom-columns spec: {part}, expected <header>:<json-path-expr>");
            };
            Ok((heading.to_owned(), Template::relaxed(path)?))
        };
        Ok(Self::new(
            text.split(',').map(column).collect::<Result<_>>()?,
        ))
    }

    /// Parses two lines: headings, and the paths below them.
    pub(crate) fn parse_file(text: &str) -> Result<Self> {
        let mut lines = text.lines();
        let headings = lines.next().context("missing header line, and spec line")?;
        let paths = lines.next().context("missing spec line")?;
        let (headings, paths): (Vec<&str>, Vec<&str>) = (
            headings.split_whitespace().collect(),
            paths.split_whitespace().collect(),
        );
        if headings.len() != paths.len() {
            bail!(
                "number of headers ({}) and field specifications ({}) don't match",
                headings.len(),
                paths.len()
            );
        }
        let pair =
            |(heading, path): (&str, &str)| Ok((heading.to_owned(), Template::relaxed(path)?));
        Ok(Self::new(
            headings
                .into_iter()
                .zip(paths)
                .map(pair)
                .collect::<Result<_>>()?,
        ))
    }

    fn new(columns: Vec<(String, Template)>) -> Self {
        Self {
            columns,
            no_headers: false,
            writer: RefCell::new(Tabwriter::for_tables()),
        }
    }

    /// The lines of an object or a list, up to one that has an error.
    pub(crate) fn render(&self, object: &Value, is_first: bool) -> (String, Result<()>) {
        let (mut lines, mut failure) = (String::new(), Ok(()));
        let mut push = |cells: Vec<String>| {
            lines.push_str(&cells.join("\t"));
            lines.push('\n');
        };
        if is_first && !self.no_headers {
            push(
                self.columns
                    .iter()
                    .map(|(heading, _)| heading.clone())
                    .collect(),
            );
        }
        super::each(object, |object| {
            if failure.is_err() {
                return;
            }
            let cell = |(_, path): &(String, Template)| -> Result<String> {
                let values = path.try_values(object)?;
                let texts: Vec<String> = values.iter().map(cell_text).collect();
                Ok(match texts.is_empty() {
                    true => "<none>".to_owned(),
                    false => texts.join(","),
                })
            };
            let cells: Result<Vec<String>> = self.columns.iter().map(cell).collect();
            match cells {
                Ok(cells) => push(cells),
                Err(error) => failure = Err(error),
            }
        });
        (self.writer.borrow_mut().align(&lines), failure)
    }
}

fn cell_text(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        value => super::escape_terminal(&gotemplate::text_of(value)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn custom_columns_show_the_values_of_their_paths() {
        let list = json!({"items": [
            {"metadata": {"name": "a"}, "n": [1, 2], "m": {"x": 1}}, {"metadata": {"name": "longer"}}]});
        let columns = Columns::parse("NAME:.metadata.name,N:{.n[*]},M:m").unwrap();
        assert_eq!(
            columns.render(&list, true).0,
            "NAME     N        M\na        1,2      map[x:1]\nlonger   <none>   <none>\n"
        );
        let file = Columns::parse_file("NAME N\nmetadata.name .n\n").unwrap();
        assert_eq!(
            file.render(&list, false).0,
            "a        [1 2]\nlonger   <none>\n"
        );
        let empty = Columns::parse("A:,B:.metadata.name").unwrap();
        let first = &list["items"][0];
        assert_eq!(empty.render(first, false).0, "<none>   a\n");
        let (lines, failure) = Columns::parse("A:.n[7]").unwrap().render(&list, true);
        assert_eq!(lines, "A\n");
        assert!(failure.unwrap_err().to_string().contains("out of bounds"));
        assert!(Columns::parse("NAME").is_err());
        assert!(Columns::parse_file("A B\n.x").is_err());
    }
}
