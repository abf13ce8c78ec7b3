//! Records the credentials with which the images on this node were pulled. A pod may use a present image without a
//! pull if the kubelet did not pull the image, if it was pulled without a secret, or if the pod has a secret with which
//! it was pulled. Every other pod must pull the image, so that the registry decides. The files have the format of
//! upstream's kubelet.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use sha2::{Digest, Sha256};
use tracing::warn;

const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
const FILE_PREFIX: &str = "sha256-";
/// The maximum number of secrets per image and repository. The oldest are dropped; pods with those secrets pull again.
const MAX_SECRETS: usize = 100;

/// A secret that holds credentials for an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PullSecret {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    pub credential_hash: String,
}

impl PullSecret {
    fn is_same_object(&self, other: &Self) -> bool {
        (&self.uid, &self.namespace, &self.name) == (&other.uid, &other.namespace, &other.name)
    }

    /// Whether both have the same credentials, or are the same Secret (which may have newer credentials).
    fn vouches_for(&self, other: &Self) -> bool {
        !self.credential_hash.is_empty() && self.credential_hash == other.credential_hash
            || self.is_same_object(other)
    }
}

/// Which pods may use an image from one repository: those with one of the secrets, or all pods of the node.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Access {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kubernetes_secrets: Vec<PullSecret>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    node_pods_accessible: bool,
}

impl Access {
    /// Adds a secret; `None` gives access to all pods of the node. Returns whether anything changed.
    fn add(&mut self, by: Option<PullSecret>) -> bool {
        let known = &mut self.kubernetes_secrets;
        match by {
            _ if self.node_pods_accessible => return false,
            None => {
                known.clear();
                self.node_pods_accessible = true;
            }
            Some(secret) if known.contains(&secret) => return false,
            Some(secret) => {
                known.retain(|known| !known.is_same_object(&secret));
                known.push(secret);
                let surplus = known.len().saturating_sub(MAX_SECRETS);
                known.drain(..surplus);
            }
        }
        true
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PulledRecord {
    kind: String,
    api_version: String,
    last_updated_time: Timestamp,
    image_ref: String,
    /// Keyed by the image name without tag and digest.
    #[serde(default)]
    credential_mapping: BTreeMap<String, Access>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PullIntent {
    kind: String,
    api_version: String,
    image: String,
}

#[derive(Default)]
struct State {
    /// Keyed by image id.
    pulled: HashMap<String, PulledRecord>,
    /// Image names with the number of pulls in progress.
    pulling: HashMap<String, usize>,
    /// Image names whose pull an earlier run of the kubelet began, without a known result: the pull may have delivered
    /// the image. Settled by the first list of images.
    unsettled: HashSet<String>,
}

/// What a pod needs to use a present image.
#[derive(Debug, PartialEq)]
pub(crate) enum Verdict {
    /// Nothing.
    Free,
    /// One of these secrets.
    With(Vec<PullSecret>),
    /// A pull: the registry checks the credentials.
    Pull,
}

impl Verdict {
    /// Whether a pod with these secrets may use the image without a pull.
    pub(crate) fn allows(&self, own: &[PullSecret]) -> bool {
        match self {
            Self::Free => true,
            Self::With(known) => own
                .iter()
                .any(|own| known.iter().any(|known| own.vouches_for(known))),
            Self::Pull => false,
        }
    }
}

/// The pull records of this node, in memory and on disk.
pub(crate) struct PullRecords {
    pulled_dir: PathBuf,
    pulling_dir: PathBuf,
    /// Guards the records and their files.
    state: Mutex<State>,
}

impl PullRecords {
    /// Reads the records of earlier runs of the kubelet.
    pub(crate) fn load(root: &Path) -> Self {
        let dir = root.join("image_manager");
        let (pulled_dir, pulling_dir) = (dir.join("pulled"), dir.join("pulling"));
        let pulled = read_all(&pulled_dir).map(|record: PulledRecord| {
            let id = record.image_ref.clone();
            (id, record)
        });
        let unsettled = read_all(&pulling_dir).map(|intent: PullIntent| intent.image);
        let state = State {
            pulled: pulled.collect(),
            pulling: HashMap::new(),
            unsettled: unsettled.collect(),
        };
        Self {
            pulled_dir,
            pulling_dir,
            state: Mutex::new(state),
        }
    }

    /// What a pod needs to use the image with this id; `image` is the name in the pod's spec.
    pub(crate) fn verdict(&self, image: &str, id: &str) -> Verdict {
        let state = self.state.lock();
        let Some(record) = state.pulled.get(id) else {
            let by_us = state.pulling.contains_key(image) || state.unsettled.contains(image);
            return if by_us { Verdict::Pull } else { Verdict::Free };
        };
        match record.credential_mapping.get(repository(image)) {
            Some(access) if access.node_pods_accessible => Verdict::Free,
            Some(access) => Verdict::With(access.kubernetes_secrets.clone()),
            None => Verdict::Pull,
        }
    }

    /// Records the start of a pull; `present` is the id of the image that has this name now. The returned value lives as
    /// long as the pull: dropped without a result, the pull may still have delivered the image.
    pub(crate) fn begin(
        self: &Arc<Self>,
        image: &str,
        present: Option<&str>,
        now: Timestamp,
    ) -> io::Result<Pulling> {
        // An image that all pods may use stays accessible to all, whatever the result of this pull.
        let free = present.filter(|id| self.verdict(image, id) == Verdict::Free);
        let mut state = self.state.lock();
        if let Some(id) = free {
            self.add(&mut state, image, id, None, now);
        }
        if !state.pulling.contains_key(image) && !state.unsettled.contains(image) {
            let intent = PullIntent {
                kind: "ImagePullIntent".into(),
                api_version: API_VERSION.into(),
                image: image.into(),
            };
            write(&self.pulling_dir, image, &intent)?;
        }
        *state.pulling.entry(image.to_owned()).or_default() += 1;
        Ok(Pulling {
            records: self.clone(),
            image: image.to_owned(),
            is_settled: false,
        })
    }

    /// Removes the records of images that are not in the list. Images pulled since `listed_at` may be missing in the
    /// list; their records are kept.
    pub(crate) fn prune(&self, images: &[cri::v1::Image], listed_at: Timestamp) {
        let ids: HashSet<&str> = images.iter().map(|image| image.id.as_str()).collect();
        let mut state = self.state.lock();
        state.pulled.retain(|id, record| {
            let stays = ids.contains(id.as_str()) || record.last_updated_time >= listed_at;
            if !stays {
                remove(&self.pulled_dir, id);
            }
            stays
        });
        self.settle(&mut state, images, listed_at);
    }

    /// Settles the pulls that ended with an earlier run of the kubelet. An image in the list may be the result of such a
    /// pull, so pods need credentials that the registry accepts. An image that comes later is not from the pull.
    fn settle(&self, state: &mut State, images: &[cri::v1::Image], now: Timestamp) {
        for name in std::mem::take(&mut state.unsettled) {
            for image in images.iter().filter(|image| is_called(image, &name)) {
                self.access(state, &name, &image.id, now, |_| true);
            }
            if !state.pulling.contains_key(&name) {
                remove(&self.pulling_dir, &name);
            }
        }
    }

    /// Records the secret with which an image was pulled; `None` gives access to all pods of the node.
    fn add(
        &self,
        state: &mut State,
        image: &str,
        id: &str,
        by: Option<PullSecret>,
        now: Timestamp,
    ) {
        self.access(state, image, id, now, |access| access.add(by));
    }

    /// Changes the access to an image of one repository, and saves it if `change` returns that anything changed.
    fn access(
        &self,
        state: &mut State,
        image: &str,
        id: &str,
        now: Timestamp,
        change: impl FnOnce(&mut Access) -> bool,
    ) {
        let record = state.pulled.entry(id.to_owned());
        let record = record.or_insert_with(|| PulledRecord {
            kind: "ImagePulledRecord".into(),
            api_version: API_VERSION.into(),
            last_updated_time: now,
            image_ref: id.to_owned(),
            credential_mapping: BTreeMap::new(),
        });
        record.last_updated_time = now;
        let mapping = &mut record.credential_mapping;
        let access = mapping.entry(repository(image).to_owned()).or_default();
        if !change(access) {
            return;
        }
        if let Err(error) = write(&self.pulled_dir, id, record) {
            warn!(image, %error, "cannot save the record of an image pull");
        }
    }
}

/// A pull in progress.
pub(crate) struct Pulling {
    records: Arc<PullRecords>,
    image: String,
    is_settled: bool,
}

impl Pulling {
    /// The image was pulled, with the credentials of a secret or without credentials.
    pub(crate) fn came(mut self, id: &str, by: Option<PullSecret>, now: Timestamp) {
        let mut state = self.records.state.lock();
        self.records.add(&mut state, &self.image, id, by, now);
        state.unsettled.remove(&self.image);
        drop(state);
        self.is_settled = true;
    }

    /// The runtime reported that the pull failed.
    pub(crate) fn failed(mut self) {
        self.is_settled = true;
    }
}

impl Drop for Pulling {
    fn drop(&mut self) {
        let mut state = self.records.state.lock();
        if !self.is_settled {
            state.unsettled.insert(self.image.clone());
        }
        let left = state.pulling.get(&self.image).map_or(0, |count| count - 1);
        if left > 0 {
            state.pulling.insert(self.image.clone(), left);
            return;
        }
        state.pulling.remove(&self.image);
        if !state.unsettled.contains(&self.image) {
            remove(&self.records.pulling_dir, &self.image);
        }
    }
}

/// Whether the runtime lists an image under this name. The listed name may be longer: it includes the registry.
fn is_called(image: &cri::v1::Image, name: &str) -> bool {
    let mut listed = image.repo_tags.iter().chain(&image.repo_digests);
    listed.any(|listed| {
        let registry = listed.strip_suffix(name);
        registry.is_some_and(|registry| registry.is_empty() || registry.ends_with('/'))
    })
}

/// The image name without tag and digest.
fn repository(image: &str) -> &str {
    let name = image.split_once('@').map_or(image, |(name, _)| name);
    match name.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => name,
        _ => name,
    }
}

/// The hash that is stored instead of credentials.
pub(crate) fn credential_hash(auth: &cri::v1::AuthConfig) -> String {
    let parts = [
        &auth.username,
        &auth.password,
        &auth.auth,
        &auth.server_address,
        &auth.identity_token,
        &auth.registry_token,
    ];
    hash(&serde_json::to_string(&parts).unwrap_or_default())
}

fn hash(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn file(dir: &Path, key: &str) -> PathBuf {
    dir.join(format!("{FILE_PREFIX}{}", hash(key)))
}

fn read_all<T: DeserializeOwned>(dir: &Path) -> impl Iterator<Item = T> {
    let files = fs::read_dir(dir).into_iter().flatten().flatten();
    let is_whole = |name: &str| name.starts_with(FILE_PREFIX) && !name.contains('.');
    let whole = files.filter(move |file| file.file_name().to_str().is_some_and(is_whole));
    whole.filter_map(|file| {
        let read = fs::read(file.path()).map_err(|error| error.to_string());
        let read = read.and_then(|text| serde_json::from_slice(&text).map_err(|e| e.to_string()));
        read.inspect_err(|error| warn!(file = %file.path().display(), error, "unreadable"))
            .ok()
    })
}

/// Writes a file atomically: a crash leaves the old file or the new one.
fn write(dir: &Path, key: &str, value: &impl Serialize) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    let path = file(dir, key);
    let fresh = path.with_extension("tmp");
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)?;
    fs::write(&fresh, serde_json::to_vec(value)?)?;
    fs::rename(&fresh, &path)
}

fn remove(dir: &Path, key: &str) {
    let path = file(dir, key);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            warn!(file = %path.display(), %error, "cannot remove");
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;
    const IMAGE: &str = "private.example:5000/team/app:1";

    fn secret(name: &str, hash: &str) -> PullSecret {
        PullSecret {
            uid: format!("uid-{name}"),
            namespace: "team".into(),
            name: name.into(),
            credential_hash: hash.into(),
        }
    }

    fn load(dir: &tempfile::TempDir) -> Arc<PullRecords> {
        Arc::new(PullRecords::load(dir.path()))
    }

    fn listed(id: &str, name: &str) -> cri::v1::Image {
        cri::v1::Image {
            id: id.into(),
            repo_tags: vec![name.into()],
            ..Default::default()
        }
    }

    fn pull(records: &Arc<PullRecords>, image: &str, id: &str, by: Option<PullSecret>) {
        records.begin(image, None, NOW).unwrap().came(id, by, NOW);
    }

    #[test]
    fn pods_with_the_recorded_pull_secret_may_use_the_image_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let records = load(&dir);
        assert_eq!(records.verdict(IMAGE, "i1"), Verdict::Free, "preloaded");
        pull(&records, IMAGE, "i1", Some(secret("regcred", "h1")));
        for records in [records, load(&dir)] {
            let may = |image: &str, own: &[PullSecret]| records.verdict(image, "i1").allows(own);
            assert!(!may(IMAGE, &[]));
            assert!(!may(IMAGE, &[secret("other", "h2"), secret("none", "")]));
            assert!(may(IMAGE, &[secret("copy", "h1")]), "the same credentials");
            assert!(may(IMAGE, &[secret("regcred", "h9")]), "the same secret");
            let by_digest = "private.example:5000/team/app@sha256:00";
            assert!(may(by_digest, &[secret("regcred", "h1")]));
            assert!(!may(by_digest, &[]) && !may("i1", &[]) && !may("elsewhere/app:1", &[]));
        }
    }

    #[test]
    fn images_pulled_anonymously_are_available_to_all_pods() {
        let dir = tempfile::tempdir().unwrap();
        let records = load(&dir);
        pull(&records, IMAGE, "i1", Some(secret("regcred", "h1")));
        pull(&records, "public/app:1", "i2", None);
        pull(
            &records,
            "public/app:1",
            "i2",
            Some(secret("regcred", "h1")),
        );
        assert!(records.verdict("public/app:2", "i2").allows(&[]));
        assert!(!records.verdict(IMAGE, "i1").allows(&[]));
        let there = [cri::v1::Image {
            id: "i2".into(),
            ..Default::default()
        }];
        records.prune(&there, NOW);
        assert!(!records.verdict(IMAGE, "i1").allows(&[]), "young");
        records.prune(&there, NOW + Duration::from_secs(1));
        assert_eq!(records.verdict(IMAGE, "i1"), Verdict::Free, "it is gone");
        assert_eq!(fs::read_dir(&records.pulled_dir).unwrap().count(), 1);
    }

    #[test]
    fn an_image_whose_pull_ended_with_the_kubelet_needs_a_pull() {
        let dir = tempfile::tempdir().unwrap();
        let records = load(&dir);
        let pulling = records.begin(IMAGE, None, NOW).unwrap();
        assert_eq!(records.verdict(IMAGE, "i1"), Verdict::Pull, "while it runs");
        pulling.failed();
        assert_eq!(records.verdict(IMAGE, "i1"), Verdict::Free);
        drop(records.begin(IMAGE, None, NOW).unwrap());
        // An aborted pull does not revoke the access to a preloaded image.
        drop(records.begin("preloaded:1", Some("i2"), NOW).unwrap());
        for _ in 0..2 {
            let records = load(&dir);
            assert_eq!(records.verdict(IMAGE, "i1"), Verdict::Pull);
            records.begin(IMAGE, Some("i1"), NOW).unwrap().failed();
            assert_eq!(records.verdict(IMAGE, "i1"), Verdict::Pull);
            assert_eq!(records.verdict("preloaded:1", "i2"), Verdict::Free);
        }
        let records = load(&dir);
        let there = [listed("i1", IMAGE), listed("i2", "preloaded:1")];
        records.prune(&there, NOW);
        for records in [records, load(&dir)] {
            assert!(
                !records.verdict(IMAGE, "i1").allows(&[]),
                "the pull brought it"
            );
            assert_eq!(records.verdict("preloaded:1", "i2"), Verdict::Free);
            assert_eq!(fs::read_dir(&records.pulling_dir).unwrap().count(), 0);
        }
    }

    #[test]
    fn an_image_imported_after_an_aborted_pull_is_available_to_all_pods() {
        let dir = tempfile::tempdir().unwrap();
        drop(load(&dir).begin("app:1", None, NOW).unwrap());
        let records = load(&dir);
        let other = listed("i1", "private.example/other-app:1");
        records.prune(std::slice::from_ref(&other), NOW);
        assert_eq!(fs::read_dir(&records.pulling_dir).unwrap().count(), 0);
        records.prune(&[other, listed("i2", "docker.io/library/app:1")], NOW);
        for records in [records, load(&dir)] {
            assert_eq!(records.verdict("app:1", "i2"), Verdict::Free);
            let other = records.verdict("private.example/other-app:1", "i1");
            assert_eq!(other, Verdict::Free);
        }
    }

    #[test]
    fn the_number_of_secrets_is_bounded() {
        let mut access = Access::default();
        for index in 0..2 * MAX_SECRETS {
            access.add(Some(secret(&index.to_string(), "h")));
        }
        assert_eq!(access.kubernetes_secrets.len(), MAX_SECRETS);
        assert!(!access.add(Some(secret("199", "h"))), "nothing new");
    }
}
