//! The text format of metrics.

use std::fmt::Write;

/// A page of metrics in the making.
#[derive(Default)]
pub struct Exposition {
    text: String,
}

impl Exposition {
    /// Begins a family.
    pub fn family(&mut self, name: &str, kind: &str, help: &str) -> &mut Self {
        let _ = writeln!(self.text, "# HELP {name} {help}");
        let _ = writeln!(self.text, "# TYPE {name} {kind}");
        self
    }

    /// A sample; `millis` is the time that it is of, if that is told.
    pub fn sample(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        value: f64,
        millis: Option<i64>,
    ) -> &mut Self {
        self.text.push_str(name);
        if !labels.is_empty() {
            self.text.push('{');
            for (index, (label, content)) in labels.iter().enumerate() {
                let comma = if index == 0 { "" } else { "," };
                let content = content
                    .replace('\\', "\\\\")
                    .replace('"', "\\\"")
                    .replace('\n', "\\n");
                let _ = write!(self.text, "{comma}{label}=\"{content}\"");
            }
            self.text.push('}');
        }
        let _ = write!(self.text, " {value}");
        if let Some(millis) = millis {
            let _ = write!(self.text, " {millis}");
        }
        self.text.push('\n');
        self
    }

    /// The page.
    pub fn finish(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        let mut page = Exposition::default();
        page.family("a", "gauge", "What.")
            .sample("a", &[("x", "q\"\\\n"), ("y", "")], 1.5, Some(7))
            .sample("a", &[], 2.0, None);
        assert_eq!(
            page.finish(),
            "# HELP a What.\n# TYPE a gauge\na{x=\"q\\\"\\\\\\n\",y=\"\"} 1.5 7\na 2\n"
        );
    }
}
