//! The kinds of the storagemigration.k8s.io group.

pub mod storage_version_migration;
