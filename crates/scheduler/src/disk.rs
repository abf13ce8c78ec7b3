//! In-line disk volumes that pods of one node cannot share.

use k8s_openapi::api::core::v1::Volume;

/// A disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    identity: Identity,
    read_only: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Identity {
    Gce(String),
    Aws(String),
    Iscsi(String),
    Rbd {
        monitors: Vec<String>,
        pool: String,
        image: String,
    },
}

impl Disk {
    /// The disk of a pod's volume, if it is one.
    pub fn new(volume: &Volume) -> Option<Self> {
        let disk = |identity, read_only: Option<bool>| Self {
            identity,
            read_only: read_only.unwrap_or(false),
        };
        if let Some(gce) = &volume.gce_persistent_disk {
            return Some(disk(Identity::Gce(gce.pd_name.clone()), gce.read_only));
        }
        if let Some(aws) = &volume.aws_elastic_block_store {
            // Read-only mounts conflict here, too.
            return Some(disk(Identity::Aws(aws.volume_id.clone()), None));
        }
        if let Some(iscsi) = &volume.iscsi {
            return Some(disk(Identity::Iscsi(iscsi.iqn.clone()), iscsi.read_only));
        }
        let rbd = volume.rbd.as_ref()?;
        let identity = Identity::Rbd {
            monitors: rbd.monitors.clone(),
            pool: rbd.pool.clone().unwrap_or_default(),
            image: rbd.image.clone(),
        };
        Some(disk(identity, rbd.read_only))
    }

    /// Whether one node cannot mount both.
    pub fn conflicts(&self, other: &Self) -> bool {
        let is_same = match (&self.identity, &other.identity) {
            (
                Identity::Rbd {
                    monitors,
                    pool,
                    image,
                },
                Identity::Rbd {
                    monitors: theirs,
                    pool: their_pool,
                    image: their_image,
                },
            ) => {
                let shared = monitors.iter().any(|monitor| theirs.contains(monitor));
                shared && pool == their_pool && image == their_image
            }
            (one, another) => one == another,
        };
        is_same && !(self.read_only && other.read_only)
    }
}
