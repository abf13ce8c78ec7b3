//! The measured clusters: one of our own on a temporary machine, or any by kubeconfig.

use std::{path::PathBuf, thread};

use anyhow::{Context as _, Result, anyhow, bail};
use testkit::Cluster;

use crate::{Options, life::Bench};

/// One cluster.
pub(crate) struct Target {
    name: &'static str,
    kubeconfig: PathBuf,
    /// Processes whose memory and CPU time count.
    pids: Vec<u32>,
    image: String,
    args: Vec<String>,
    /// Our own cluster, if it was started here; its API is in its own network namespace.
    own: Option<Cluster>,
}

impl Target {
    /// The clusters of the options; one that is started here has room for `pods`.
    pub(crate) fn all(options: &Options, pods: usize) -> Result<Vec<Self>> {
        let (own, kubeconfig, pids) = match &options.kubeconfig {
            Some(file) => (None, file.clone(), options.pid.clone()),
            None => {
                let own = start(pods)?;
                for archive in &options.import {
                    let archive = archive.display().to_string();
                    let imported = own.mainstay(&["image", "import", &archive]);
                    if !imported.ok {
                        bail!("{}", imported.stderr);
                    }
                }
                let kubeconfig = readable_kubeconfig(&own)?;
                let pids = vec![own.pid()];
                (Some(own), kubeconfig, pids)
            }
        };
        let mut all = vec![Self {
            name: "first",
            kubeconfig,
            pids,
            image: options.image.clone(),
            args: some(&options.args),
            own,
        }];
        if let Some(kubeconfig) = &options.compare_kubeconfig {
            all.push(Self {
                name: "second",
                kubeconfig: kubeconfig.clone(),
                pids: options.compare_pid.clone(),
                image: options.compare_image.clone(),
                args: some(&options.compare_args),
                own: None,
            });
        }
        Ok(all)
    }

    pub(crate) const fn name(&self) -> &'static str {
        self.name
    }

    /// Runs work where the API is reachable.
    pub(crate) fn run<T, F>(&self, work: impl FnOnce(Bench) -> F + Send + 'static) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>>,
    {
        let (kubeconfig, pids) = (self.kubeconfig.clone(), self.pids.clone());
        let (image, args) = (self.image.clone(), self.args.clone());
        let body = move || {
            let runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = { runtime }.enable_all().build()?;
            runtime.block_on(async move {
                let client = client::from_kubeconfig(kubeconfig)?;
                work(Bench::new(client, pids, image, args)).await
            })
        };
        let thread = match &self.own {
            Some(own) => own.machine().thread(body),
            None => thread::spawn(body),
        };
        thread.join().map_err(|_| anyhow!("the bench panicked"))?
    }
}

/// An empty argument stands for none.
fn some(args: &[String]) -> Vec<String> {
    let given = args.iter().filter(|arg| !arg.is_empty());
    given.cloned().collect()
}

/// A cluster whose node has room for that many pods.
fn start(pods: usize) -> Result<Cluster> {
    let mut cluster = Cluster::stopped(&["--log-level", "warn", "--node-cidr-mask-size", "20"]);
    let file = cluster.machine().dir().join("room.yaml");
    let text = format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: {}\n\
         evictionHard: {{memory.available: 50Mi, nodefs.available: 1%}}\n",
        pods + 20
    );
    std::fs::write(&file, text)?;
    cluster.add_flag("--kubelet-config", &file.display().to_string());
    cluster.start();
    Ok(cluster)
}

/// The kubeconfig is on a disk that only the machine sees.
fn readable_kubeconfig(cluster: &Cluster) -> Result<PathBuf> {
    let inside = cluster.kubeconfig().display().to_string();
    let shown = cluster.machine().run("cat", &[&inside]);
    if !shown.ok {
        bail!("{}", shown.stderr);
    }
    let outside = cluster.machine().dir().join("bench.kubeconfig");
    std::fs::write(&outside, shown.stdout).context("the kubeconfig")?;
    Ok(outside)
}
