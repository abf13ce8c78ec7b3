//! `kubectl top node|pod`: usage from metrics.k8s.io.

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use jiff::Timestamp;
use machinery::quantity::Quantity;
use serde_json::Value;

use crate::{
    api::{Query, with_query},
    error,
    json::{list, str_of},
    output::table::Table,
    session::Session,
};

/// Pods older than this many seconds should have metrics.
const EXPECTED_AFTER: i64 = 120;
const METRICS: &str = "/apis/metrics.k8s.io/v1beta1";

/// The objects whose usage is shown.
#[derive(Debug, Subcommand)]
pub(crate) enum Top {
    /// Display resource (CPU/memory) usage of nodes
    #[command(aliases = ["nodes", "no"])]
    Node(Node),
    /// Display resource (CPU/memory) usage of pods
    #[command(aliases = ["pods", "po"])]
    Pod(Pod),
}

/// Flags of `top node`.
#[derive(Debug, Args)]
pub(crate) struct Node {
    name: Option<String>,
    /// Selector (label query) to filter on
    #[arg(short = 'l', long, value_name = "QUERY")]
    selector: Option<String>,
    /// Sort by cpu or memory
    #[arg(long, default_value = "")]
    sort_by: String,
    /// Do not print headers
    #[arg(long)]
    no_headers: bool,
    /// Show percentages of the node's capacity instead of its allocatable resources
    #[arg(long)]
    show_capacity: bool,
    /// Show swap too
    #[arg(long)]
    show_swap: bool,
    /// Ask for metrics in protobuf
    // They are always asked for in JSON.
    #[allow(dead_code)]
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    use_protocol_buffers: bool,
}

/// Flags of `top pod`.
#[derive(Debug, Args)]
pub(crate) struct Pod {
    name: Option<String>,
    /// Selector (label query) to filter on
    #[arg(short = 'l', long, value_name = "QUERY")]
    selector: Option<String>,
    /// Selector (field query) to filter on
    #[arg(long, value_name = "QUERY")]
    field_selector: Option<String>,
    /// Sort by cpu or memory
    #[arg(long, default_value = "")]
    sort_by: String,
    /// Show usage of containers within a pod
    #[arg(long)]
    containers: bool,
    /// List the requested object(s) across all namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Do not print headers
    #[arg(long)]
    no_headers: bool,
    /// Print the sum of the resource usage
    #[arg(long)]
    sum: bool,
    /// Show swap too
    #[arg(long)]
    show_swap: bool,
    /// Ask for metrics in protobuf
    // They are always asked for in JSON.
    #[allow(dead_code)]
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    use_protocol_buffers: bool,
}

impl Top {
    pub(crate) async fn run(self, session: &Session) -> Result<()> {
        match self {
            Self::Node(command) => command.run(session).await,
            Self::Pod(command) => command.run(session).await,
        }
    }
}

/// Selectors are parsed before the first request.
fn check_selectors(labels: Option<&str>, fields: Option<&str>) -> Result<()> {
    if let Some(labels) = labels {
        crate::json::selector(labels)?;
    }
    for term in fields.iter().flat_map(|fields| fields.split(',')) {
        if !term.is_empty() && !term.contains('=') {
            let fields = fields.unwrap_or_default();
            bail!("invalid selector: '{fields}'; can't understand '{term}'");
        }
    }
    Ok(())
}

/// CPU in millicores and memory in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Usage {
    cpu: i64,
    memory: i64,
    swap: i64,
}

impl Usage {
    fn from_json(value: &Value) -> Self {
        let quantity = |name: &str| {
            str_of(&value[name])
                .parse::<Quantity>()
                .unwrap_or(Quantity::from_millis(0))
        };
        Self {
            cpu: quantity("cpu").millis(),
            memory: quantity("memory").value(),
            swap: quantity("swap").value(),
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            cpu: self.cpu + other.cpu,
            memory: self.memory + other.memory,
            swap: self.swap + other.swap,
        }
    }

    fn cells(self, with_swap: bool) -> Vec<String> {
        let mut cells = vec![millicores(self.cpu), mebibytes(self.memory)];
        if with_swap {
            cells.push(mebibytes(self.swap));
        }
        cells
    }

    /// The sort key: the highest usage first.
    fn key(self, by: &str) -> std::cmp::Reverse<i64> {
        std::cmp::Reverse(match by {
            "memory" => self.memory,
            _ => self.cpu,
        })
    }
}

/// The allocatable resources of a node.
#[derive(Debug, Clone, Copy)]
struct Available {
    cpu: i64,
    memory: i64,
    /// `None` if the node does not report it.
    swap: Option<i64>,
}

impl Available {
    fn from_status(status: &Value, field: &str) -> Self {
        let usage = Usage::from_json(&status[field]);
        Self {
            cpu: usage.cpu,
            memory: usage.memory,
            swap: status["nodeInfo"]["swap"]["capacity"].as_i64(),
        }
    }
}

const UNKNOWN: &str = "<unknown>";

fn millicores(cpu: i64) -> String {
    format!("{cpu}m")
}

fn mebibytes(bytes: i64) -> String {
    format!("{}Mi", bytes / (1 << 20))
}

fn percent(used: i64, of: i64) -> String {
    let share = match of {
        0 => 0.0,
        of => used as f64 / of as f64 * 100.0,
    };
    format!("{}%", share as i64)
}

fn check_sort(by: &str) -> Result<()> {
    match by {
        "" | "cpu" | "memory" => Ok(()),
        _ => bail!("--sort-by accepts only cpu or memory"),
    }
}

async fn metrics(session: &Session, path: &str) -> Result<Vec<Value>> {
    match session.api.get(path).await {
        Ok(answer) => Ok(match answer["items"].as_array() {
            Some(items) => items.clone(),
            None => vec![answer],
        }),
        Err(error) if error::is_not_found(&error) => {
            let has_api = session.api.find(METRICS).await?.is_some();
            match has_api {
                true => Err(error),
                false => bail!("Metrics API not available"),
            }
        }
        Err(error) if error::code_is(&error, 503) => bail!("Metrics API not available"),
        Err(error) => Err(error),
    }
}

impl Node {
    async fn run(self, session: &Session) -> Result<()> {
        check_sort(&self.sort_by)?;
        if self.name.is_some() && self.selector.is_some() {
            bail!("only one of NAME or --selector can be provided");
        }
        check_selectors(self.selector.as_deref(), None)?;
        let query: Query = self
            .selector
            .iter()
            .map(|selector| ("labelSelector", selector.clone()))
            .collect();
        let suffix = self
            .name
            .as_ref()
            .map(|name| format!("/{name}"))
            .unwrap_or_default();
        let usage = metrics(
            session,
            &with_query(&format!("{METRICS}/nodes{suffix}"), &query),
        )
        .await?;
        let nodes = match &self.name {
            Some(name) => vec![session.api.get(&format!("/api/v1/nodes/{name}")).await?],
            None => {
                session
                    .api
                    .items(&with_query("/api/v1/nodes", &query))
                    .await?
            }
        };
        if usage.is_empty() {
            bail!("metrics not available yet");
        }
        let table = self.table(&nodes, &usage);
        print!("{}", padded(table).render(self.no_headers));
        Ok(())
    }

    /// One row for each node. Nodes without usage come last.
    fn table(&self, nodes: &[Value], usage: &[Value]) -> Table {
        let mut rows: Vec<(String, Usage, Available)> = Vec::new();
        let mut missing = Vec::new();
        let field = if self.show_capacity {
            "capacity"
        } else {
            "allocatable"
        };
        for node in nodes {
            let name = str_of(&node["metadata"]["name"]).to_owned();
            let available = Available::from_status(&node["status"], field);
            match usage
                .iter()
                .find(|one| one["metadata"]["name"] == name.as_str())
            {
                Some(one) => rows.push((name, Usage::from_json(&one["usage"]), available)),
                None => missing.push(name),
            }
        }
        rows.sort_by(|a, b| a.0.cmp(&b.0));
        if !self.sort_by.is_empty() {
            rows.sort_by_key(|(_, usage, _)| usage.key(&self.sort_by));
        }
        let mut table =
            Table::with_headings(&["NAME", "CPU(cores)", "CPU(%)", "MEMORY(bytes)", "MEMORY(%)"]);
        if self.show_swap {
            let swap = ["SWAP(bytes)", "SWAP(%)"].map(str::to_owned);
            table.headings.extend(swap);
        }
        let unknown = || UNKNOWN.to_owned();
        for (name, used, available) in rows {
            let mut row = vec![
                name,
                millicores(used.cpu),
                percent(used.cpu, available.cpu),
                mebibytes(used.memory),
                percent(used.memory, available.memory),
            ];
            if self.show_swap {
                row.extend(match available.swap {
                    Some(swap) => [mebibytes(used.swap), percent(used.swap, swap)],
                    None => [unknown(), unknown()],
                });
            }
            table.rows.push(row);
        }
        let cells = table.headings.len() - 1;
        table.rows.extend(missing.into_iter().map(|name| {
            let mut row = vec![name];
            row.resize_with(cells + 1, unknown);
            row
        }));
        table
    }
}

/// Pads every column to its widest cell, including the last.
fn padded(mut table: Table) -> Table {
    table.headings.push(String::new());
    table
        .rows
        .iter_mut()
        .for_each(|row| row.push(String::new()));
    table
}

impl Pod {
    async fn run(self, session: &Session) -> Result<()> {
        check_sort(&self.sort_by)?;
        if self.name.is_some() && (self.selector.is_some() || self.field_selector.is_some()) {
            bail!("only one of NAME or selector can be provided");
        }
        check_selectors(self.selector.as_deref(), self.field_selector.as_deref())?;
        let mut query: Query = self
            .selector
            .iter()
            .map(|selector| ("labelSelector", selector.clone()))
            .collect();
        query.extend(
            self.field_selector
                .iter()
                .map(|selector| ("fieldSelector", selector.clone())),
        );
        let place = match self.all_namespaces {
            true => String::new(),
            false => format!("/namespaces/{}", session.namespace),
        };
        let suffix = self
            .name
            .as_ref()
            .map(|name| format!("/{name}"))
            .unwrap_or_default();
        let pods = metrics(
            session,
            &with_query(&format!("{METRICS}{place}/pods{suffix}"), &query),
        )
        .await?;
        if pods.is_empty() {
            self.explain_nothing(session, &query).await?;
            match self.all_namespaces {
                true => eprintln!("No resources found"),
                false => eprintln!("No resources found in {} namespace.", session.namespace),
            }
            return Ok(());
        }
        print!("{}", padded(self.table(&pods)).render(self.no_headers));
        Ok(())
    }

    /// Fails if there are pods that should have metrics.
    async fn explain_nothing(&self, session: &Session, query: &Query) -> Result<()> {
        let path = format!("/api/v1/namespaces/{}/pods", session.namespace);
        let pods = session.api.items(&with_query(&path, query)).await?;
        if pods.is_empty() {
            return Ok(());
        }
        for pod in &pods {
            let metadata = &pod["metadata"];
            let created = str_of(&metadata["creationTimestamp"]);
            let created: Timestamp = created.parse().unwrap_or_default();
            let age = Timestamp::now().duration_since(created);
            if age.as_secs() > EXPECTED_AFTER {
                let nanos = i64::try_from(age.as_nanos()).unwrap_or(i64::MAX);
                bail!(
                    "Metrics not available for pod {}/{}, age: {}",
                    str_of(&metadata["namespace"]),
                    str_of(&metadata["name"]),
                    machinery::duration::format(nanos)
                );
            }
        }
        bail!("metrics not available yet")
    }

    /// The containers of a pod: by name, or by usage.
    fn sorted<'a>(&self, containers: &'a Value) -> Vec<&'a Value> {
        let mut containers: Vec<&Value> = list(containers).collect();
        match self.sort_by.as_str() {
            "" => containers.sort_by_key(|one| str_of(&one["name"])),
            by => containers.sort_by_key(|one| Usage::from_json(&one["usage"]).key(by)),
        }
        containers
    }

    fn table(&self, pods: &[Value]) -> Table {
        let total = |pod: &Value| {
            list(&pod["containers"])
                .map(|one| Usage::from_json(&one["usage"]))
                .fold(Usage::default(), Usage::plus)
        };
        let mut pods: Vec<&Value> = pods.iter().collect();
        pods.sort_by_key(|pod| {
            (
                str_of(&pod["metadata"]["namespace"]).to_owned(),
                str_of(&pod["metadata"]["name"]).to_owned(),
            )
        });
        if !self.sort_by.is_empty() {
            pods.sort_by_key(|pod| total(pod).key(&self.sort_by));
        }
        let mut headings = Vec::new();
        if self.all_namespaces {
            headings.push("NAMESPACE");
        }
        headings.push(if self.containers { "POD" } else { "NAME" });
        if self.containers {
            headings.push("NAME");
        }
        headings.extend(["CPU(cores)", "MEMORY(bytes)"]);
        if self.show_swap {
            headings.push("SWAP(bytes)");
        }
        let mut table = Table::with_headings(&headings);
        for pod in &pods {
            let mut head = Vec::new();
            if self.all_namespaces {
                head.push(str_of(&pod["metadata"]["namespace"]).to_owned());
            }
            head.push(str_of(&pod["metadata"]["name"]).to_owned());
            match self.containers {
                false => table
                    .rows
                    .push([head, total(pod).cells(self.show_swap)].concat()),
                true => {
                    for container in self.sorted(&pod["containers"]) {
                        let name = vec![str_of(&container["name"]).to_owned()];
                        let cells = Usage::from_json(&container["usage"]).cells(self.show_swap);
                        table.rows.push([head.clone(), name, cells].concat());
                    }
                }
            }
        }
        if self.sum {
            let sum = pods
                .iter()
                .map(|pod| total(pod))
                .fold(Usage::default(), Usage::plus);
            // As upstream, which counts columns with their headings.
            let mut width = if self.show_swap { 4 } else { 3 };
            if !self.no_headers {
                width += usize::from(self.all_namespaces) + usize::from(self.containers);
            }
            let blank = |count: usize| vec![String::new(); count];
            let marks = vec!["________".to_owned(); 2];
            table.rows.push([blank(width - 2), marks].concat());
            let cells = sum.cells(self.show_swap);
            table.rows.push([blank(width - 2), cells].concat());
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn percentages_are_rounded_down_and_unknown_swap_is_shown() {
        assert_eq!(
            (percent(1999, 2000), percent(5, 0)),
            ("99%".into(), "0%".into())
        );
        let status = json!({"allocatable": {"cpu": "2", "memory": "1Gi"}});
        let available = Available::from_status(&status, "allocatable");
        assert_eq!((available.cpu, available.swap), (2000, None));
        let status = json!({"nodeInfo": {"swap": {"capacity": 1048576}}});
        assert_eq!(
            Available::from_status(&status, "capacity").swap,
            Some(1 << 20)
        );
        assert!(check_sort("swap").is_err() && check_sort("memory").is_ok());
    }

    #[test]
    fn containers_are_summed_and_sorted() {
        let pod = |name: &str, cpu: &str| {
            json!({"metadata": {"name": name, "namespace": "a"}, "containers": [
                {"name": "x", "usage": {"cpu": cpu, "memory": "10Mi"}}, {"name": "y", "usage": {"cpu": "1m", "memory": "2048Ki"}}]})
        };
        let flags = |containers: bool, sort_by: &str| Pod {
            name: None,
            selector: None,
            field_selector: None,
            sort_by: sort_by.into(),
            containers,
            all_namespaces: false,
            no_headers: false,
            sum: false,
            use_protocol_buffers: true,
            show_swap: false,
        };
        let pods = [pod("a", "5m"), pod("b", "250m")];
        assert_eq!(
            flags(false, "cpu").table(&pods).render(false),
            "NAME   CPU(cores)   MEMORY(bytes)\nb      251m         12Mi\na      6m           12Mi\n"
        );
        assert_eq!(flags(true, "").table(&pods).rows.len(), 4);
        let first = |sort_by: &str| flags(true, sort_by).table(&[pod("b", "0")]).rows[0][1].clone();
        assert_eq!((first("").as_str(), first("cpu").as_str()), ("x", "y"));
        let summed = Pod {
            sum: true,
            ..flags(false, "")
        };
        let rows = summed.table(&pods).rows;
        assert_eq!(rows[2], ["", "________", "________"]);
        assert_eq!(rows[3], ["", "257m", "24Mi"]);
    }
}
