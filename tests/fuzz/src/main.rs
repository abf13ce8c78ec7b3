//! Feeds one target without end: `fuzz TARGET [FIRST [LAST]]`. A slow input is reported; one that
//! makes the target panic ends it, with its number.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::time::{Duration, Instant};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_default();
    let Some(target) = fuzz::targets::ALL.iter().find(|t| t.name == name) else {
        let names: Vec<&str> = fuzz::targets::ALL.iter().map(|t| t.name).collect();
        eprintln!("which target? {}", names.join(" "));
        std::process::exit(2);
    };
    let mut number = || arguments.next().and_then(|n| n.parse().ok());
    let (first, last) = (number().unwrap_or(0), number().unwrap_or(u64::MAX));
    for number in first..=last {
        let input = fuzz::input(target, number);
        let start = Instant::now();
        let run = || (target.run)(&input);
        if std::panic::catch_unwind(run).is_err() {
            eprintln!("input {number}: {:?}", String::from_utf8_lossy(&input));
            std::process::exit(1);
        }
        let took = start.elapsed();
        if took > Duration::from_millis(200) {
            println!("input {number} of {} bytes took {took:?}", input.len());
        }
        if number % 100_000 == 99_999 {
            println!("{} inputs", number + 1);
        }
    }
}
