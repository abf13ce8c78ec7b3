//! Compares the figures of two control planes.

use crate::measure::{Figure, Measure};

/// Prints a line for each figure that both have: the second one's divided by the first one's. Each of `first` has some of
/// the scenarios.
pub(crate) fn print(first: &[Measure], second: &Measure) {
    println!(
        "{:<40} {:>9} {:>9} {:>6} {:>10} {:>10}",
        "", "seconds", "beside", "times", "CPU s", "beside"
    );
    let others = second.figures();
    for figure in first.iter().flat_map(Measure::figures) {
        let Some(other) = others.iter().find(|other| other.what == figure.what) else {
            continue;
        };
        println!("{}", line(&figure, other));
    }
    let own = first.iter().map(Measure::peak).max().unwrap_or(0);
    let other = second.peak();
    let times = other as f64 / own.max(1) as f64;
    println!("memory at most: {own} MB, beside {other} MB, {times:.1} times");
}

fn line(figure: &Figure, other: &Figure) -> String {
    let times = other.seconds / figure.seconds.max(0.001);
    format!(
        "{:<40} {:>9.1} {:>9.1} {times:>6.1} {:>10.1} {:>10.1}",
        figure.what, figure.seconds, other.seconds, figure.cpu, other.cpu
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_ratio_of_the_times() {
        let figure = |seconds, cpu| Figure {
            what: "large".to_owned(),
            seconds,
            cpu,
        };
        let line = line(&figure(2.0, 1.5), &figure(50.0, 60.0));
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words, ["large", "2.0", "50.0", "25.0", "1.5", "60.0"]);
    }
}
