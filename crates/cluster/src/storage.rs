//! Which store the cluster's objects are kept in: the embedded engine in the data directory, or an
//! etcd cluster.

use std::{path::PathBuf, sync::Arc};

use apiserver::ObjectCodec;
use store::{
    embedded::Embedded,
    etcd::{self, Etcd},
};

use crate::{
    Error, Settings,
    options::{Options, StoreKind},
};

/// Which store, and how to reach it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Config {
    /// In the data directory.
    Embedded,
    /// In an etcd cluster.
    Etcd {
        endpoints: Vec<String>,
        /// The authority that etcd's certificates are checked against.
        ca: Option<PathBuf>,
        /// Our own certificate and its key.
        identity: Option<(PathBuf, PathBuf)>,
    },
}

impl Config {
    /// Finds contradictions among the flags.
    pub fn resolve(options: &Options) -> Result<Self, Error> {
        let refuse = |flag, why: &str| Err(Error::Option(flag, why.to_owned()));
        let endpoints = options.etcd_endpoints.clone().unwrap_or_default();
        if options.store.unwrap_or_default() == StoreKind::Embedded {
            let given = [
                ("etcd-endpoints", !endpoints.is_empty()),
                ("etcd-cafile", options.etcd_cafile.is_some()),
                ("etcd-certfile", options.etcd_certfile.is_some()),
                ("etcd-keyfile", options.etcd_keyfile.is_some()),
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
            let why = format!("{url} would be spoken to without TLS; use https://");
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
    /// Opens the store that the settings name.
    pub async fn open(settings: &Settings, codec: ObjectCodec) -> Result<Self, Error> {
        let Config::Etcd {
            endpoints,
            ca,
            identity,
        } = &settings.storage
        else {
            let directory = settings.data_dir.join("store");
            return Ok(Self::Embedded(Embedded::open(directory, codec)?));
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
        let config = etcd::Config {
            endpoints: endpoints.clone(),
            tls,
            ..etcd::Config::default()
        };
        Ok(Self::Etcd(config.connect(codec).await?))
    }

    /// For the API server.
    pub fn store(&self) -> apiserver::Store {
        match self {
            Self::Embedded(store) => store.clone(),
            Self::Etcd(store) => store.clone(),
        }
    }

    /// Ends it, after everybody who writes has ended.
    pub fn close(&self) {
        match self {
            Self::Embedded(store) => store.close(),
            Self::Etcd(store) => store.close(),
        }
    }
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
