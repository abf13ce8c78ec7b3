//! `mainstay status`: the components of a cluster, its nodes, certificates and store, and problems.

use std::{fmt, io, path::Path, process::ExitCode};

use anyhow::{Context, Result};
use client::kube;
use cluster::{Options, marker::Marker};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{ResourceExt, api::ListParams};
use machinery::time::human_duration;
use serde::Serialize;

use crate::cli::{self, Output};

/// Certificates are renewed long before: one that expires this soon was not renewed.
const EXPIRES_SOON: i64 = 7 * 24 * 3600;
/// Also those of a short lifetime, of which at most a third is left then.
const RENEWED_LIFE: i64 = 4;
/// A disk with this much free is not nearly full, however large it is.
const ENOUGH: u64 = 1 << 30;
/// On a smaller disk one part in this many is enough.
const ENOUGH_PART: u64 = 10;
/// How often the store must fit into what is free: it is written anew when it is compacted and backed up.
const COPIES: u64 = 2;

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    data_dir: String,
    /// `None` if the server does not answer.
    version: Option<String>,
    parts: Vec<Part>,
    nodes: Vec<NodeStatus>,
    certificates: Vec<Certificate>,
    store: Option<Store>,
    problems: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Part {
    name: String,
    ready: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    why: String,
}

#[derive(Debug, Serialize)]
struct NodeStatus {
    name: String,
    ready: bool,
    version: String,
}

#[derive(Debug, Serialize)]
struct Certificate {
    name: String,
    #[serde(skip)]
    issued: Timestamp,
    expires: Timestamp,
}

impl Certificate {
    /// Whether it should have been renewed before.
    fn is_overdue(&self, now: Timestamp) -> bool {
        let life = self.expires.as_second() - self.issued.as_second();
        let left = self.expires.as_second() - now.as_second();
        left < EXPIRES_SOON.min(life / RENEWED_LIFE)
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Store {
    bytes: u64,
    disk_free: u64,
    disk_size: u64,
}

impl Store {
    fn is_nearly_full(&self) -> bool {
        let enough = (self.disk_size / ENOUGH_PART).min(ENOUGH);
        self.disk_free < enough.max(COPIES * self.bytes)
    }
}

/// Prints it; the exit code says whether all is well.
pub(super) fn run(asked: &cli::Status) -> Result<ExitCode> {
    let options = Options {
        data_dir: asked.cluster.data_dir.clone(),
        ..Options::default()
    };
    let data_dir = cluster::settings::data_dir(&options)?;
    let pki = std::fs::read_dir(data_dir.join("pki"));
    let is_absent = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let is_missing = pki.as_ref().is_err_and(is_absent);
    if is_missing && let Some(name) = cluster::agent::joined_name(&data_dir)? {
        anyhow::bail!(
            "this machine is the node {name:?} of a cluster: run `mainstay status` on one of its servers"
        );
    }
    anyhow::ensure!(
        !is_missing,
        "there is no data of a server in {}; `mainstay up` starts a cluster, --data-dir selects another directory",
        data_dir.display()
    );
    pki.with_context(|| format!("cannot read {}", data_dir.display()))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let status = runtime.block_on(status(&data_dir))?;
    match asked.output {
        Output::Text => print!("{status}"),
        Output::Json => println!("{}", serde_json::to_string_pretty(&status)?),
    }
    Ok(match status.problems.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

async fn status(data_dir: &Path) -> Result<Status> {
    let mut status = Status {
        data_dir: data_dir.display().to_string(),
        certificates: certificates(&data_dir.join("pki"))?,
        store: store(&data_dir.join("store")),
        ..Status::default()
    };
    let config = client::Kubeconfig::read(&data_dir.join("admin.kubeconfig"))?;
    let marker = Marker::read(data_dir).ok().flatten().unwrap_or_default();
    let start = start_command(&marker, super::install::is_installed());
    let client = config.client(None)?;
    match client.apiserver_version().await {
        Ok(version) => {
            status.version = Some(version.git_version);
            status.parts = parts(&readiness(&client).await?);
            let nodes: client::Api<Node> = client::Api::all(client);
            let nodes = nodes.list(&ListParams::default()).await?;
            status.nodes = nodes.iter().map(node).collect();
        }
        Err(error) => {
            let server = &config.resolve(None)?.1.server;
            status
                .problems
                .push(unanswered(server, &start, &error.into()));
        }
    }
    status.problems.extend(problems(&status, Timestamp::now()));
    Ok(status)
}

/// The last cause says most; the causes before it are the layers of the client.
fn unanswered(server: &str, start: &str, error: &anyhow::Error) -> String {
    let cause = error.root_cause();
    match cause.downcast_ref::<io::Error>().map(io::Error::kind) {
        Some(io::ErrorKind::ConnectionRefused) => format!(
            "the server at {server} does not answer (connection refused): start it with `{start}`"
        ),
        _ => format!("the server at {server} does not answer: {cause}"),
    }
}

/// How a server is started that is not running.
fn start_command(marker: &Marker, is_installed: bool) -> String {
    match (is_installed, marker.command.as_str()) {
        (true, _) => "systemctl start mainstay".to_owned(),
        (false, "") => "mainstay up".to_owned(),
        (false, command) => format!("mainstay {command}"),
    }
}

async fn readiness(client: &kube::Client) -> Result<String> {
    let request = http::Request::get("/readyz?verbose").body(Vec::new())?;
    match client.request_text(request).await {
        Ok(text) => Ok(text),
        // An unready server returns an error with the same text.
        Err(kube::Error::Api(status)) => Ok(status.message.clone()),
        Err(error) => Err(error).context("/readyz"),
    }
}

/// The services in the response of `/readyz?verbose`; upstream's post-start hooks are omitted
/// unless they failed.
fn parts(readiness: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    for line in readiness.lines() {
        let (ready, rest) = match (line.strip_prefix("[+]"), line.strip_prefix("[-]")) {
            (Some(rest), _) => (true, rest),
            (_, Some(rest)) => (false, rest),
            _ => continue,
        };
        let (name, why) = rest.split_once(' ').unwrap_or((rest, ""));
        let why = if ready { "" } else { why };
        match name.strip_prefix("service/") {
            None if ready => {}
            part => parts.push(Part {
                name: part.unwrap_or(name).to_owned(),
                ready,
                why: why.to_owned(),
            }),
        }
    }
    parts
}

fn node(node: &Node) -> NodeStatus {
    let status = node.status.as_ref();
    let mut conditions = status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let version = status.and_then(|status| status.node_info.as_ref());
    NodeStatus {
        name: node.name_any(),
        ready: conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True"),
        version: version
            .map(|info| info.kubelet_version.clone())
            .unwrap_or_default(),
    }
}

fn certificates(dir: &Path) -> Result<Vec<Certificate>> {
    let mut found = Vec::new();
    let entries =
        std::fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path
            .file_stem()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        if path.extension().is_some_and(|end| end == "crt")
            && let Some((issued, expires)) = pki::csr::validity(&std::fs::read(&path)?)
        {
            found.push(Certificate {
                name: name.to_owned(),
                issued,
                expires,
            });
        }
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(found)
}

/// `None` if the objects are in etcd.
fn store(dir: &Path) -> Option<Store> {
    let used = stdx::disk_usage::DiskUsage::measure(dir).ok()?;
    let disk = nix::sys::statvfs::statvfs(dir).ok()?;
    Some(Store {
        bytes: used.bytes,
        disk_free: disk.blocks_available() * disk.fragment_size(),
        disk_size: disk.blocks() * disk.fragment_size(),
    })
}

fn problems(status: &Status, now: Timestamp) -> Vec<String> {
    let mut problems = Vec::new();
    for part in status.parts.iter().filter(|part| !part.ready) {
        problems.push(format!("{} is not ready: {}", part.name, part.why));
    }
    for node in status.nodes.iter().filter(|node| !node.ready) {
        problems.push(format!(
            "node {} is not ready: mainstay why node/{}",
            node.name, node.name
        ));
    }
    for certificate in &status.certificates {
        let left = certificate.expires.as_second() - now.as_second();
        if left < 0 {
            problems.push(format!("certificate {} has expired", certificate.name));
        } else if certificate.is_overdue(now) {
            let left = human_duration(left);
            problems.push(format!(
                "certificate {} expires in {left} and was not renewed",
                certificate.name
            ));
        }
    }
    if let Some(store) = &status.store
        && store.is_nearly_full()
    {
        let (free, size) = (bytes(store.disk_free), bytes(store.disk_size));
        problems.push(format!(
            "the disk of the store is nearly full: {free} of {size} is free"
        ));
    }
    problems
}

fn bytes(amount: u64) -> String {
    const UNITS: [&str; 4] = ["B", "KiB", "MiB", "GiB"];
    let mut value = amount as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let decimals = usize::from(unit > 0 && value < 100.0);
    format!("{value:.decimals$} {}", UNITS[unit])
}

impl fmt::Display for Status {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = self.version.as_deref().unwrap_or("not running");
        writeln!(out, "server        {version}, data in {}", self.data_dir)?;
        if let Some(store) = &self.store {
            let (used, free) = (bytes(store.bytes), bytes(store.disk_free));
            writeln!(out, "store         {used}, {free} free on its disk")?;
        }
        let ready = self.parts.iter().filter(|part| part.ready).count();
        if !self.parts.is_empty() {
            let names: Vec<&str> = self.parts.iter().map(|part| part.name.as_str()).collect();
            writeln!(
                out,
                "components    {ready} of {} ready: {}",
                names.len(),
                names.join(", ")
            )?;
        }
        for (n, node) in self.nodes.iter().enumerate() {
            let label = if n == 0 { "nodes" } else { "" };
            let ready = if node.ready { "Ready" } else { "NotReady" };
            writeln!(out, "{label:<13} {}  {ready}  {}", node.name, node.version)?;
        }
        if let Some(first) = self
            .certificates
            .iter()
            .min_by_key(|certificate| certificate.expires)
        {
            let (count, name) = (self.certificates.len(), &first.name);
            let date = first.expires.strftime("%Y-%m-%d");
            writeln!(
                out,
                "certificates  {count}; the first to expire is {name}, on {date}"
            )?;
        }
        if self.problems.is_empty() {
            return writeln!(out, "all is well");
        }
        for problem in &self.problems {
            writeln!(out, "PROBLEM       {problem}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_the_services_and_whatever_failed() {
        let text = "[+]ping ok\n[+]service/dns ok\n[-]service/proxy failed: reason withheld\n[-]etcd failed\nreadyz check failed\n";
        let parts = parts(text);
        let shown: Vec<_> = parts
            .iter()
            .map(|part| (&*part.name, part.ready, &*part.why))
            .collect();
        let expected = [
            ("dns", true, ""),
            ("proxy", false, "failed: reason withheld"),
            ("etcd", false, "failed"),
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn a_refused_connection_names_the_server_and_the_command_that_starts_it() {
        let refused = io::Error::from_raw_os_error(111);
        let error = anyhow::Error::new(refused).context("client error (Connect)");
        let expected = "the server at https://a:6443 does not answer (connection refused): start it with `mainstay up`";
        assert_eq!(
            unanswered("https://a:6443", "mainstay up", &error),
            expected
        );
        let error = anyhow::anyhow!("expired certificate").context("client error (Connect)");
        let expected = "the server at https://a:6443 does not answer: expired certificate";
        assert_eq!(
            unanswered("https://a:6443", "mainstay up", &error),
            expected
        );
    }

    #[test]
    fn a_server_is_started_with_the_command_that_started_it_before() {
        for (command, is_installed, expected) in [
            ("", false, "mainstay up"),
            ("up", false, "mainstay up"),
            ("server", false, "mainstay server"),
            ("server", true, "systemctl start mainstay"),
        ] {
            let marker = Marker {
                command: command.to_owned(),
                ..Marker::default()
            };
            assert_eq!(start_command(&marker, is_installed), expected);
        }
    }

    #[test]
    fn every_problem_is_named() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let certificate = |name: &str, issued: &str, expires: &str| Certificate {
            name: name.to_owned(),
            issued: issued.parse().unwrap(),
            expires: expires.parse().unwrap(),
        };
        let last_year = "2025-01-01T00:00:00Z";
        let status = Status {
            parts: parts("[-]service/proxy failed\n"),
            nodes: vec![NodeStatus {
                name: "n1".to_owned(),
                ready: false,
                version: String::new(),
            }],
            certificates: vec![
                certificate("old", last_year, "2025-12-31T00:00:00Z"),
                certificate("soon", last_year, "2026-01-03T00:00:00Z"),
                certificate("fine", last_year, "2026-06-01T00:00:00Z"),
                // With --cluster-signing-duration 24h.
                certificate("short", "2025-12-31T08:00:00Z", "2026-01-01T08:00:00Z"),
                certificate("late", "2025-12-31T05:00:00Z", "2026-01-01T05:00:00Z"),
            ],
            store: Some(Store {
                bytes: 1,
                disk_free: 5,
                disk_size: 100,
            }),
            ..Status::default()
        };
        let expected = [
            "proxy is not ready: failed",
            "node n1 is not ready: mainstay why node/n1",
            "certificate old has expired",
            "certificate soon expires in 2d and was not renewed",
            "certificate late expires in 5h and was not renewed",
            "the disk of the store is nearly full: 5 B of 100 B is free",
        ];
        assert_eq!(problems(&status, now), expected);
    }

    #[test]
    fn a_large_disk_is_full_when_the_store_has_no_room_left() {
        const GIB: u64 = 1 << 30;
        for (bytes, disk_free, disk_size, expected) in [
            (GIB, 16 * GIB, 252 * GIB, false),
            (9 * GIB, 16 * GIB, 252 * GIB, true),
            (1, GIB - 1, 252 * GIB, true),
            (1, GIB / 2, 4 * GIB, false),
            (1, GIB / 4, 4 * GIB, true),
        ] {
            let store = Store {
                bytes,
                disk_free,
                disk_size,
            };
            assert_eq!(store.is_nearly_full(), expected, "{store:?}");
        }
    }

    #[test]
    fn amounts_are_short() {
        for (amount, shown) in [
            (5, "5 B"),
            (2048, "2.0 KiB"),
            (200 << 20, "200 MiB"),
            (3 << 40, "3072 GiB"),
        ] {
            assert_eq!(bytes(amount), shown);
        }
    }
}
