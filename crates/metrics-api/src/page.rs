//! Parses a kubelet's resource metrics in Prometheus' text format: only the families of usage.
//! Invalid lines are skipped.

use std::collections::{BTreeMap, HashMap};

use crate::series::Point;

/// The namespace and name of a pod.
pub(crate) type PodName = (Box<str>, Box<str>);

/// The contents of a page.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Page {
    pub(crate) node: Option<Point>,
    /// Points of containers by pod and container name.
    pub(crate) pods: HashMap<PodName, BTreeMap<Box<str>, Point>>,
}

/// An incomplete point: samples of one container come in several families.
#[derive(Debug, Default)]
struct Parts {
    at: Option<i64>,
    start: Option<i64>,
    cpu: Option<u64>,
    memory: Option<u64>,
}

impl Parts {
    /// A point needs cpu time and memory.
    fn point(&self, now: i64) -> Option<Point> {
        Some(Point {
            at: self.at.unwrap_or(now),
            start: self.start,
            cpu: self.cpu?,
            memory: self.memory?,
        })
    }
}

/// Parses a page. `now` (milliseconds) is the time of samples without a timestamp.
pub(crate) fn parse(text: &str, now: i64) -> Page {
    let mut node = Parts::default();
    let mut containers: HashMap<(PodName, Box<str>), Parts> = HashMap::new();
    for sample in text.lines().filter_map(Sample::read) {
        match sample.name {
            "node_cpu_usage_seconds_total" => node.set_cpu(&sample),
            "node_memory_working_set_bytes" => node.memory = sample.whole(1.0),
            "container_cpu_usage_seconds_total"
            | "container_memory_working_set_bytes"
            | "container_start_time_seconds" => {
                let Some(key) = container_of(sample.labels) else {
                    continue;
                };
                let parts = containers.entry(key).or_default();
                match sample.name {
                    "container_cpu_usage_seconds_total" => parts.set_cpu(&sample),
                    "container_memory_working_set_bytes" => parts.memory = sample.whole(1.0),
                    _ => parts.start = sample.whole(1e3).and_then(|at| i64::try_from(at).ok()),
                }
            }
            _ => {}
        }
    }
    let mut page = Page {
        node: node.point(now),
        ..Page::default()
    };
    for ((pod, container), parts) in containers {
        if let Some(point) = parts.point(now) {
            page.pods.entry(pod).or_default().insert(container, point);
        }
    }
    page
}

impl Parts {
    fn set_cpu(&mut self, sample: &Sample<'_>) {
        self.cpu = sample.whole(1e9);
        self.at = sample.at;
    }
}

/// One line: name, raw labels, value and time in milliseconds.
struct Sample<'a> {
    name: &'a str,
    labels: &'a str,
    value: f64,
    at: Option<i64>,
}

impl<'a> Sample<'a> {
    fn read(line: &'a str) -> Option<Self> {
        if line.starts_with('#') {
            return None;
        }
        let (name, labels, rest) = match line.split_once('{') {
            Some((name, rest)) => {
                let end = end_of_labels(rest)?;
                (name, &rest[..end], &rest[end + 1..])
            }
            None => {
                let (name, rest) = line.split_once(' ')?;
                (name, "", rest)
            }
        };
        let mut words = rest.split_ascii_whitespace();
        let value = words.next()?.parse().ok()?;
        let at = words.next().and_then(|at| at.parse().ok());
        Some(Self {
            name,
            labels,
            value,
            at,
        })
    }

    /// The value in a smaller unit; `None` if it is invalid.
    fn whole(&self, parts: f64) -> Option<u64> {
        let value = self.value * parts;
        (value.is_finite() && value >= 0.0).then_some(value as u64)
    }
}

/// The position of the unquoted closing brace.
fn end_of_labels(text: &str) -> Option<usize> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            b'}' if !is_quoted => return Some(at),
            _ => {}
        }
    }
    None
}

/// The container of the labels. Names of Kubernetes' objects need no unescaping.
fn container_of(labels: &str) -> Option<(PodName, Box<str>)> {
    let (mut namespace, mut pod, mut container) = (None, None, None);
    let mut rest = labels;
    while let Some((name, after)) = rest.split_once("=\"") {
        let (value, after) = after.split_once('"')?;
        match name.trim_start_matches([',', ' ']) {
            "namespace" => namespace = Some(value),
            "pod" => pod = Some(value),
            "container" => container = Some(value),
            _ => {}
        }
        rest = after;
    }
    Some(((namespace?.into(), pod?.into()), container?.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = r#"# HELP container_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the container in core-seconds
# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container="app",namespace="default",pod="web-1"} 4.710169 1633253812125
container_cpu_usage_seconds_total{container="side",namespace="default",pod="web-1"} 1e-3
container_memory_working_set_bytes{container="app",namespace="default",pod="web-1"} 1.253376e+06 1633253812125
container_memory_working_set_bytes{container="side",namespace="default",pod="web-1"} 4096
container_start_time_seconds{container="app",namespace="default",pod="web-1"} 1.633253800125e+09
container_cpu_usage_seconds_total{container="no-memory",namespace="a",pod="b"} 1
node_cpu_usage_seconds_total 357.35491 1633253809720
node_memory_working_set_bytes 1.616273408e+09 1633253809720
pod_cpu_usage_seconds_total{namespace="default",pod="web-1"} 4.67812 1633253803935
resource_scrape_error 0
"#;

    #[test]
    fn a_page_is_read_by_container_and_node() {
        let page = parse(PAGE, 7);
        let node = Point {
            at: 1_633_253_809_720,
            start: None,
            cpu: 357_354_910_000,
            memory: 1_616_273_408,
        };
        assert_eq!(page.node, Some(node));
        assert_eq!(page.pods.len(), 1, "a container without memory is no point");
        let pod = &page.pods[&("default".into(), "web-1".into())];
        let app = Point {
            at: 1_633_253_812_125,
            start: Some(1_633_253_800_125),
            cpu: 4_710_169_000,
            memory: 1_253_376,
        };
        assert_eq!(pod["app"], app);
        assert_eq!((pod["side"].at, pod["side"].cpu), (7, 1_000_000));
    }

    #[test]
    fn invalid_metric_lines_are_skipped() {
        for line in [
            "",
            "{",
            "node_cpu_usage_seconds_total",
            "node_cpu_usage_seconds_total x",
            "node_cpu_usage_seconds_total NaN",
            "node_cpu_usage_seconds_total -1",
            "container_cpu_usage_seconds_total{container=\"a\" 1",
            "container_cpu_usage_seconds_total{container=\"a\",pod=\"b} 1",
            "container_cpu_usage_seconds_total{} 1",
        ] {
            assert_eq!(parse(line, 0), Page::default(), "{line}");
        }
        let odd = "node_cpu_usage_seconds_total{x=\"}\\\"}\"} 1 5\nnode_memory_working_set_bytes 2";
        assert_eq!(parse(odd, 0).node.unwrap().at, 5);
    }
}
