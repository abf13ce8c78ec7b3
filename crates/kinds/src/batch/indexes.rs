//! Indexes of an Indexed Job as text: `0,2-4`.

use machinery::text::quote;

/// One interval, `3` or `2-4`, within the number of completions.
fn interval(part: &str, completions: i64) -> Result<(i64, i64), String> {
    let ends: Vec<&str> = part.split('-').collect();
    if ends.len() > 2 {
        return Err(format!(
            "the fragment {} violates the requirement that an index interval can have at most two parts separated by '-'",
            quote(part)
        ));
    }
    let number = |end: &str| -> Result<i64, String> {
        let sound = |n: i64| (n < completions).then_some(n);
        let parsed: i64 = end
            .parse()
            .map_err(|_| format!("cannot convert string to integer for index: {}", quote(end)))?;
        sound(parsed).ok_or_else(|| format!("too large index: {}", quote(end)))
    };
    let first = number(ends[0])?;
    match ends.get(1) {
        None => Ok((first, first)),
        Some(end) => {
            let last = number(end)?;
            if first >= last {
                return Err(disorder(first, last));
            }
            Ok((first, last))
        }
    }
}

fn disorder(previous: i64, current: i64) -> String {
    format!("non-increasing order, previous: {previous}, current: {current}")
}

/// How many indexes the text names; they must be in ascending order.
pub(super) fn count(text: &str, completions: i64) -> Result<i64, String> {
    if text.is_empty() {
        return Ok(0);
    }
    let mut total = 0;
    let mut previous: Option<i64> = None;
    for part in text.split(',') {
        let (first, last) = interval(part, completions)?;
        if let Some(previous) = previous.filter(|p| *p >= first) {
            return Err(disorder(previous, first));
        }
        total += last - first + 1;
        previous = Some(last);
    }
    Ok(total)
}

/// An index in both lists; invalid parts are ignored.
pub(super) fn overlap(completed: &str, failed: &str, completions: i64) -> Option<i64> {
    let parts = |text: &str| -> Vec<(i64, i64)> {
        let parts = text
            .split(',')
            .filter_map(|p| interval(p, completions).ok());
        parts.collect()
    };
    let (completed, failed) = (parts(completed), parts(failed));
    let (mut c, mut f) = (0, 0);
    while let (Some(&(c_first, c_last)), Some(&(f_first, f_last))) =
        (completed.get(c), failed.get(f))
    {
        if c_first <= f_last && f_first <= c_last {
            return Some(c_first.max(f_first));
        }
        if c_first <= f_first {
            c += 1;
        } else {
            f += 1;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_are_counted_or_refused() {
        assert_eq!(count("", 3), Ok(0));
        assert_eq!(count("0,2-4", 5), Ok(4));
        for (bad, why) in [
            ("5", "too large index: \"5\""),
            ("a", "cannot convert string to integer for index: \"a\""),
            ("2,1", "non-increasing order, previous: 2, current: 1"),
            ("3-2", "non-increasing order, previous: 3, current: 2"),
            (
                "1-2-3",
                "the fragment \"1-2-3\" violates the requirement that an index interval can have at most two parts separated by '-'",
            ),
        ] {
            assert_eq!(count(bad, 5), Err(why.to_owned()), "{bad}");
        }
    }

    #[test]
    fn an_index_is_either_completed_or_failed() {
        assert_eq!(overlap("0,2-4", "1,3", 5), Some(3));
        assert_eq!(overlap("0,2-4", "1", 5), None);
        assert_eq!(overlap("x,1", "1", 5), Some(1));
    }
}
