//! Sets `oom_score_adj` and the limit of open files of the kubelet's own process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::{debug, warn};

use crate::configuration::KubeletConfiguration;

/// Sets both; without the permission the process runs with what it has.
pub(crate) fn set(settings: &KubeletConfiguration) {
    let score = settings.oom_score_adj.to_string();
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", &score) {
        debug!(score, %error, "cannot set the kubelet's oom_score_adj");
    }
    let Ok(files @ 1..) = u64::try_from(settings.max_open_files) else {
        return;
    };
    let limit = getrlimit(Resource::Nofile);
    let maximum = limit.maximum.map(|maximum| maximum.max(files));
    let wanted = Rlimit {
        current: Some(files),
        maximum,
    };
    let bounded = Rlimit {
        current: Some(limit.maximum.unwrap_or(files).min(files)),
        maximum: limit.maximum,
    };
    if setrlimit(Resource::Nofile, wanted).is_err()
        && let Err(error) = setrlimit(Resource::Nofile, bounded)
    {
        warn!(files, %error, "cannot set the limit of open files");
    }
}
