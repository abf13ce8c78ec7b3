//! Pressure stall information (PSI): how long processes waited for cpu, memory or I/O. Of v2
//! cgroups, and of the whole machine.

use std::{fs, path::Path};

use crate::Cgroup;

/// The pressure of one resource.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Pressure {
    /// Some process stalled.
    pub some: Stalled,
    /// All processes stalled.
    pub full: Stalled,
}

/// The total in microseconds, and averages in percent over the last 10, 60 and 300 seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Stalled {
    pub total: u64,
    pub avg10: f64,
    pub avg60: f64,
    pub avg300: f64,
}

/// A resource with PSI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PressureResource {
    Cpu,
    Memory,
    Io,
}

impl PressureResource {
    const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Io => "io",
        }
    }
}

impl Pressure {
    /// The pressure of the whole machine.
    pub fn of_machine(waited: PressureResource) -> Option<Self> {
        Self::read(&Path::new("/proc/pressure").join(waited.name()))
    }

    fn read(file: &Path) -> Option<Self> {
        Self::parse(&fs::read_to_string(file).ok()?)
    }

    /// Parses lines such as `some avg10=0.12 avg60=0.00 avg300=0.00 total=1234`. Kernels before
    /// 5.13 have no `full` for cpu.
    fn parse(text: &str) -> Option<Self> {
        let line = |kind: &str| {
            let mut lines = text.lines();
            let words = lines.find_map(|line| line.strip_prefix(kind)?.strip_prefix(' '))?;
            let field = |name: &str| {
                let mut words = words.split_whitespace();
                words.find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
            };
            let share = |name: &str| field(name)?.parse().ok();
            Some(Stalled {
                total: field("total")?.parse().ok()?,
                avg10: share("avg10")?,
                avg60: share("avg60")?,
                avg300: share("avg300")?,
            })
        };
        Some(Self {
            some: line("some")?,
            full: line("full").unwrap_or_default(),
        })
    }
}

impl Cgroup {
    /// `None` on v1, or if the kernel has no PSI.
    pub fn pressure(&self, waited: PressureResource) -> Option<Pressure> {
        if !self.hierarchies.is_unified() {
            return None;
        }
        Pressure::read(&self.dir("")?.join(format!("{}.pressure", waited.name())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_lines_are_understood() {
        let text = "some avg10=0.12 avg60=3.00 avg300=0.01 total=1234\n\
                    full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        let read = Pressure::parse(text).unwrap();
        assert_eq!((read.some.total, read.full.total), (1234, 7));
        assert_eq!((read.some.avg10, read.some.avg60), (0.12, 3.0));
        let old = Pressure::parse("some avg10=0 avg60=0 avg300=0 total=5\n").unwrap();
        assert_eq!((old.some.total, old.full), (5, Stalled::default()));
        for broken in [
            "",
            "full avg10=0 avg60=0 avg300=0 total=5\n",
            "some avg10=x total=5\n",
        ] {
            assert_eq!(Pressure::parse(broken), None, "{broken}");
        }
    }
}
