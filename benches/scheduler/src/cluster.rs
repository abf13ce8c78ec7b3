//! Scheduling with an API server: objects are written, the scheduler starts, and a watch shows how
//! fast pods get nodes.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use http_body_util::BodyExt;
use kube::{Client, client::Body};

use crate::{
    Load, churn, objects,
    process::{self, Memory},
    shapes::{SHAPES, Shape},
    subject::{Options, Server, Subject},
};

/// A run ends if no pod got a node for this long.
const PATIENCE: Duration = Duration::from_secs(180);

/// The result of a run.
#[derive(Debug, Clone, Copy)]
struct Seen {
    placed: usize,
    rate: f64,
    /// CPU time of the server and the scheduler per pod.
    cpu: Duration,
    /// The scheduler's memory; the server's if the scheduler is in its process.
    memory: Memory,
}

/// Measures every shape whose pods fit.
pub(crate) async fn run(load: &Load, options: &Options) -> Result<()> {
    println!(
        "{:<28} {:<16} {:>9} {:>8} {:>10} {:>12} {:>8} {:>8}",
        "shape", "scheduler", "pods/s", "placed", "us of CPU", "MB (anon)", "x floor", "ratio"
    );
    for shape in SHAPES
        .iter()
        .filter(|shape| shape.fits && load.wants(shape))
    {
        match &options.kubeconfig {
            Some(path) => {
                let client = client::from_kubeconfig(path)?;
                let seen = elsewhere(&client, load, shape, options).await?;
                print(shape, "the cluster's", &seen, None);
            }
            None => own(load, shape, options).await?,
        }
    }
    Ok(())
}

async fn own(load: &Load, shape: &Shape, options: &Options) -> Result<()> {
    let mut first: Option<f64> = None;
    for subject in options.subjects() {
        let seen = on_own_server(load, shape, options, &subject).await?;
        let ratio = first.map(|first| first / seen.rate);
        print(shape, subject.name(), &seen, ratio);
        first.get_or_insert(seen.rate);
    }
    Ok(())
}

fn print(shape: &Shape, subject: &str, seen: &Seen, ratio: Option<f64>) {
    let floor = shape.floor.map_or(String::new(), |floor| {
        format!("{:.1}", seen.rate / f64::from(floor))
    });
    let ratio = ratio.map_or(String::new(), |ratio| format!("{ratio:.1}"));
    println!(
        "{:<28} {subject:<16} {:>9.0} {:>8} {:>10} {:>12} {floor:>8} {ratio:>8}",
        shape.name,
        seen.rate,
        seen.placed,
        seen.cpu.as_micros(),
        seen.memory,
    );
}

async fn on_own_server(
    load: &Load,
    shape: &Shape,
    options: &Options,
    subject: &Subject,
) -> Result<Seen> {
    let mut server = Server::start(&options.data)?;
    let client = server.admin()?;
    objects::prepare(&client, load).await?;
    objects::before(&client, load, shape).await?;
    let counter = Counter::default();
    let begin = newest(&client).await?;
    objects::measured(&client, load, shape).await?;
    let (own, _) = server.processes();
    let cpu = process::cpu(&[own]);
    server.schedule(subject)?;
    let wanted = load.measured(shape);
    let all = async {
        tokio::select! {
            watched = counter.watch(&client, &begin) => watched,
            churned = churn::run(&client, shape.churn, load.nodes) => churned,
            () = counter.reach(wanted) => Ok(()),
        }
    };
    all.await?;
    let (own, scheduler) = server.processes();
    let processes: Vec<u32> = [own].into_iter().chain(scheduler).collect();
    let spent = process::cpu(&processes).saturating_sub(cpu);
    let memory = Memory::of(&[scheduler.unwrap_or(own)]);
    if counter.count() == 0 {
        bail!("no pod got a node\n{}", server.log());
    }
    Ok(counter.seen(spent, memory))
}

async fn elsewhere(client: &Client, load: &Load, shape: &Shape, options: &Options) -> Result<Seen> {
    objects::prepare(client, load).await?;
    objects::before(client, load, shape).await?;
    let counter = Counter::default();
    let (begin, wanted) = (newest(client).await?, load.measured(shape));
    let cpu = process::cpu(&options.pid);
    let create = async {
        objects::measured(client, load, shape).await?;
        std::future::pending::<Result<()>>().await
    };
    counter.start();
    tokio::select! {
        watched = counter.watch(client, &begin) => watched,
        churned = churn::run(client, shape.churn, load.nodes) => churned,
        created = create => created,
        () = counter.reach(wanted) => Ok(()),
    }?;
    let spent = process::cpu(&options.pid).saturating_sub(cpu);
    let memory = Memory::of(&options.pid);
    let seen = counter.seen(spent, memory);
    objects::remove(client, load).await?;
    Ok(seen)
}

/// The newest resourceVersion.
async fn newest(client: &Client) -> Result<String> {
    let path = format!("{}?limit=1", objects::pods_path());
    let answer = objects::send(client, http::Method::GET, &path, &serde_json::Value::Null).await?;
    let list: serde_json::Value = serde_json::from_str(&answer)?;
    let version = &list["metadata"]["resourceVersion"];
    Ok(version.as_str().unwrap_or_default().to_owned())
}

/// Counts pods that got a node, from a watch.
#[derive(Debug)]
struct Counter {
    begun: Instant,
    count: AtomicUsize,
    /// Microseconds after `begun` of the first and the last.
    first: AtomicUsize,
    last: AtomicUsize,
    /// The number at the first event.
    at_first: AtomicUsize,
}

impl Default for Counter {
    fn default() -> Self {
        Self {
            begun: Instant::now(),
            count: AtomicUsize::new(0),
            first: AtomicUsize::new(0),
            last: AtomicUsize::new(0),
            at_first: AtomicUsize::new(0),
        }
    }
}

/// The beginning of an event of a pod that got its node.
const ADDED: &[u8] = b"{\"type\":\"ADDED\"";

impl Counter {
    fn now(&self) -> usize {
        usize::try_from(self.begun.elapsed().as_micros()).unwrap_or(usize::MAX)
    }

    /// The rate counts from now on.
    fn start(&self) {
        self.first.store(self.now(), Ordering::Relaxed);
    }

    fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    fn add(&self, more: usize) {
        if more == 0 {
            return;
        }
        let (now, count) = (self.now(), self.count.fetch_add(more, Ordering::Relaxed));
        if self.first.load(Ordering::Relaxed) == 0 {
            self.first.store(now, Ordering::Relaxed);
            self.at_first.store(count + more, Ordering::Relaxed);
        }
        self.last.store(now, Ordering::Relaxed);
    }

    /// Watches the metadata of pods with a node; events are counted, not parsed.
    async fn watch(&self, client: &Client, version: &str) -> Result<()> {
        let path = format!(
            "{}?watch=1&fieldSelector=spec.nodeName%21%3D&resourceVersion={version}",
            objects::pods_path()
        );
        // Only metadata: the watch takes CPU time of the machine that schedules.
        let request = http::Request::get(path)
            .header(
                http::header::ACCEPT,
                "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
            )
            .body(Body::empty())?;
        let answer = client.send(request).await?;
        if !answer.status().is_success() {
            bail!("the watch was answered with {}", answer.status());
        }
        let (mut body, mut rest) = (answer.into_body(), Vec::new());
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame?.into_data() else {
                continue;
            };
            rest.extend_from_slice(&data);
            let mut found = 0;
            let complete = rest
                .iter()
                .rposition(|byte| *byte == b'\n')
                .map_or(0, |at| at + 1);
            for line in rest[..complete].split(|byte| *byte == b'\n') {
                found += usize::from(line.starts_with(ADDED));
            }
            rest.drain(..complete);
            self.add(found);
        }
        bail!("the watch ended")
    }

    /// Resolves when this many pods have a node, or none got one for long.
    async fn reach(&self, wanted: usize) {
        let (mut known, mut since) = (0, Instant::now());
        loop {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let count = self.count();
            if count >= wanted {
                return;
            }
            if count != known {
                (known, since) = (count, Instant::now());
            } else if since.elapsed() > PATIENCE {
                return;
            }
        }
    }

    fn seen(&self, spent: Duration, memory: Memory) -> Seen {
        let load = |number: &AtomicUsize| number.load(Ordering::Relaxed);
        let count = load(&self.count);
        let micros = load(&self.last).saturating_sub(load(&self.first)).max(1);
        let counted = count - load(&self.at_first).min(count);
        Seen {
            placed: count,
            rate: counted as f64 * 1e6 / micros as f64,
            cpu: spent / u32::try_from(count.max(1)).unwrap_or(1),
            memory,
        }
    }
}
