//! Random inputs for everything that parses client data. A target is a function over bytes; the
//! inputs are mutated seeds, reproducible by their number. `make test` runs some thousand inputs
//! per target, `make fuzz TARGET=yaml` runs one without end.

#![forbid(unsafe_code)]

mod dns;
pub mod mutate;
pub mod targets;

use mutate::{Dice, mutate};
use targets::Target;

/// The input of a number.
pub fn input(target: &Target, number: u64) -> Vec<u8> {
    let mut dice = Dice::new(number);
    let seed = target.seeds[dice.below(target.seeds.len())];
    let other = target.seeds[dice.below(target.seeds.len())];
    mutate(seed.as_bytes(), other.as_bytes(), &mut dice)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of inputs per target; the full suite takes long.
    fn rounds() -> u64 {
        match std::env::var_os("MAINSTAY_SOAK") {
            Some(_) => 200_000,
            None => 1_500,
        }
    }

    fn feed(name: &str) {
        let target = targets::ALL.iter().find(|t| t.name == name);
        let target = target.unwrap_or_else(|| panic!("no target {name}"));
        for seed in target.seeds {
            (target.run)(seed.as_bytes());
        }
        for number in 0..rounds() {
            let input = input(target, number);
            let run = || (target.run)(&input);
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
            assert!(
                ended.is_ok(),
                "{name} fell over input {number}: {:?}",
                String::from_utf8_lossy(&input)
            );
        }
    }

    macro_rules! feed {
        ($($name:ident),*) => {
            $(#[test]
            fn $name() {
                feed(stringify!($name));
            })*

            #[test]
            fn every_target_is_fed() {
                let names: Vec<&str> = targets::ALL.iter().map(|t| t.name).collect();
                assert_eq!(names, [$(stringify!($name)),*]);
            }
        };
    }

    feed!(
        selectors,
        quantities,
        json,
        yaml,
        protobuf,
        patches,
        apply,
        field_paths,
        kinds,
        dns_packets,
        corefiles
    );
}
