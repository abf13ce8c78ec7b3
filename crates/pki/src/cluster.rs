//! The PKI of one cluster: the files in its directory, and what is made from them.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use parking_lot::Mutex;
use rustls::{ClientConfig, ServerConfig};
use tokio::sync::watch;

use crate::{
    Authority, Error, Issued, Kubeconfig, Leaf, Names, csr, files, jwt::Keys, kubeconfig, tls,
};

/// Every key and certificate of one cluster.
pub struct Pki {
    dir: PathBuf,
    ca: Authority,
    front_proxy_ca: Authority,
    service_account: Keys,
    leaves: BTreeMap<Leaf, Arc<Issued>>,
    /// Guards the names in certificates and the kubeconfigs to update; held while certificates are
    /// renewed, so that two renewals never write the same file.
    state: Mutex<State>,
    /// Counts the written kubeconfigs.
    written: watch::Sender<u64>,
}

struct State {
    names: Names,
    kubeconfigs: Vec<Kubeconfig>,
}

impl Pki {
    /// Loads the files in `dir` and creates those that are missing, due or have other names.
    pub fn ensure(dir: &Path, names: &Names) -> Result<Self, Error> {
        Self::ensure_at(dir, names, Timestamp::now())
    }

    /// [`Pki::ensure`] with certificates of this lifetime.
    pub fn ensure_for(dir: &Path, names: &Names, life: Duration) -> Result<Self, Error> {
        Self::make(dir, names, Timestamp::now(), life)
    }

    /// [`Pki::ensure`] at a given time.
    pub fn ensure_at(dir: &Path, names: &Names, now: Timestamp) -> Result<Self, Error> {
        Self::make(dir, names, now, csr::LIFE)
    }

    fn make(dir: &Path, names: &Names, now: Timestamp, life: Duration) -> Result<Self, Error> {
        files::private_dir(dir)?;
        let mut ca = Authority::ensure(dir, "ca", "kubernetes", now)?;
        let mut front_proxy_ca = Authority::ensure(dir, "front-proxy-ca", "front-proxy-ca", now)?;
        ca.set_life(life);
        front_proxy_ca.set_life(life);
        let service_account = Keys::ensure(dir)?;
        let mut leaves = BTreeMap::new();
        for leaf in Leaf::ALL.iter().copied().filter(|leaf| leaf.wanted(names)) {
            let authority = if leaf.of_front_proxy() {
                &front_proxy_ca
            } else {
                &ca
            };
            let issued = Issued::ensure(leaf, dir, names, authority, now)?;
            leaves.insert(leaf, Arc::new(issued));
        }
        let state = Mutex::new(State {
            names: names.clone(),
            kubeconfigs: Vec::new(),
        });
        Ok(Self {
            dir: dir.to_owned(),
            ca,
            front_proxy_ca,
            service_account,
            leaves,
            state,
            written: watch::Sender::new(0),
        })
    }

    /// The names and addresses of the serving certificates.
    pub fn names(&self) -> Names {
        self.state.lock().names.clone()
    }

    /// The cluster's CA.
    pub fn ca(&self) -> &Authority {
        &self.ca
    }

    /// The CA of front proxies.
    pub fn front_proxy_ca(&self) -> &Authority {
        &self.front_proxy_ca
    }

    /// The keys that sign and verify service account tokens.
    pub fn service_account(&self) -> &Keys {
        &self.service_account
    }

    /// One certificate with its key.
    pub fn issued(&self, leaf: Leaf) -> Result<&Arc<Issued>, Error> {
        let missing = || Error::Certificate(format!("there is no {} certificate", leaf.file()));
        self.leaves.get(&leaf).ok_or_else(missing)
    }

    /// The API server's TLS configuration: clients present no certificate, one of the cluster, or
    /// one of a front proxy. A handshake with any other fails. [`Pki::identify`] distinguishes
    /// them.
    pub fn apiserver_config(&self) -> Result<Arc<ServerConfig>, Error> {
        let mut roots = self.ca.roots()?;
        roots.extend(self.front_proxy_ca.roots()?.roots);
        Ok(Arc::new(tls::server(
            self.issued(Leaf::Apiserver)?.clone(),
            roots,
        )?))
    }

    /// The kubelet's TLS configuration: clients present no certificate or one of the cluster.
    pub fn kubelet_config(&self) -> Result<Arc<ServerConfig>, Error> {
        let issued = self.issued(Leaf::KubeletServing)?.clone();
        Ok(Arc::new(tls::server(issued, self.ca.roots()?)?))
    }

    /// A client configuration for this cluster's servers with the identity of `leaf`. ALPN is left
    /// to the caller.
    pub fn client_config(&self, leaf: Leaf) -> Result<ClientConfig, Error> {
        tls::client(self.ca.roots()?, Some(self.issued(leaf)?.clone()))
    }

    /// The client certificate of `leaf`; follows renewals.
    pub fn client_certificate(
        &self,
        leaf: Leaf,
    ) -> Result<Arc<dyn rustls::client::ResolvesClientCert>, Error> {
        Ok(self.client_config(leaf)?.client_auth_cert_resolver)
    }

    /// A kubeconfig with the identity of `leaf`, as text.
    pub fn kubeconfig(&self, leaf: Leaf, server: &str) -> Result<String, Error> {
        self.render(leaf, server, &[])
    }

    fn render(&self, leaf: Leaf, server: &str, servers: &[String]) -> Result<String, Error> {
        let issued = self.issued(leaf)?;
        let (certificate, key) = (issued.certificate_pem(), issued.key_pem());
        Ok(kubeconfig::render(
            (server, servers),
            leaf.file(),
            self.ca.pem(),
            &certificate,
            &key,
        ))
    }

    /// A kubeconfig with the server and the CA, without credentials.
    pub fn cluster_info(&self, server: &str) -> String {
        kubeconfig::render_cluster(server, self.ca.pem())
    }

    /// Writes a kubeconfig now, and again whenever its certificate is renewed.
    pub fn write_kubeconfig(&self, config: Kubeconfig) -> Result<(), Error> {
        let mut state = self.state.lock();
        self.write_one(&config)?;
        state.kubeconfigs.retain(|known| known.path != config.path);
        state.kubeconfigs.push(config);
        Ok(())
    }

    /// Sets the cluster's servers: written kubeconfigs are updated.
    pub fn set_servers(&self, servers: &[String]) -> Result<(), Error> {
        let mut state = self.state.lock();
        for config in &mut state.kubeconfigs {
            config.servers = servers.to_vec();
            self.write_one(config)?;
        }
        Ok(())
    }

    /// Sets the URL of this host's API server: written kubeconfigs are updated.
    pub fn set_server(&self, server: &str) -> Result<(), Error> {
        let mut state = self.state.lock();
        for config in &mut state.kubeconfigs {
            if config.server != server {
                server.clone_into(&mut config.server);
                self.write_one(config)?;
            }
        }
        Ok(())
    }

    fn write_one(&self, config: &Kubeconfig) -> Result<(), Error> {
        let text = self.render(config.leaf, &config.server, &config.servers)?;
        files::write(&config.path, text.as_bytes())?;
        self.written.send_modify(|count| *count += 1);
        Ok(())
    }

    /// Changes whenever a kubeconfig was written: copies of it are outdated.
    pub fn written_kubeconfigs(&self) -> watch::Receiver<u64> {
        self.written.subscribe()
    }

    /// Sets the host's names and addresses, and reissues the certificates that contain them.
    pub fn rename(&self, names: &Names, now: Timestamp) -> Result<Vec<Leaf>, Error> {
        self.state.lock().names = names.clone();
        self.renew(now)
    }

    /// Renews the certificates that are due; returns which.
    pub fn renew(&self, now: Timestamp) -> Result<Vec<Leaf>, Error> {
        let state = self.state.lock();
        let mut renewed = Vec::new();
        for (leaf, issued) in &self.leaves {
            let authority = if leaf.of_front_proxy() {
                &self.front_proxy_ca
            } else {
                &self.ca
            };
            if issued.renew(*leaf, &self.dir, &state.names, authority, now)? {
                tracing::info!(certificate = leaf.file(), until = %issued.not_after(), "certificate renewed");
                renewed.push(*leaf);
            }
        }
        for config in state
            .kubeconfigs
            .iter()
            .filter(|config| renewed.contains(&config.leaf))
        {
            self.write_one(config)?;
        }
        Ok(renewed)
    }

    /// When the next certificate is due.
    pub fn next_renewal(&self) -> Timestamp {
        self.leaves
            .values()
            .map(|issued| issued.renew_at())
            .min()
            .unwrap_or(Timestamp::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writing_a_kubeconfig_again_is_announced() {
        let directory = tempfile::tempdir().unwrap();
        let pki = Pki::ensure(&directory.path().join("pki"), &Names::default()).unwrap();
        let path = directory.path().join("admin.kubeconfig");
        let config = Kubeconfig {
            path: path.clone(),
            leaf: Leaf::Admin,
            server: "https://192.0.2.1:6443".to_owned(),
            servers: Vec::new(),
        };
        pki.write_kubeconfig(config).unwrap();
        let mut written = pki.written_kubeconfigs();
        assert!(!written.has_changed().unwrap());
        let servers = ["https://192.0.2.1:6443", "https://192.0.2.2:6443"];
        pki.set_servers(&servers.map(str::to_owned)).unwrap();
        assert!(written.has_changed().unwrap());
        written.mark_unchanged();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("https://192.0.2.2:6443"), "{text}");
        pki.set_server("https://192.0.2.1:6443").unwrap();
        assert!(!written.has_changed().unwrap(), "it is the same");
        pki.set_server("https://192.0.2.3:6443").unwrap();
        assert!(written.has_changed().unwrap());
    }
}
