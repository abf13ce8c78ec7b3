//! `-o custom-columns=NAME:.metadata.name,…`

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::{jsonpath::Template, table::Table};

/// Headings, each with the path of its cells.
#[derive(Debug, Clone)]
pub struct Columns(Vec<(String, Template)>);

impl Columns {
    /// Reads `HEADING:PATH,…`.
    pub fn parse(text: &str) -> Result<Self> {
        let column = |part: &str| {
            let (heading, path) = part
                .split_once(':')
                .with_context(|| format!("{part:?} is not HEADING:PATH"))?;
            let path = path.trim_start_matches('{').trim_end_matches('}');
            let dot = if path.starts_with('.') { "" } else { "." };
            Ok((
                heading.to_owned(),
                Template::parse(&format!("{{{dot}{path}}}"))?,
            ))
        };
        let columns = text.split(',').map(column).collect::<Result<Vec<_>>>()?;
        if columns.is_empty() {
            bail!("custom-columns format specified but no custom columns given");
        }
        Ok(Self(columns))
    }

    /// Prints an object or a list.
    pub fn print(&self, object: &Value) -> Result<()> {
        let mut rows = Vec::new();
        super::each(object, |object| {
            let cell = |(_, path): &(String, Template)| {
                let values = path.values(object);
                let texts: Vec<String> = values.iter().map(super::jsonpath::text).collect();
                if texts.is_empty() {
                    "<none>".to_owned()
                } else {
                    texts.join(",")
                }
            };
            rows.push(self.0.iter().map(cell).collect());
        });
        let headings = self.0.iter().map(|(heading, _)| heading.clone()).collect();
        print!("{}", Table { headings, rows }.render(false));
        Ok(())
    }
}
