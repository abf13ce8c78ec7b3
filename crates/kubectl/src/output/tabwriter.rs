//! Elastic tabs: tab-terminated cells of adjacent lines form columns as wide as their widest cell.

/// Aligns lines of tab-separated cells.
#[derive(Debug, Clone)]
pub(crate) struct Tabwriter {
    /// The minimum width of a column, including padding.
    pub min_width: usize,
    /// Spaces after the widest cell.
    pub padding: usize,
    /// Widths of earlier columns; later lines are never narrower.
    pub widths: Option<Vec<usize>>,
}

impl Tabwriter {
    /// For tables of objects: later rows are aligned with the printed ones.
    pub(crate) fn for_tables() -> Self {
        Self {
            min_width: 6,
            padding: 3,
            widths: Some(Vec::new()),
        }
    }

    /// For descriptions.
    pub(crate) fn for_descriptions() -> Self {
        Self {
            min_width: 0,
            padding: 2,
            widths: None,
        }
    }

    /// The aligned text.
    pub(crate) fn align(&mut self, text: &str) -> String {
        let lines: Vec<Vec<&str>> = text
            .split('\n')
            .map(|line| line.split('\t').collect())
            .collect();
        let mut out = String::with_capacity(text.len() * 2);
        self.block(&lines, &mut Vec::new(), &mut out);
        // The text after the last line break is a separate line.
        out.pop();
        out
    }

    fn block(&mut self, lines: &[Vec<&str>], widths: &mut Vec<usize>, out: &mut String) {
        let column = widths.len();
        let has_cell = |line: &Vec<&str>| column + 1 < line.len();
        let mut written = 0;
        let mut at = 0;
        while at < lines.len() {
            if !has_cell(&lines[at]) {
                at += 1;
                continue;
            }
            write(&lines[written..at], widths, out);
            let end = at + lines[at..].iter().take_while(|line| has_cell(line)).count();
            let cells = lines[at..end]
                .iter()
                .map(|line| line[column].chars().count() + self.padding);
            let mut width = cells.max().unwrap_or(0).max(self.min_width);
            if let Some(seen) = &mut self.widths {
                match seen.get_mut(column) {
                    Some(seen) => {
                        width = width.max(*seen);
                        *seen = width;
                    }
                    None => seen.push(width),
                }
            }
            widths.push(width);
            self.block(&lines[at..end], widths, out);
            widths.pop();
            written = end;
            at = end;
        }
        write(&lines[written..], widths, out);
    }
}

fn write(lines: &[Vec<&str>], widths: &[usize], out: &mut String) {
    for line in lines {
        for (at, cell) in line.iter().enumerate() {
            out.push_str(cell);
            if let Some(width) = widths.get(at)
                && at + 1 < line.len()
            {
                let used = cell.chars().count();
                (used..*width).for_each(|_| out.push(' '));
            }
        }
        out.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_end_where_a_line_has_no_cell_for_them() {
        let mut writer = Tabwriter::for_descriptions();
        assert_eq!(
            writer.align("Name:\ta\nLabels:\tx=y\n\tz=w\nplain\nVery long:\tb\n"),
            "Name:    a\nLabels:  x=y\n         z=w\nplain\nVery long:  b\n"
        );
    }

    #[test]
    fn tables_remember_their_widths() {
        let mut writer = Tabwriter::for_tables();
        assert_eq!(
            writer.align("NAME\tREADY\nlonger-name\t1/1\n"),
            "NAME          READY\nlonger-name   1/1\n"
        );
        assert_eq!(writer.align("a\t0/1\n"), "a             0/1\n");
    }
}
