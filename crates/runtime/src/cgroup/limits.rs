//! Changing the limits of a running container.

use std::{fs, io, path::Path};

use cri::v1::LinuxContainerResources;

use super::Cgroup;

impl Cgroup {
    /// Writes every limit that is set; zero and empty mean "leave as it is", as in the protocol.
    pub fn update(&self, resources: &LinuxContainerResources) -> io::Result<()> {
        if self.hierarchies.is_unified() {
            self.update_unified(resources)
        } else {
            self.update_split(resources)
        }
    }

    fn update_split(&self, r: &LinuxContainerResources) -> io::Result<()> {
        if let Some(dir) = self.dir("cpu") {
            set(&dir, "cpu.shares", r.cpu_shares)?;
            set(&dir, "cpu.cfs_period_us", r.cpu_period)?;
            set(&dir, "cpu.cfs_quota_us", r.cpu_quota)?;
        }
        if let Some(dir) = self.dir("memory") {
            // The kernel refuses a limit of memory above the one of memory and swap: when growing,
            // the outer one goes first.
            let swap = dir.join("memory.memsw.limit_in_bytes").exists();
            let inner = set(&dir, "memory.limit_in_bytes", r.memory_limit_in_bytes);
            if swap {
                set(
                    &dir,
                    "memory.memsw.limit_in_bytes",
                    r.memory_swap_limit_in_bytes,
                )?;
            }
            if inner.is_err() {
                set(&dir, "memory.limit_in_bytes", r.memory_limit_in_bytes)?;
            }
        }
        if let Some(dir) = self.dir("cpuset") {
            set_text(&dir, "cpuset.cpus", &r.cpuset_cpus)?;
            set_text(&dir, "cpuset.mems", &r.cpuset_mems)?;
        }
        Ok(())
    }

    fn update_unified(&self, r: &LinuxContainerResources) -> io::Result<()> {
        let Some(dir) = self.dir("") else {
            return Ok(());
        };
        if r.cpu_shares > 0 {
            set(&dir, "cpu.weight", weight(r.cpu_shares))?;
        }
        if r.cpu_quota != 0 || r.cpu_period != 0 {
            let period = if r.cpu_period == 0 {
                100_000
            } else {
                r.cpu_period
            };
            let quota = if r.cpu_quota <= 0 {
                "max".to_owned()
            } else {
                r.cpu_quota.to_string()
            };
            set_text(&dir, "cpu.max", &format!("{quota} {period}"))?;
        }
        if r.memory_limit_in_bytes != 0 {
            set_text(&dir, "memory.max", &limit(r.memory_limit_in_bytes))?;
        }
        if r.memory_swap_limit_in_bytes != 0 && dir.join("memory.swap.max").exists() {
            let swap = (r.memory_swap_limit_in_bytes - r.memory_limit_in_bytes).max(0);
            set_text(&dir, "memory.swap.max", &swap.to_string())?;
        }
        set_text(&dir, "cpuset.cpus", &r.cpuset_cpus)?;
        set_text(&dir, "cpuset.mems", &r.cpuset_mems)?;
        for (file, value) in &r.unified {
            if file.contains('/') {
                return Err(io::Error::other(format!("{file:?} is not a cgroup file")));
            }
            set_text(&dir, file, value)?;
        }
        Ok(())
    }
}

fn limit(bytes: i64) -> String {
    if bytes < 0 {
        "max".to_owned()
    } else {
        bytes.to_string()
    }
}

/// Version 2's weight (1 to 10000) for version 1's shares (2 to 262144).
pub(super) fn weight(shares: i64) -> i64 {
    1 + ((shares.clamp(2, 262_144) - 2) * 9999) / 262_142
}

fn set(dir: &Path, file: &str, value: i64) -> io::Result<()> {
    if value == 0 {
        Ok(())
    } else {
        set_text(dir, file, &value.to_string())
    }
}

fn set_text(dir: &Path, file: &str, value: &str) -> io::Result<()> {
    if value.is_empty() {
        return Ok(());
    }
    let path = dir.join(file);
    fs::write(&path, value)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    #[test]
    fn shares_become_weights_over_the_whole_range() {
        assert_eq!(super::weight(2), 1);
        assert_eq!(super::weight(1024), 39);
        assert_eq!(super::weight(262_144), 10_000);
        assert_eq!(super::weight(1 << 40), 10_000);
    }
}
