//! The labels of the metrics.

use std::{
    hash::{Hash, Hasher},
    sync::Arc,
};

use prometheus_client::encoding::{
    EncodeLabel, EncodeLabelSet, EncodeLabelValue, LabelSetEncoder, LabelValueEncoder,
};
use registry::Labels;

/// The labels of a request.
#[derive(Debug, Clone, Default, Eq)]
pub struct RequestLabels {
    pub verb: &'static str,
    /// Group, version and resource; `None` for other paths.
    pub labels: Option<Arc<Labels>>,
    pub subresource: &'static str,
    pub scope: &'static str,
}

impl PartialEq for RequestLabels {
    fn eq(&self, other: &Self) -> bool {
        // Most are the same constants: compare pointers first.
        let same =
            |one: &'static str, other: &'static str| std::ptr::eq(one, other) || one == other;
        same(self.verb, other.verb)
            && same(self.scope, other.scope)
            && same(self.subresource, other.subresource)
            && self.labels == other.labels
    }
}

impl Hash for RequestLabels {
    /// Hashes only the most varied parts: this runs for every request.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.verb.hash(state);
        if let Some(labels) = &self.labels {
            labels.resource.hash(state);
        }
    }
}

impl EncodeLabelSet for RequestLabels {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), std::fmt::Error> {
        let labels = self.labels.as_deref();
        let [group, version, resource] = labels.map_or([""; 3], |labels| {
            [&labels.group, &labels.version, &labels.resource].map(|name| &**name)
        });
        for label in [
            ("verb", self.verb),
            ("group", group),
            ("version", version),
            ("resource", resource),
            ("subresource", self.subresource),
            ("scope", self.scope),
            ("component", "apiserver"),
        ] {
            label.encode(encoder.encode_label())?;
        }
        Ok(())
    }
}

/// The label `dry_run`: `All` or empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct DryRun(pub(super) bool);

impl EncodeLabelValue for DryRun {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        let text = if self.0 { "All" } else { "" };
        text.encode(encoder)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Answered {
    #[prometheus(flatten)]
    pub(super) about: RequestLabels,
    pub(super) dry_run: DryRun,
    pub(super) code: u16,
}

impl Answered {
    pub(super) fn new(about: RequestLabels, dry_run: bool, code: u16) -> Self {
        Self {
            about,
            dry_run: DryRun(dry_run),
            code,
        }
    }
}

/// The labels of durations.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Timed {
    #[prometheus(flatten)]
    pub(super) about: RequestLabels,
    pub(super) dry_run: DryRun,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Deprecated {
    pub(super) group: Arc<str>,
    pub(super) version: Arc<str>,
    pub(super) resource: Arc<str>,
    pub(super) subresource: &'static str,
    pub(super) removed_release: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RequestKind {
    pub(super) request_kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Stored {
    pub(super) group: Arc<str>,
    pub(super) resource: Arc<str>,
}

/// The older metric's label: group and resource in one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct StoredBefore {
    pub(super) resource: String,
}

/// The label of the store; there is only one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Cluster {
    pub(super) storage_cluster_id: &'static str,
}

/// A health check.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Checked {
    pub(super) name: String,
    pub(super) r#type: String,
}

/// A health check and its result.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct CheckedAs {
    pub(super) name: String,
    pub(super) status: &'static str,
    pub(super) r#type: String,
}

/// The labels of a request by a component of this process.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ClientRequest {
    pub(super) code: u16,
    pub(super) host: &'static str,
    pub(super) method: &'static str,
}

/// The labels of the latency of requests by components of this process.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ClientTime {
    pub(super) host: &'static str,
    pub(super) verb: &'static str,
}

/// The labels of a request that the server terminated.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Terminated {
    #[prometheus(flatten)]
    pub(super) about: RequestLabels,
    pub(super) code: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Named {
    pub(super) name: String,
}

/// Build information.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Build {
    pub(super) major: u32,
    pub(super) minor: u32,
    pub(super) git_version: String,
    pub(super) platform: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Watched {
    pub(super) group: Arc<str>,
    pub(super) version: Arc<str>,
    pub(super) resource: Arc<str>,
}
