//! The measured clusters: one of our own and one of upstream's programs, each on a temporary machine, or any by
//! kubeconfig.

use std::{
    path::{Path, PathBuf},
    thread,
};

use anyhow::{Context as _, Result, anyhow, bail};
use testkit::{Cluster, Machine, busybox_archive};

use crate::{
    Options,
    life::Bench,
    upstream::{self, Upstream},
};

/// The image on both sides beside upstream, and its arguments.
const IMAGE: &str = "local.test/busybox:1";
const ARGS: &[&str] = &["/bin/busybox", "sleep", "360843"];

/// One cluster.
pub(crate) struct Target {
    name: &'static str,
    kubeconfig: PathBuf,
    /// Processes whose memory and CPU time count.
    pids: Vec<u32>,
    image: String,
    args: Vec<String>,
    /// The cluster, if it was started here.
    started: Option<Started>,
}

/// A cluster whose API is in the network namespace of its machine.
enum Started {
    Own(Cluster),
    Upstream(Upstream),
}

impl Started {
    fn machine(&self) -> &Machine {
        match self {
            Self::Own(cluster) => cluster.machine(),
            Self::Upstream(upstream) => upstream.machine(),
        }
    }
}

impl Target {
    /// The clusters of the options; one that is started here has room for `pods`.
    pub(crate) fn all(options: &Options, pods: usize) -> Result<Vec<Self>> {
        let mut all = vec![Self::first(options, pods)?];
        if let Some(programs) = &options.upstream {
            all.push(Self::upstream(programs, pods)?);
            all[0].use_common_image()?;
        }
        if let Some(kubeconfig) = &options.compare_kubeconfig {
            all.push(Self {
                name: "second",
                kubeconfig: kubeconfig.clone(),
                pids: options.compare_pid.clone(),
                image: options.compare_image.clone(),
                args: some(&options.compare_args),
                started: None,
            });
        }
        Ok(all)
    }

    fn first(options: &Options, pods: usize) -> Result<Self> {
        let (started, kubeconfig, pids) = match &options.kubeconfig {
            Some(file) => (None, file.clone(), options.pid.clone()),
            None => {
                let own = start(pods)?;
                for archive in &options.import {
                    import(&own, &archive.display().to_string())?;
                }
                let kubeconfig = readable_kubeconfig(&own)?;
                let pids = vec![own.pid()];
                (Some(Started::Own(own)), kubeconfig, pids)
            }
        };
        Ok(Self {
            name: "first",
            kubeconfig,
            pids,
            image: options.image.clone(),
            args: some(&options.args),
            started,
        })
    }

    /// Upstream's programs, with the common image.
    fn upstream(programs: &Path, pods: usize) -> Result<Self> {
        let upstream = Upstream::start(programs, pods, busybox_archive)?;
        let target = Self {
            name: "upstream",
            kubeconfig: upstream.kubeconfig().to_owned(),
            pids: upstream.pids(),
            image: IMAGE.to_owned(),
            args: common_args(),
            started: Some(Started::Upstream(upstream)),
        };
        let prepared = target.with_client(|client| async { upstream::prepare(client).await });
        let Some(Started::Upstream(upstream)) = &target.started else {
            return Ok(target);
        };
        prepared.with_context(|| upstream.logs())?;
        Ok(target)
    }

    /// Uses the image that upstream has, so that both start the same program.
    fn use_common_image(&mut self) -> Result<()> {
        if let Some(Started::Own(own)) = &self.started {
            let archive = busybox_archive(&own.machine().dir().join("image"));
            import(own, &archive)?;
            (self.image, self.args) = (IMAGE.to_owned(), common_args());
            self.name = "mainstay";
        }
        Ok(())
    }

    pub(crate) const fn name(&self) -> &'static str {
        self.name
    }

    /// Runs a measurement where the API is reachable.
    pub(crate) fn run<T, F>(&self, work: impl FnOnce(Bench) -> F + Send + 'static) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>>,
    {
        let pids = self.pids.clone();
        let (image, args) = (self.image.clone(), self.args.clone());
        let node = match &self.started {
            Some(Started::Upstream(_)) => Some(upstream::NODE),
            _ => None,
        };
        self.with_client(move |client| work(Bench::new(client, pids, image, args, node)))
    }

    fn with_client<T, F>(&self, work: impl FnOnce(kube::Client) -> F + Send + 'static) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>>,
    {
        let kubeconfig = self.kubeconfig.clone();
        let body = move || {
            let runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = { runtime }.enable_all().build()?;
            runtime.block_on(async move { work(client::from_kubeconfig(kubeconfig)?).await })
        };
        let thread = match &self.started {
            Some(started) => started.machine().thread(body),
            None => thread::spawn(body),
        };
        thread.join().map_err(|_| anyhow!("the bench panicked"))?
    }
}

fn common_args() -> Vec<String> {
    ARGS.iter().map(|arg| (*arg).to_owned()).collect()
}

fn import(cluster: &Cluster, archive: &str) -> Result<()> {
    let imported = cluster.mainstay(&["image", "import", archive]);
    if !imported.ok {
        bail!("{}", imported.stderr);
    }
    Ok(())
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
