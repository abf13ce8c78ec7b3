//! Eviction signals and the thresholds that a configuration sets on them. Pure.

use std::{collections::BTreeMap, fmt, time::Duration};

use machinery::quantity::Quantity;

use crate::configuration::GoDuration;

/// An eviction signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    /// On the whole node.
    MemoryAvailable,
    /// Within node allocatable, which all pods share.
    AllocatableMemoryAvailable,
    NodeFsAvailable,
    NodeFsInodesFree,
    ImageFsAvailable,
    ImageFsInodesFree,
    ContainerFsAvailable,
    ContainerFsInodesFree,
    PidAvailable,
}

/// The resource that is short, as the API and messages name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    Memory,
    EphemeralStorage,
    Inodes,
    Pids,
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "memory",
            Self::EphemeralStorage => "ephemeral-storage",
            Self::Inodes => "inodes",
            Self::Pids => "pids",
        })
    }
}

impl Signal {
    /// The signals that a configuration may name.
    pub const ALL: &'static [Self] = &[
        Self::MemoryAvailable,
        Self::NodeFsAvailable,
        Self::NodeFsInodesFree,
        Self::ImageFsAvailable,
        Self::ImageFsInodesFree,
        Self::ContainerFsAvailable,
        Self::ContainerFsInodesFree,
        Self::PidAvailable,
    ];

    /// Its name in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::MemoryAvailable => "memory.available",
            Self::AllocatableMemoryAvailable => "allocatableMemory.available",
            Self::NodeFsAvailable => "nodefs.available",
            Self::NodeFsInodesFree => "nodefs.inodesFree",
            Self::ImageFsAvailable => "imagefs.available",
            Self::ImageFsInodesFree => "imagefs.inodesFree",
            Self::ContainerFsAvailable => "containerfs.available",
            Self::ContainerFsInodesFree => "containerfs.inodesFree",
            Self::PidAvailable => "pid.available",
        }
    }

    /// The node condition of a shortage.
    pub fn condition(self) -> &'static str {
        match self {
            Self::MemoryAvailable | Self::AllocatableMemoryAvailable => "MemoryPressure",
            Self::PidAvailable => "PIDPressure",
            _ => "DiskPressure",
        }
    }

    /// The resource that is short.
    pub fn resource(self) -> Resource {
        match self {
            Self::MemoryAvailable | Self::AllocatableMemoryAvailable => Resource::Memory,
            Self::NodeFsAvailable | Self::ImageFsAvailable | Self::ContainerFsAvailable => {
                Resource::EphemeralStorage
            }
            Self::NodeFsInodesFree | Self::ImageFsInodesFree | Self::ContainerFsInodesFree => {
                Resource::Inodes
            }
            Self::PidAvailable => Resource::Pids,
        }
    }
}

/// An absolute amount, or a fraction of the capacity.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Amount {
    Quantity(i64),
    /// Between 0 and 1.
    Share(f64),
}

impl Amount {
    /// The amount in the signal's unit.
    pub fn resolve(self, capacity: i64) -> i64 {
        match self {
            Self::Quantity(amount) => amount,
            Self::Share(share) => (capacity as f64 * share) as i64,
        }
    }
}

/// An eviction threshold: met when less than `value` is available.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Threshold {
    pub signal: Signal,
    pub value: Amount,
    /// How long the shortage must last; zero: a hard threshold.
    pub grace: Duration,
    /// How much more than the threshold must be reclaimed.
    pub min_reclaim: Amount,
}

impl Threshold {
    /// Whether pods are evicted at once.
    pub fn is_hard(&self) -> bool {
        self.grace.is_zero()
    }
}

type Statements = BTreeMap<String, String>;

/// Parses thresholds as upstream does. The hard memory threshold also applies to node allocatable.
pub fn parse(
    hard: &Statements,
    soft: &Statements,
    grace: &Statements,
    reclaim: &Statements,
) -> Result<Vec<Threshold>, String> {
    if let Some(signal) = soft.keys().find(|signal| !grace.contains_key(*signal)) {
        return Err(format!(
            "evictionSoft[{signal}]: a grace period must be specified in evictionSoftGracePeriod"
        ));
    }
    for (field, list) in [
        ("evictionSoftGracePeriod", grace),
        ("evictionMinimumReclaim", reclaim),
    ] {
        for name in list.keys() {
            find(name).map_err(|why| format!("{field}: {why}"))?;
        }
    }
    let mut found = Vec::new();
    for (field, list) in [("evictionHard", hard), ("evictionSoft", soft)] {
        for (name, text) in list {
            let at = |why: String| format!("{field}[{name}]: {why}");
            let signal = find(name).map_err(at)?;
            let Some(value) = amount(text).map_err(at)? else {
                continue;
            };
            let grace = match (field, grace.get(name)) {
                ("evictionSoft", Some(text)) => text.parse::<GoDuration>().map_err(at)?.0,
                _ => Duration::ZERO,
            };
            if field == "evictionSoft" && grace.is_zero() {
                return Err(at("the grace period must be positive".into()));
            }
            let min_reclaim = reclaim.get(name).map(|text| amount(text)).transpose();
            let min_reclaim =
                min_reclaim.map_err(|why| format!("evictionMinimumReclaim: {why}"))?;
            found.push(Threshold {
                signal,
                value,
                grace,
                min_reclaim: min_reclaim.flatten().unwrap_or(Amount::Quantity(0)),
            });
        }
    }
    let of_pods = found
        .iter()
        .find(|t| t.signal == Signal::MemoryAvailable && t.is_hard());
    if let Some(threshold) = of_pods.copied() {
        found.push(Threshold {
            signal: Signal::AllocatableMemoryAvailable,
            ..threshold
        });
    }
    Ok(found)
}

fn find(name: &str) -> Result<Signal, String> {
    let known = Signal::ALL.iter().find(|signal| signal.name() == name);
    known
        .copied()
        .ok_or_else(|| format!("unsupported eviction signal {name}"))
}

/// `None` for 0, 0% and 100%, which disable a threshold.
fn amount(text: &str) -> Result<Option<Amount>, String> {
    if let Some(percent) = text.strip_suffix('%') {
        let share: f64 = percent
            .parse()
            .map_err(|_| format!("{text:?} is not a percentage"))?;
        return match share {
            0.0 | 100.0 => Ok(None),
            share if (0.0..100.0).contains(&share) => Ok(Some(Amount::Share(share / 100.0))),
            _ => Err(format!("{text} is not between 0% and 100%")),
        };
    }
    let quantity: Quantity = text
        .parse()
        .map_err(|_| format!("{text:?} is not a quantity"))?;
    if quantity.is_negative() {
        return Err(format!("{text} is negative"));
    }
    Ok((!quantity.is_zero()).then(|| Amount::Quantity(quantity.value())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(pairs: &[(&str, &str)]) -> Statements {
        let pairs = pairs.iter();
        pairs
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn thresholds_are_read_as_upstream_does() {
        let hard = list(&[
            ("memory.available", "100Mi"),
            ("nodefs.available", "10%"),
            ("pid.available", "0%"),
        ]);
        let soft = list(&[("nodefs.available", "20%")]);
        let grace = list(&[("nodefs.available", "1m30s")]);
        let reclaim = list(&[("nodefs.available", "1Gi")]);
        let all = parse(&hard, &soft, &grace, &reclaim).unwrap();
        let shown: Vec<_> = all.iter().map(|t| (t.signal, t.is_hard())).collect();
        assert_eq!(
            shown,
            [
                (Signal::MemoryAvailable, true),
                (Signal::NodeFsAvailable, true),
                (Signal::NodeFsAvailable, false),
                (Signal::AllocatableMemoryAvailable, true),
            ]
        );
        assert_eq!(all[0].value.resolve(0), 100 * 1024 * 1024);
        assert_eq!(all[1].value.resolve(1000), 100);
        assert_eq!(all[2].grace, Duration::from_secs(90));
        assert_eq!(all[2].min_reclaim.resolve(0), 1 << 30);
    }

    #[test]
    fn invalid_thresholds_are_refused() {
        let none = Statements::new();
        for (hard, soft) in [
            (list(&[("memory", "1Gi")]), none.clone()),
            (list(&[("memory.available", "-1")]), none.clone()),
            (list(&[("memory.available", "101%")]), none.clone()),
            (list(&[("memory.available", "x")]), none.clone()),
            (none.clone(), list(&[("memory.available", "1Gi")])),
            (
                list(&[("allocatableMemory.available", "1Gi")]),
                none.clone(),
            ),
        ] {
            assert!(
                parse(&hard, &soft, &none, &none).is_err(),
                "{hard:?} {soft:?}"
            );
        }
    }
}
