//! Which cluster an etcd holds, and how a server joins it. The first server writes a record beside
//! the objects, outside of the API: the hash of the cluster's CA, the settings that all servers
//! must share, and the cluster's keys, encrypted with the server token. Another server presents the
//! token and takes over the keys; without it, it is rejected.
//!
//! The token authenticates both ways: only a server can have written a record that the token
//! decrypts.

use std::{fmt, net::SocketAddr, path::Path, str::FromStr};

use base64::{Engine, prelude::BASE64_STANDARD};
use pki::{Identity, Pki, sealed};
use rand::Rng;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use store::{Freshness, etcd::Records};

use crate::{
    Error, Role, Settings,
    addresses::names,
    agreed::{self, Agreed},
    marker::Marker,
    skew,
    storage::Storage,
};

/// The record's name.
const RECORD: &str = "cluster";
const VERSION: u32 = 1;
/// Whose settings are compared, in messages.
const IN_ETCD: &str = "the cluster in etcd";
/// The file of a server's token, in the directory of its keys.
const TOKEN_FILE: &str = "server-token";
const PREFIX: &str = "server.";
const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
/// 248 bits.
const LENGTH: usize = 48;

/// The secret that decrypts the cluster's keys; it is never printed.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct ServerToken(String);

impl fmt::Debug for ServerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerToken(..)")
    }
}

impl FromStr for ServerToken {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let secret = text.strip_prefix(PREFIX);
        let is_whole = |secret: &str| {
            secret.len() == LENGTH && secret.bytes().all(|byte| LETTERS.contains(&byte))
        };
        if secret.is_some_and(is_whole) {
            return Ok(Self(text.to_owned()));
        }
        Err("not a server token; `mainstay token server` on a server prints it".to_owned())
    }
}

impl TryFrom<String> for ServerToken {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl ServerToken {
    fn random() -> Self {
        let mut random = rand::rng();
        let letter = |_| char::from(LETTERS[random.random_range(0..LETTERS.len())]);
        let secret: String = (0..LENGTH).map(letter).collect();
        Self(format!("{PREFIX}{secret}"))
    }

    /// A hash that identifies it without revealing it.
    fn hash(&self) -> String {
        BASE64_STANDARD.encode(Sha256::digest(&self.0))
    }

    /// The token itself.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// The token saved in a data directory.
    pub fn read(data_dir: &Path) -> Result<Option<Self>, Error> {
        let path = data_dir.join("pki").join(TOKEN_FILE);
        match std::fs::read_to_string(&path) {
            Ok(text) => text
                .trim()
                .parse()
                .map(Some)
                .map_err(|why| Error::NotAServer(format!("{}: {why}", path.display()))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(Error::Directory { path, source }),
        }
    }

    fn write(&self, data_dir: &Path) -> Result<(), Error> {
        let path = data_dir.join("pki").join(TOKEN_FILE);
        Ok(pki::write_private(&path, self.0.as_bytes())?)
    }
}

/// The record in etcd.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    version: u32,
    ca_hash: String,
    agreed: Agreed,
    /// [`Content`], encrypted with the token, as base64.
    sealed: String,
    /// Identifies the current token.
    #[serde(default)]
    token_hash: String,
    /// The token, encrypted with the cluster's keys, as base64: servers follow its replacement.
    #[serde(default)]
    token: String,
}

/// The part that only servers can decrypt. It repeats the plain fields, so that changes to them are
/// detected.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Content {
    ca_hash: String,
    agreed: Agreed,
    identity: serde_json::Value,
}

impl Record {
    fn new(agreed: Agreed, identity: &Identity, token: &ServerToken) -> Result<Self, Error> {
        let ca_hash = identity.ca_hash()?;
        let content = Content {
            ca_hash: ca_hash.clone(),
            agreed: agreed.clone(),
            identity: identity.to_json(),
        };
        let content = serde_json::to_vec(&content).unwrap_or_default();
        Ok(Self {
            version: VERSION,
            ca_hash,
            agreed,
            sealed: seal(token.reveal(), &content)?,
            token_hash: token.hash(),
            token: seal(&secret(identity), token.reveal().as_bytes())?,
        })
    }

    /// The current token, for a server that has the cluster's keys; `known` is the previous one.
    fn current_token(
        &self,
        identity: &Identity,
        known: Option<ServerToken>,
    ) -> Result<Option<ServerToken>, Error> {
        // A record of an earlier version does not have it.
        if self.token.is_empty()
            || known
                .as_ref()
                .is_some_and(|one| one.hash() == self.token_hash)
        {
            return Ok(known);
        }
        let unfit = |why: &dyn fmt::Display| {
            Error::NotAServer(format!("the server token in the cluster's record: {why}"))
        };
        let sealed = BASE64_STANDARD.decode(&self.token);
        let sealed = sealed.map_err(|error| unfit(&error))?;
        let mut token = Vec::new();
        sealed::open(&secret(identity), &mut sealed.as_slice(), &mut token)
            .map_err(|error| unfit(&error))?;
        let token = String::from_utf8(token).map_err(|error| unfit(&error))?;
        token.parse().map(Some).map_err(|why: String| unfit(&why))
    }

    fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let unfit = |why: String| Error::NotAServer(format!("the cluster's record in etcd: {why}"));
        let record: Self = serde_json::from_slice(bytes).map_err(|e| unfit(e.to_string()))?;
        if record.version != VERSION {
            let why = format!("unknown version {}", record.version);
            return Err(unfit(why));
        }
        Ok(record)
    }

    /// The cluster's keys.
    fn open(&self, token: &ServerToken) -> Result<Identity, Error> {
        let refused = |why: &dyn fmt::Display| Error::Option("server-token", why.to_string());
        let sealed = BASE64_STANDARD.decode(&self.sealed);
        let sealed = sealed.map_err(|error| refused(&error))?;
        let mut content = Vec::new();
        sealed::open(token.reveal(), &mut sealed.as_slice(), &mut content).map_err(|error| {
            refused(&format!("cannot decrypt the keys of the cluster: {error}"))
        })?;
        let content: Content = serde_json::from_slice(&content).map_err(|error| refused(&error))?;
        let identity = Identity::from_json(&content.identity)?;
        let is_same = content.ca_hash == self.ca_hash
            && content.agreed == self.agreed
            && identity.ca_hash()? == self.ca_hash;
        if is_same {
            return Ok(identity);
        }
        Err(refused(
            &"the unencrypted part of the cluster's record was changed",
        ))
    }
}

/// A secret derived from the cluster's keys.
fn secret(identity: &Identity) -> String {
    let digest = Sha256::digest(identity.to_json().to_string());
    BASE64_STANDARD.encode(digest)
}

fn seal(secret: &str, mut content: &[u8]) -> Result<String, Error> {
    let mut sealed = Vec::new();
    sealed::seal(secret, &mut content, &mut sealed)
        .map_err(|error| Error::NotAServer(error.to_string()))?;
    Ok(BASE64_STANDARD.encode(sealed))
}

/// Replaces the server token: from now on only the new one decrypts the keys in etcd.
pub async fn rotate(storage: &Storage, data_dir: &Path) -> Result<(), Error> {
    let Storage::Etcd(etcd) = storage else {
        return Err(Error::NotAServer(
            "only clusters in etcd have a server token".into(),
        ));
    };
    let identity = Identity::read(&data_dir.join("pki"))?
        .ok_or_else(|| Error::NotAServer("the cluster's keys are missing".into()))?;
    let records = etcd.records();
    let before = records.get(RECORD).await?;
    let before = before.ok_or_else(|| Error::NotAServer("etcd contains no cluster".into()))?;
    let token = ServerToken::random();
    let record = Record::new(Record::parse(&before)?.agreed, &identity, &token)?;
    let bytes = serde_json::to_vec(&record).unwrap_or_default();
    if !records.replace(RECORD, &before, bytes).await? {
        return Err(Error::NotAServer(
            "another server replaced the token at the same time".into(),
        ));
    }
    token.write(data_dir)
}

/// Updates the saved token of this server.
pub async fn refresh(storage: &Storage, data_dir: &Path) -> Result<(), Error> {
    let Storage::Etcd(etcd) = storage else {
        return Ok(());
    };
    let (found, own) = (
        etcd.records().get(RECORD).await?,
        Identity::read(&data_dir.join("pki"))?,
    );
    let (Some(found), Some(own)) = (found, own) else {
        return Ok(());
    };
    keep_token(&Record::parse(&found)?, &own, data_dir)
}

fn keep_token(record: &Record, own: &Identity, data_dir: &Path) -> Result<(), Error> {
    let known = ServerToken::read(data_dir)?;
    match record.current_token(own, known.clone())? {
        Some(token) if Some(&token) != known.as_ref() => token.write(data_dir),
        _ => Ok(()),
    }
}

/// Ensures that this server may serve the store's cluster with its settings, and has its keys.
pub async fn ensure(settings: &Settings, role: Role, storage: &Storage) -> Result<(), Error> {
    let Storage::Etcd(etcd) = storage else {
        return agreed::check(settings, storage).await;
    };
    let records = etcd.records();
    if let Some(found) = records.get(RECORD).await? {
        return join(settings, &Record::parse(&found)?);
    }
    if etcd.origin().is_none() {
        refuse_to_start_over(settings)?;
    }
    if let Some(origin) = etcd.origin() {
        let own = Identity::read(&settings.data_dir.join("pki"))?;
        let own = own.map(|own| own.ca_hash()).transpose()?;
        if own.as_deref() != Some(origin) {
            return Err(Error::NotAServer(format!(
                "the cluster that was moved to this etcd has the CA {origin}: first start the server whose \
                 data directory it was moved from; others join with --server-token"
            )));
        }
    }
    // The objects may have been moved here.
    agreed::check(settings, storage).await?;
    found(settings, role, &records).await
}

/// Ensures that an etcd holds the cluster with this CA.
pub async fn check_cluster(etcd: &store::etcd::Config, ca_hash: &str) -> Result<(), Error> {
    let found = etcd.read_record(RECORD).await?;
    let found = found.map(|found| Record::parse(&found)).transpose()?;
    match found {
        Some(record) if record.ca_hash == ca_hash => Ok(()),
        Some(record) => Err(Error::NotAServer(format!(
            "etcd contains another cluster: its CA is {}, and that of the data directory is {ca_hash}",
            record.ca_hash
        ))),
        None => Err(Error::NotAServer("etcd contains no cluster".into())),
    }
}

/// An etcd without a cluster is not for a server that has served one: its nodes would end all their pods, which are not
/// among the objects of the new cluster.
fn refuse_to_start_over(settings: &Settings) -> Result<(), Error> {
    let marker = Marker::read(&settings.data_dir)?.unwrap_or_default();
    // Written when the API server of the first start was ready.
    if marker.agreed.is_none() {
        return Ok(());
    }
    let place = settings.data_dir.display();
    if marker.store {
        let why = format!(
            "the objects of this cluster are in {place}, and etcd contains none: move them with `mainstay migrate \
             --to-etcd` first, or start without --store etcd"
        );
        return Err(Error::Option("store", why));
    }
    let why = format!(
        "etcd contains no cluster, but {place} belongs to a server of one: check --etcd-endpoints, or restore a snapshot of \
         that etcd"
    );
    if settings.accept_data_loss {
        tracing::error!(why, "continuing with an empty cluster: --accept-data-loss");
        return Ok(());
    }
    Err(Error::DataLoss(why))
}

/// The Lease of a server with this server's name at another address.
#[derive(Debug, PartialEq, Eq)]
struct Namesake {
    address: SocketAddr,
    renewed: String,
}

impl Namesake {
    fn new(lease: &[u8], own: SocketAddr) -> Option<Self> {
        let lease: serde_json::Value = serde_json::from_slice(lease).ok()?;
        let address = lease["metadata"]["annotations"][apiserver::ADDRESS_ANNOTATION].as_str()?;
        let address: SocketAddr = address.parse().ok()?;
        let renewed = lease["spec"]["renewTime"].as_str()?.to_owned();
        (address != own).then_some(Self { address, renewed })
    }
}

/// Rejects a copy of a running server's data directory: two servers with one name would end each other's terms as leaders.
pub(crate) async fn refuse_copy(settings: &Settings, storage: &Storage) -> Result<(), Error> {
    let Some(name) = settings.server_name()? else {
        return Ok(());
    };
    let lease = apiserver::lease_name(&name);
    let key = apiserver::object_key("coordination.k8s.io", "leases", "kube-system", &lease);
    let own = SocketAddr::new(settings.advertise_address, settings.https_port);
    let find = async || {
        let (_, found) = storage.store().get(&key, Freshness::Newest).await?;
        let found = found.and_then(|lease| Namesake::new(&lease.object.bytes(), own));
        Ok::<_, Error>(found)
    };
    let Some(before) = find().await? else {
        return Ok(());
    };
    // Either its data directory was copied, or this server crashed and has another address now.
    tokio::time::sleep(skew::RENEWAL).await;
    match find().await? {
        Some(now) if now != before => Err(Error::NotAServer(format!(
            "the server at {} runs with a copy of {}: a further server joins with an empty --data-dir and --server-token",
            now.address,
            settings.data_dir.display()
        ))),
        _ => Ok(()),
    }
}

/// The first server: its keys become the cluster's.
async fn found(settings: &Settings, role: Role, records: &Records<'_>) -> Result<(), Error> {
    let directory = settings.data_dir.join("pki");
    let was_there = Identity::read(&directory)?.is_some();
    // On disk before it is in etcd: a crash in between loses nothing.
    Pki::ensure(&directory, &names(settings, role))?;
    let identity = Identity::read(&directory)?
        .ok_or_else(|| Error::NotAServer("the cluster's keys were removed concurrently".into()))?;
    let kept = ServerToken::read(&settings.data_dir)?;
    let token = settings.server_token.clone().or(kept);
    let token = token.unwrap_or_else(ServerToken::random);
    token.write(&settings.data_dir)?;
    let record = Record::new(Agreed::new(settings), &identity, &token)?;
    let bytes = serde_json::to_vec(&record).unwrap_or_default();
    // The write may have succeeded despite an error: the stored record decides.
    let created = records.create(RECORD, bytes).await;
    let found = records.get(RECORD).await?;
    let found = match (created, found) {
        (_, Some(found)) => Record::parse(&found)?,
        (Err(error), None) => return Err(error.into()),
        (Ok(_), None) => return Err(Error::NotAServer("the cluster's record is missing".into())),
    };
    if found.ca_hash == record.ca_hash {
        tracing::info!(ca = record.ca_hash, "initialized the cluster in etcd");
        return Ok(());
    }
    // Another server was first. Keys created in vain must be removed.
    if !was_there {
        Identity::remove(&directory)?;
        let _ = std::fs::remove_file(directory.join(TOKEN_FILE));
    }
    join(settings, &found)
}

/// An additional server, or one that returns.
fn join(settings: &Settings, record: &Record) -> Result<(), Error> {
    let directory = settings.data_dir.join("pki");
    if let Some(keys) = Identity::read(&directory)? {
        let own = keys.ca_hash()?;
        if own != record.ca_hash {
            let theirs = &record.ca_hash;
            return Err(Error::NotAServer(format!(
                "etcd contains another cluster: its CA is {theirs}, and the one in {} is {own}; \
                 use another etcd, or another --data-dir to join that cluster with --server-token",
                directory.display()
            )));
        }
        record.agreed.check(&Agreed::new(settings), IN_ETCD)?;
        if let Some(token) = &settings.server_token {
            record.open(token)?;
        }
        return keep_token(record, &keys, &settings.data_dir);
    }
    let Some(token) = &settings.server_token else {
        return Err(Error::NotAServer(format!(
            "etcd already contains a cluster (CA {}) that this server does not belong to; \
             to join it, start with --server-token (`mainstay token server` on a server prints it)",
            record.ca_hash
        )));
    };
    record.agreed.check(&Agreed::new(settings), IN_ETCD)?;
    let identity = record.open(token)?;
    identity.install(&directory)?;
    token.write(&settings.data_dir)?;
    tracing::info!(
        ca = record.ca_hash,
        "joined the cluster in etcd as a server"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;

    fn settings(directory: &Path, token: Option<&ServerToken>) -> Settings {
        Settings::resolve(Options {
            data_dir: Some(directory.to_owned()),
            node_name: Some("n".into()),
            node_ip: "192.0.2.1".parse().ok(),
            store: Some(crate::options::StoreKind::Etcd),
            etcd_endpoints: Some(vec!["http://a:1".into()]),
            server_token: token.cloned(),
            ..Options::default()
        })
        .unwrap()
    }

    fn record(directory: &Path, token: &ServerToken) -> Record {
        let settings = settings(directory, None);
        let names = names(&settings, Role::Server);
        Pki::ensure(&directory.join("pki"), &names).unwrap();
        let identity = Identity::read(&directory.join("pki")).unwrap().unwrap();
        Record::new(Agreed::new(&settings), &identity, token).unwrap()
    }

    #[test]
    fn a_server_joins_with_the_token_and_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let (one, two) = (directory.path().join("one"), directory.path().join("two"));
        let token = ServerToken::random();
        let record = record(&one, &token);
        let stored = serde_json::to_string(&record).unwrap();
        assert!(!stored.contains("PRIVATE") && !stored.contains(token.reveal()));
        let refused = join(&settings(&two, None), &record).unwrap_err();
        assert!(refused.to_string().contains("--server-token"), "{refused}");
        let other = ServerToken::random();
        let refused = join(&settings(&two, Some(&other)), &record).unwrap_err();
        assert!(refused.to_string().starts_with("--server-token: "));
        join(&settings(&two, Some(&token)), &record).unwrap();
        let keys = |dir: &Path| Identity::read(&dir.join("pki")).unwrap();
        assert_eq!(keys(&one), keys(&two));
        assert_eq!(ServerToken::read(&two).unwrap(), Some(token));
        // From then on it is a server of the cluster.
        join(&settings(&two, None), &record).unwrap();
    }

    #[test]
    fn other_keys_other_settings_and_a_changed_record_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let (one, two) = (directory.path().join("one"), directory.path().join("two"));
        let token = ServerToken::random();
        let mut record = record(&one, &token);
        let names = names(&settings(&two, None), Role::Server);
        Pki::ensure(&two.join("pki"), &names).unwrap();
        let refused = join(&settings(&two, Some(&token)), &record).unwrap_err();
        assert!(refused.to_string().contains("another cluster"), "{refused}");
        let mut differs = settings(&one, None);
        differs.cluster_domain = "other.local".into();
        let refused = join(&differs, &record).unwrap_err().to_string();
        assert!(refused.starts_with("--cluster-domain: "), "{refused}");
        record.agreed.cluster_domain = "other.local".into();
        let refused = record.open(&token).unwrap_err().to_string();
        assert!(refused.contains("was changed"), "{refused}");
    }

    #[test]
    fn servers_follow_when_the_token_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let one = directory.path().join("one");
        let (before, after) = (ServerToken::random(), ServerToken::random());
        let first = record(&one, &before);
        before.write(&one).unwrap();
        let keys = Identity::read(&one.join("pki")).unwrap().unwrap();
        keep_token(&first, &keys, &one).unwrap();
        assert_eq!(ServerToken::read(&one).unwrap(), Some(before.clone()));
        let second = Record::new(first.agreed, &keys, &after).unwrap();
        assert!(second.open(&before).is_err());
        join(&settings(&one, None), &second).unwrap();
        assert_eq!(ServerToken::read(&one).unwrap(), Some(after.clone()));
        let refused = join(&settings(&one, Some(&before)), &second).unwrap_err();
        assert!(
            refused.to_string().starts_with("--server-token: "),
            "{refused}"
        );
        // A record of an earlier version.
        let mut text: serde_json::Value = serde_json::to_value(&second).unwrap();
        text.as_object_mut()
            .unwrap()
            .retain(|key, _| !key.starts_with("token"));
        let old = Record::parse(text.to_string().as_bytes()).unwrap();
        keep_token(&old, &keys, &one).unwrap();
        assert_eq!(ServerToken::read(&one).unwrap(), Some(after));
    }

    #[test]
    fn a_server_of_a_cluster_does_not_start_over_in_an_empty_etcd() {
        let directory = tempfile::tempdir().unwrap();
        let mut settings = settings(directory.path(), None);
        // The first start may have been killed.
        refuse_to_start_over(&settings).unwrap();
        Marker::update(directory.path(), |_| {}).unwrap();
        refuse_to_start_over(&settings).unwrap();
        let agreed = Agreed::new(&settings);
        Marker::update(directory.path(), |marker| marker.agreed = Some(agreed)).unwrap();
        let refused = |settings: &Settings| refuse_to_start_over(settings).unwrap_err().to_string();
        let why = refused(&settings);
        assert!(why.contains("check --etcd-endpoints"), "{why}");
        settings.accept_data_loss = true;
        refuse_to_start_over(&settings).unwrap();
        // Before a migration, nothing is lost.
        Marker::update(directory.path(), |marker| marker.store = true).unwrap();
        let why = refused(&settings);
        assert!(why.contains("migrate --to-etcd"), "{why}");
    }

    #[test]
    fn a_lease_at_another_address_is_that_of_a_namesake() {
        let lease = |address: &str| {
            let annotations = serde_json::json!({apiserver::ADDRESS_ANNOTATION: address});
            let lease = serde_json::json!({
                "metadata": {"annotations": annotations},
                "spec": {"renewTime": "2026-01-01T00:00:00.000000Z"},
            });
            lease.to_string()
        };
        let own = "192.0.2.1:6443".parse().unwrap();
        let found = |address: &str| {
            let namesake = Namesake::new(lease(address).as_bytes(), own);
            namesake.map(|namesake| namesake.address.to_string())
        };
        assert_eq!(found("192.0.2.1:6443"), None);
        assert_eq!(found("192.0.2.2:6443").as_deref(), Some("192.0.2.2:6443"));
        assert_eq!(found("192.0.2.1:7443").as_deref(), Some("192.0.2.1:7443"));
        assert_eq!(found(""), None);
    }

    #[test]
    fn a_token_of_nodes_is_not_a_server_token() {
        let parsed = "abcdef.0123456789abcdef".parse::<ServerToken>();
        assert!(parsed.unwrap_err().contains("mainstay token server"));
        let token = ServerToken::random();
        assert_eq!(token.reveal().parse().as_ref(), Ok(&token));
        assert!(!format!("{token:?}").contains(token.reveal()));
    }
}
