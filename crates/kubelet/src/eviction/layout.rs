//! On which file systems pods and images are: which usage counts for the rank of a pod, and what the node can free by
//! itself, depend on it. Pure.

use super::thresholds::Signal;

/// Which of the file systems are separate ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Layout {
    /// There is only one.
    #[default]
    Single,
    /// Images and the writable layers of containers have their own.
    Images,
    /// Images have their own, without the writable layers of containers.
    Split,
}

/// The usage of a pod that counts on one file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    All,
    /// Logs and local volumes.
    WithoutLayers,
    /// The writable layers of its containers.
    Layers,
    Nothing,
}

/// What is freed before a pod is evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reclaimed {
    pub containers: bool,
    pub images: bool,
}

impl Layout {
    /// From the devices of the node's, the images' and the containers' file system. Unknown ones are not separate.
    pub fn from_devices(node: Option<u64>, images: Option<u64>, containers: Option<u64>) -> Self {
        let differ = |one: Option<u64>, other: Option<u64>| {
            one.zip(other).is_some_and(|(one, other)| one != other)
        };
        if differ(images, containers) {
            Self::Split
        } else if differ(images, node) {
            Self::Images
        } else {
            Self::Single
        }
    }

    /// The usage that counts when this signal is short of disk space or inodes.
    pub fn counted(self, signal: Signal) -> Counted {
        use Signal::{ImageFsAvailable, ImageFsInodesFree, NodeFsAvailable, NodeFsInodesFree};
        match (self, signal) {
            (Self::Single, _) => Counted::All,
            (Self::Images, NodeFsAvailable | NodeFsInodesFree) => Counted::WithoutLayers,
            (Self::Images, _) => Counted::Layers,
            (Self::Split, ImageFsAvailable | ImageFsInodesFree) => Counted::Nothing,
            (Self::Split, _) => Counted::All,
        }
    }

    /// What the node frees by itself when this signal is short.
    pub fn reclaimed(self, signal: Signal) -> Reclaimed {
        let (containers, images) = match (self, self.counted(signal)) {
            (Self::Single, _) | (Self::Images, Counted::Layers) => (true, true),
            (Self::Images, _) => (false, false),
            (Self::Split, Counted::Nothing) => (false, true),
            (Self::Split, _) => (true, false),
        };
        Reclaimed { containers, images }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_counts_and_what_is_freed_follow_the_file_systems() {
        use Signal::{ContainerFsAvailable, ImageFsInodesFree, NodeFsAvailable};
        let cases = [
            (
                (1, 1, 1),
                [
                    (NodeFsAvailable, Counted::All, (true, true)),
                    (ImageFsInodesFree, Counted::All, (true, true)),
                    (ContainerFsAvailable, Counted::All, (true, true)),
                ],
            ),
            (
                (1, 2, 2),
                [
                    (NodeFsAvailable, Counted::WithoutLayers, (false, false)),
                    (ImageFsInodesFree, Counted::Layers, (true, true)),
                    (ContainerFsAvailable, Counted::Layers, (true, true)),
                ],
            ),
            (
                (1, 2, 1),
                [
                    (NodeFsAvailable, Counted::All, (true, false)),
                    (ImageFsInodesFree, Counted::Nothing, (false, true)),
                    (ContainerFsAvailable, Counted::All, (true, false)),
                ],
            ),
        ];
        for ((node, images, containers), signals) in cases {
            let layout = Layout::from_devices(Some(node), Some(images), Some(containers));
            for (signal, counted, freed) in signals {
                assert_eq!(layout.counted(signal), counted, "{layout:?} {signal:?}");
                let reclaimed = layout.reclaimed(signal);
                let reclaimed = (reclaimed.containers, reclaimed.images);
                assert_eq!(reclaimed, freed, "{layout:?} {signal:?}");
            }
        }
        assert_eq!(Layout::from_devices(Some(1), None, None), Layout::Single);
    }
}
