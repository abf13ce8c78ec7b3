//! The store of the cluster's objects: the embedded engine in the data directory, or an etcd
//! cluster.

use std::{path::PathBuf, sync::Arc};

use apiserver::ObjectCodec;
use store::{
    embedded::Embedded,
    etcd::{self, Etcd},
};

use crate::{
    Error, Settings, backup,
    founding::ServerToken,
    marker::Marker,
    options::{Options, StoreKind},
};

/// The store and its connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Config {
    /// In the data directory.
    Embedded,
    /// In an etcd cluster.
    Etcd {
        endpoints: Vec<String>,
        /// The CA of etcd's certificates.
        ca: Option<PathBuf>,
        /// The client certificate and its key.
        identity: Option<(PathBuf, PathBuf)>,
    },
}

impl Config {
    /// Validates the flags.
    pub fn resolve(options: &Options) -> Result<Self, Error> {
        let refuse = |flag, why: &str| Err(Error::Option(flag, why.to_owned()));
        let endpoints = options.etcd_endpoints.clone().unwrap_or_default();
        if options.store.unwrap_or_default() == StoreKind::Embedded {
            let given = [
                ("etcd-endpoints", !endpoints.is_empty()),
                ("etcd-cafile", options.etcd_cafile.is_some()),
                ("etcd-certfile", options.etcd_certfile.is_some()),
                ("etcd-keyfile", options.etcd_keyfile.is_some()),
                ("server-token", options.server_token.is_some()),
            ];
            return match given.into_iter().find(|(_, given)| *given) {
                Some((flag, _)) => refuse(flag, "needs --store etcd"),
                None => Ok(Self::Embedded),
            };
        }
        if endpoints.is_empty() {
            return refuse("etcd-endpoints", "is needed with --store etcd");
        }
        let identity = match (&options.etcd_certfile, &options.etcd_keyfile) {
            (Some(certificate), Some(key)) => Some((certificate.clone(), key.clone())),
            (None, None) => None,
            (Some(_), None) => return refuse("etcd-keyfile", "is needed with --etcd-certfile"),
            (None, Some(_)) => return refuse("etcd-certfile", "is needed with --etcd-keyfile"),
        };
        let is_secure = endpoints.iter().any(|url| url.starts_with("https://"));
        if is_secure && options.etcd_cafile.is_none() {
            return refuse("etcd-cafile", "is needed for https endpoints");
        }
        let wants_tls = options.etcd_cafile.is_some() || identity.is_some();
        let in_the_open = endpoints.iter().find(|url| !url.starts_with("https://"));
        if let Some(url) = in_the_open.filter(|_| wants_tls) {
            let why = format!("{url} would be reached without TLS; use https://");
            return Err(Error::Option("etcd-endpoints", why));
        }
        Ok(Self::Etcd {
            endpoints,
            ca: options.etcd_cafile.clone(),
            identity,
        })
    }
}

/// An open store.
#[derive(Clone)]
pub enum Storage {
    Embedded(Arc<Embedded<ObjectCodec>>),
    Etcd(Arc<Etcd<ObjectCodec>>),
}

impl Storage {
    /// Opens the configured store.
    pub async fn open(settings: &Settings, codec: ObjectCodec) -> Result<Self, Error> {
        if settings.storage == Config::Embedded {
            return Ok(Self::Embedded(embedded(settings, codec)?));
        }
        let config = etcd_config(&settings.storage)?;
        Ok(Self::Etcd(config.connect(codec).await?))
    }

    /// For the API server.
    pub fn store(&self) -> apiserver::Store {
        match self {
            Self::Embedded(store) => store.clone(),
            Self::Etcd(store) => store.clone(),
        }
    }

    /// Closes it, after all writers have stopped.
    pub fn close(&self) {
        match self {
            Self::Embedded(store) => store.close(),
            Self::Etcd(store) => store.close(),
        }
    }
}

/// The connection to etcd, with the certificate files read.
pub fn etcd_config(config: &Config) -> Result<etcd::Config, Error> {
    let Config::Etcd {
        endpoints,
        ca,
        identity,
    } = config
    else {
        let why = "is needed with --store etcd".to_owned();
        return Err(Error::Option("etcd-endpoints", why));
    };
    let tls = match ca {
        None => None,
        Some(ca) => Some(etcd::Tls {
            ca: read("etcd-cafile", ca)?,
            identity: match identity {
                None => None,
                Some((certificate, key)) => Some((
                    read("etcd-certfile", certificate)?,
                    read("etcd-keyfile", key)?,
                )),
            },
            server_name: None,
        }),
    };
    Ok(etcd::Config {
        endpoints: endpoints.clone(),
        tls,
        ..etcd::Config::default()
    })
}

/// The store in the data directory. If it existed before and is gone completely, that is data loss,
/// which the store itself cannot detect.
fn embedded(settings: &Settings, codec: ObjectCodec) -> Result<Arc<Embedded<ObjectCodec>>, Error> {
    let directory = settings.data_dir.join("store");
    let marker = Marker::read(&settings.data_dir)?.unwrap_or_default();
    if marker.in_etcd {
        let why = "the objects of this cluster were moved to etcd: start with --store etcd, or move them back with \
                   `mainstay migrate --to-embedded`";
        return Err(Error::Option("store", why.to_owned()));
    }
    let was_made = marker.store;
    let is_empty = std::fs::read_dir(&directory).map_or(true, |entries| {
        let mut names = entries.flatten().map(|entry| entry.file_name());
        // Other files are not part of the store.
        let is_store = |name: &str| {
            name == "manifest" || name.starts_with("log-") || name.starts_with("snapshot-")
        };
        !names.any(|name| is_store(&name.to_string_lossy()))
    });
    // An empty cluster with the same keys would end all pods of the nodes that know this server.
    if !was_made && is_empty && ServerToken::read(&settings.data_dir)?.is_some() {
        let why = "this is a server of a cluster in etcd: start with --store etcd, move its objects here with \
                   `mainstay migrate --to-embedded`, or run `mainstay reset` first to start another cluster";
        return Err(Error::Option("store", why.to_owned()));
    }
    if was_made && is_empty {
        let why = format!(
            "the objects of this cluster are missing: {} is empty",
            directory.display()
        );
        if !settings.accept_data_loss {
            if settings.data_dir.join(backup::RESTORING).exists() {
                let why = "a restore was interrupted: run `mainstay restore` again";
                return Err(Error::Backup(why.to_owned()));
            }
            return Err(Error::DataLoss(why));
        }
        tracing::error!(why, "continuing with an empty store: --accept-data-loss");
    }
    let config = store::embedded::Config {
        accept_loss: settings.accept_data_loss,
        ..store::embedded::Config::default()
    };
    Ok(config.open(directory, codec)?)
}

fn read(flag: &'static str, file: &PathBuf) -> Result<Vec<u8>, Error> {
    std::fs::read(file).map_err(|error| Error::Option(flag, format!("{}: {error}", file.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn etcd() -> Options {
        Options {
            store: Some(StoreKind::Etcd),
            etcd_endpoints: Some(vec!["https://a:2379".into(), "https://b:2379".into()]),
            etcd_cafile: Some("ca".into()),
            ..Options::default()
        }
    }

    #[tokio::test]
    async fn a_store_that_vanished_is_refused_until_the_loss_is_accepted() {
        let directory = tempfile::tempdir().unwrap();
        let mut settings = Settings::resolve(Options {
            data_dir: Some(directory.path().join("data")),
            node_name: Some("n".into()),
            node_ip: "192.0.2.1".parse().ok(),
            ..Options::default()
        })
        .unwrap();
        std::fs::create_dir(&settings.data_dir).unwrap();
        let open = async |settings: &Settings| {
            let codec = ObjectCodec::new(apiserver::Registry::builtin());
            let storage = Storage::open(settings, codec).await?;
            storage.close();
            Ok::<_, Error>(())
        };
        open(&settings).await.unwrap();
        // Nothing was written yet: no data loss.
        open(&settings).await.unwrap();
        Marker::update(&settings.data_dir, |marker| marker.store = true).unwrap();
        let directory = settings.data_dir.join("store");
        std::fs::remove_dir_all(&directory).unwrap();
        std::fs::create_dir(&directory).unwrap();
        std::fs::write(directory.join("spare-0000000000000001"), "").unwrap();
        let refused = open(&settings).await.unwrap_err().to_string();
        assert!(refused.contains("--accept-data-loss"), "{refused}");
        assert!(refused.contains("/data/store is empty"), "{refused}");
        std::fs::create_dir(settings.data_dir.join(backup::RESTORING)).unwrap();
        let refused = open(&settings).await.unwrap_err().to_string();
        assert!(refused.contains("`mainstay restore` again"), "{refused}");
        settings.accept_data_loss = true;
        open(&settings).await.unwrap();
    }

    #[tokio::test]
    async fn a_server_of_a_cluster_in_etcd_does_not_start_an_empty_one() {
        let directory = tempfile::tempdir().unwrap();
        let settings = Settings::resolve(Options {
            data_dir: Some(directory.path().join("data")),
            node_name: Some("n".into()),
            node_ip: "192.0.2.1".parse().ok(),
            ..Options::default()
        })
        .unwrap();
        let open = async || {
            let codec = ObjectCodec::new(apiserver::Registry::builtin());
            let storage = Storage::open(&settings, codec).await?;
            storage.close();
            Ok::<_, Error>(())
        };
        std::fs::create_dir_all(settings.data_dir.join("pki")).unwrap();
        let token = format!("server.{}", "a".repeat(48));
        std::fs::write(settings.data_dir.join("pki/server-token"), token).unwrap();
        Marker::update(&settings.data_dir, |_| {}).unwrap();
        let refused = open().await.unwrap_err().to_string();
        assert!(
            refused.contains("a server of a cluster in etcd"),
            "{refused}"
        );
        assert!(!settings.data_dir.join("store").exists());
        // Its objects were moved here, or a backup was restored.
        Marker::update(&settings.data_dir, |marker| marker.store = true).unwrap();
        let missing = open().await.unwrap_err().to_string();
        assert!(missing.contains("are missing"), "{missing}");
    }

    #[test]
    fn several_endpoints_and_their_files_make_an_etcd_store() {
        let options = Options {
            etcd_certfile: Some("crt".into()),
            etcd_keyfile: Some("key".into()),
            ..etcd()
        };
        let expected = Config::Etcd {
            endpoints: vec!["https://a:2379".into(), "https://b:2379".into()],
            ca: Some("ca".into()),
            identity: Some(("crt".into(), "key".into())),
        };
        assert_eq!(Config::resolve(&options).ok(), Some(expected));
        let none = Config::resolve(&Options::default());
        assert_eq!(none.ok(), Some(Config::Embedded));
    }

    #[test]
    fn contradictions_are_refused_by_the_name_of_the_flag() {
        let refused = |options: Options| Config::resolve(&options).unwrap_err().to_string();
        let without_kind = Options {
            store: None,
            ..etcd()
        };
        assert!(refused(without_kind).starts_with("--etcd-endpoints"));
        let without_endpoints = Options {
            etcd_endpoints: None,
            ..etcd()
        };
        assert!(refused(without_endpoints).starts_with("--etcd-endpoints"));
        let without_ca = Options {
            etcd_cafile: None,
            ..etcd()
        };
        assert!(refused(without_ca).starts_with("--etcd-cafile"));
        let half = Options {
            etcd_certfile: Some("crt".into()),
            ..etcd()
        };
        assert!(refused(half).starts_with("--etcd-keyfile"));
        let in_the_open = Options {
            etcd_endpoints: Some(vec!["http://a:2379".into()]),
            ..etcd()
        };
        assert!(refused(in_the_open).contains("without TLS"));
    }
}
