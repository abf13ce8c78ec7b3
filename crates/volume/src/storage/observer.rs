//! Reports the operations of the volume manager, under upstream's names.

use std::time::{Duration, Instant};

use super::{Key, Manager};

/// Receives the results of operations.
pub trait Observer: Send + Sync {
    /// An operation such as `volume_unmount` ended. CSI volumes have the driver in `plugin`.
    fn operation(&self, plugin: &str, name: &'static str, took: Duration, has_succeeded: bool);
    /// A volume of an earlier run was found; false if its record is missing.
    fn rebuilt(&self, has_succeeded: bool);
}

/// The plugin of a volume as metrics name it.
fn full_name(key: &Key) -> String {
    match key.volume.split_once('^') {
        Some((driver, _)) if key.plugin == "kubernetes.io/csi" => {
            format!("{}:{driver}", key.plugin)
        }
        _ => key.plugin.to_owned(),
    }
}

impl Manager {
    /// Reports operations from now on; only the first observer counts.
    pub fn observe(&self, observer: impl Observer + 'static) {
        let _ = self.observer.set(Box::new(observer));
    }

    pub(super) fn report(&self, key: &Key, name: &'static str, begun: Instant, ok: bool) {
        if let Some(observer) = self.observer.get() {
            observer.operation(&full_name(key), name, begun.elapsed(), ok);
        }
    }

    pub(super) fn report_rebuilt(&self, ok: bool) {
        if let Some(observer) = self.observer.get() {
            observer.rebuilt(ok);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_csi_volumes_have_a_driver() {
        for (plugin, volume, expected) in [
            ("kubernetes.io/csi", "x.io^vol", "kubernetes.io/csi:x.io"),
            ("kubernetes.io/nfs", "a^b", "kubernetes.io/nfs"),
            ("kubernetes.io/csi", "odd", "kubernetes.io/csi"),
        ] {
            let volume = volume.to_owned();
            assert_eq!(full_name(&Key { plugin, volume }), expected);
        }
    }
}
