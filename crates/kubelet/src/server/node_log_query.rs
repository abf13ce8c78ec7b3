//! `GET /logs/?query=NAME`: logs of the node's services, from the journal or else from files, as
//! `enableSystemLogQuery` permits.

use std::{path::Path, process::Stdio, time::Duration};

use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{Response, StatusCode, header};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use jiff::Timestamp;
use machinery::pattern::Pattern;
use tokio::{io::AsyncReadExt, process::Command, time::Instant};

use super::{Body, KubeletRequest, node_logs, text};
use crate::core::Core;

const MAX_TAIL_LINES: i64 = 100_000;
const MAX_SERVICE_LENGTH: usize = 256;
const MAX_SERVICES: usize = 4;
/// How long the journal is read for one request.
const TIMEOUT: Duration = Duration::from_secs(30);
const CHUNK: usize = 16 * 1024;

/// The parameters of a request.
#[derive(Debug, Default, PartialEq)]
pub(super) struct LogQuery {
    services: Vec<String>,
    files: Vec<String>,
    options: Options,
}

#[derive(Debug, Default, PartialEq)]
struct Options {
    since: Option<Timestamp>,
    until: Option<Timestamp>,
    tail_lines: Option<i64>,
    boot: Option<i64>,
    pattern: Option<String>,
}

/// Serves a query; `None` if the request is for a file or a directory by its path.
pub(super) async fn serve(core: &Core, ask: &KubeletRequest) -> Option<Response<Body>> {
    let query = match LogQuery::parse(ask) {
        Ok(None) => return None,
        Ok(Some(query)) => query,
        Err(message) => return Some(text(StatusCode::BAD_REQUEST, message)),
    };
    if ask.parts.len() > 1 {
        let message = "path not allowed in query mode\n";
        return Some(text(StatusCode::NOT_ACCEPTABLE, message));
    }
    let logs = &core.config.node_logs_dir;
    let errors = query.errors(logs);
    if !errors.is_empty() {
        let message = match errors.as_slice() {
            [one] => format!("{one}\n"),
            all => format!("[{}]\n", all.join(", ")),
        };
        return Some(text(StatusCode::NOT_ACCEPTABLE, message));
    }
    Some(match query.files.first() {
        Some(file) => {
            let parts: Vec<&str> = file.split('/').filter(|part| !part.is_empty()).collect();
            node_logs::serve(core, &parts, file)
        }
        None => query.services(logs).await,
    })
}

fn invalid(field: &str, value: impl std::fmt::Display, why: &str) -> String {
    format!("{field}: Invalid value: {value}: {why}")
}

fn list(values: &[String]) -> String {
    serde_json::to_string(values).unwrap_or_default()
}

impl LogQuery {
    /// `None` if no parameter of a query is given.
    fn parse(ask: &KubeletRequest) -> Result<Option<Self>, String> {
        let mut errors = Vec::new();
        let mut query = Self::default();
        let names = ask.all("query");
        for name in &names {
            // A slash or backslash means a file.
            if name.contains(['/', '\\']) {
                query.files.push(name.clone());
            } else if !name.trim().is_empty() {
                query.services.push(name.clone());
            }
        }
        if !names.is_empty() && query.files.is_empty() && query.services.is_empty() {
            errors.push(invalid("query", list(&names), "may not be empty"));
        }
        let given = |key: &str| ask.get(key).filter(|value| !value.is_empty());
        let mut time = |key: &str| -> Option<Timestamp> {
            let value = given(key)?;
            let parsed = value.parse();
            let why = "invalid time format";
            parsed
                .map_err(|_| errors.push(invalid(key, format!("{value:?}"), why)))
                .ok()
        };
        (query.options.since, query.options.until) = (time("sinceTime"), time("untilTime"));
        let mut number = |key: &str| -> Option<i64> {
            let value = given(key)?;
            let why = format!("strconv.Atoi: parsing {value:?}: invalid syntax");
            let parsed = value.parse();
            parsed
                .map_err(|_| errors.push(invalid(key, format!("{value:?}"), &why)))
                .ok()
        };
        (query.options.boot, query.options.tail_lines) = (number("boot"), number("tailLines"));
        query.options.pattern = given("pattern").map(str::to_owned);
        match errors.as_slice() {
            [] => Ok((query != Self::default()).then_some(query)),
            [one] => Err(format!("{one}\n")),
            all => Err(format!("[{}]\n", all.join(", "))),
        }
    }

    /// Why the query cannot be answered.
    fn errors(&self, logs: &Path) -> Vec<String> {
        let mut errors: Vec<String> = Vec::new();
        for service in &self.services {
            if let Some(why) = unsafe_name(service) {
                errors.push(invalid("query", format!("{service:?}"), &why));
            }
        }
        if self.services.len() > MAX_SERVICES {
            let count = self.services.len();
            errors.push(format!(
                "query: Too many: {count}: must have at most {MAX_SERVICES} items"
            ));
        }
        errors.extend(self.file_error(logs));
        let options = &self.options;
        if let (Some(since), Some(until)) = (options.since, options.until)
            && since > until
        {
            errors.push(invalid("untilTime", until, "must be after `sinceTime`"));
        }
        if let Some(boot) = options.boot.filter(|boot| *boot > 0) {
            errors.push(invalid("boot", boot, "must be less than 1"));
        }
        if let Some(lines) = options.tail_lines
            && !(0..=MAX_TAIL_LINES).contains(&lines)
        {
            let why = format!("must be between 0 and {MAX_TAIL_LINES}, inclusive");
            errors.push(invalid("tailLines", lines, &why));
        }
        if let Some(pattern) = &options.pattern
            && let Err(why) = Pattern::new(pattern)
        {
            errors.push(invalid("pattern", format!("{pattern:?}"), &why));
        }
        errors
    }

    fn file_error(&self, logs: &Path) -> Option<String> {
        let (files, services) = (&self.files, &self.services);
        match (files.as_slice(), services.is_empty()) {
            ([], true) => Some("query: Required value: cannot be empty with options".to_owned()),
            ([], false) => None,
            (_, false) => {
                let both = format!("\"[{}], [{}]\"", files.join(" "), services.join(" "));
                Some(invalid("query", both, "cannot specify a file and service"))
            }
            ([file], true) => {
                let why = match node_logs::open(logs, &[file]) {
                    _ if self.options != Options::default() => {
                        "cannot specify file with options".to_owned()
                    }
                    Err(error) => format!("stat {file}: {error}"),
                    Ok(_) => return None,
                };
                Some(invalid("query", list(files), &why))
            }
            _ => {
                let why = "cannot specify more than one file";
                Some(invalid("query", list(files), why))
            }
        }
    }

    /// The logs of the services: from the journal those that it knows, from files the others.
    async fn services(&self, logs: &Path) -> Response<Body> {
        let units = journal_units().await;
        let is_unit = |name: &&String| units.contains(&format!("{name}.service"));
        let (native, other): (Vec<&String>, Vec<&String>) =
            self.services.iter().partition(|name| is_unit(name));
        let mut bodies: Vec<Body> = Vec::new();
        if !native.is_empty() {
            bodies.push(journal(&self.arguments(&native)));
        }
        if !other.is_empty() && self.options != Options::default() {
            let names: Vec<&str> = other.iter().map(|name| name.as_str()).collect();
            let message = format!(
                "\noptions present and query resolved to log files for [{}]\ntry without specifying options\n",
                names.join(" ")
            );
            bodies.push(text(StatusCode::OK, message).into_body());
        } else {
            bodies.extend(other.iter().map(|name| log_file(logs, name)));
        }
        let frames = stream::iter(bodies).flat_map(BodyExt::into_data_stream);
        let frames = frames.map(|piece| piece.map(Frame::data));
        let mut response = Response::new(BodyExt::boxed(StreamBody::new(frames)));
        let kind = header::HeaderValue::from_static("text/plain;charset=UTF-8");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        response
    }

    /// The arguments of journalctl. Every value is in one word with its option, so it cannot be an option itself.
    fn arguments(&self, units: &[&String]) -> Vec<String> {
        let options = &self.options;
        let time = |time: &Timestamp| time.strftime("%Y-%m-%d %H:%M:%S").to_string();
        let mut arguments: Vec<String> = ["--utc", "--no-pager", "--output=short-precise"]
            .map(str::to_owned)
            .into();
        arguments.extend(
            options
                .since
                .iter()
                .map(|at| format!("--since={}", time(at))),
        );
        arguments.extend(
            options
                .until
                .iter()
                .map(|at| format!("--until={}", time(at))),
        );
        arguments.extend(options.tail_lines.iter().map(|n| format!("--lines={n}")));
        arguments.extend(units.iter().map(|unit| format!("--unit={unit}")));
        arguments.extend(options.pattern.iter().map(|text| format!("--grep={text}")));
        arguments.extend(options.boot.iter().map(|boot| format!("--boot={boot}")));
        arguments
    }
}

/// Why this cannot be the name of a service.
fn unsafe_name(service: &str) -> Option<String> {
    let is_safe = |c: char| c.is_ascii_alphanumeric() || "-_.:@".contains(c);
    if service.len() > MAX_SERVICE_LENGTH {
        return Some(format!("length must be less than {MAX_SERVICE_LENGTH}"));
    }
    (!service.chars().all(is_safe)).then(|| "input contains unsupported characters".to_owned())
}

/// The units that the journal has entries of; none if there is no journal.
async fn journal_units() -> Vec<String> {
    let mut command = Command::new("journalctl");
    command.args(["--field", "_SYSTEMD_UNIT"]);
    command.stdin(Stdio::null()).kill_on_drop(true);
    match tokio::time::timeout(TIMEOUT, command.output()).await {
        Ok(Ok(output)) if output.status.success() => {
            let units = String::from_utf8_lossy(&output.stdout);
            units.lines().map(str::to_owned).collect()
        }
        _ => Vec::new(),
    }
}

/// The output of journalctl, for a while.
fn journal(arguments: &[String]) -> Body {
    let mut command = Command::new("journalctl");
    command.args(arguments).kill_on_drop(true);
    command.stdin(Stdio::null()).stderr(Stdio::null());
    let spawned = command.stdout(Stdio::piped()).spawn();
    let Some((child, stdout)) = spawned.ok().and_then(|mut child| {
        let stdout = child.stdout.take()?;
        Some((child, stdout))
    }) else {
        let message = "\nerror: journal output not available\n";
        return text(StatusCode::OK, message).into_body();
    };
    let deadline = Instant::now() + TIMEOUT;
    // The child is killed when the body is dropped.
    let frames = stream::unfold((child, stdout), move |(child, mut stdout)| async move {
        let mut chunk = vec![0; CHUNK];
        let read = tokio::time::timeout_at(deadline, stdout.read(&mut chunk));
        match read.await {
            Ok(Ok(count @ 1..)) => {
                chunk.truncate(count);
                Some((Ok(Frame::data(Bytes::from(chunk))), (child, stdout)))
            }
            _ => None,
        }
    });
    BodyExt::boxed(StreamBody::new(Box::pin(frames)))
}

/// The log file of a service that does not log to the journal.
fn log_file(logs: &Path, service: &str) -> Body {
    let names = [
        service.to_owned(),
        format!("{service}.log"),
        format!("{service}/{service}.log"),
    ];
    for name in &names {
        match node_logs::open(logs, &[name]).and_then(|file| Ok((file.metadata()?, file))) {
            Ok((meta, file)) if meta.is_file() => {
                return node_logs::content(file, None, meta.len()).into_body();
            }
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => {
                let message = format!("\nerror getting log for {service}: {error}\n");
                return text(StatusCode::OK, message).into_body();
            }
        }
    }
    text(StatusCode::OK, format!("\nlog not found for {service}\n")).into_body()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(query: &str) -> Result<Option<LogQuery>, String> {
        let request = http::Request::get(format!("/logs/?{query}")).body(());
        LogQuery::parse(&KubeletRequest::new(&request.unwrap()))
    }

    fn errors(query: &str, logs: &Path) -> String {
        parse(query).unwrap().unwrap().errors(logs).join(", ")
    }

    #[test]
    fn queries_are_told_from_paths_and_invalid_values_are_refused() {
        assert_eq!(parse("").unwrap(), None);
        assert_eq!(parse("other=1&pattern=").unwrap(), None);
        let service = parse("query=kubelet&boot=-1").unwrap().unwrap();
        assert_eq!(service.services, ["kubelet"]);
        assert_eq!(service.options.boot, Some(-1));
        assert_eq!(parse("query=a/b.log").unwrap().unwrap().files, ["a/b.log"]);
        for (query, expected) in [
            (
                "query=+",
                "query: Invalid value: [\" \"]: may not be empty\n",
            ),
            (
                "query=a&sinceTime=x",
                "sinceTime: Invalid value: \"x\": invalid time format\n",
            ),
            (
                "query=a&tailLines=x&boot=y",
                "[boot: Invalid value: \"y\": strconv.Atoi: parsing \"y\": invalid syntax, \
                 tailLines: Invalid value: \"x\": strconv.Atoi: parsing \"x\": invalid syntax]\n",
            ),
        ] {
            assert_eq!(parse(query).unwrap_err(), expected);
        }
    }

    #[test]
    fn names_and_options_of_a_query_are_checked() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("apt")).unwrap();
        std::fs::write(dir.path().join("apt/history.log"), "").unwrap();
        let until = "untilTime=2026-01-01T00:00:00Z";
        for (query, expected) in [
            ("query=kubelet", ""),
            ("query=apt/history.log", ""),
            ("query=a&query=b&query=c&query=d&query=e", "Too many"),
            ("query=a;reboot", "input contains unsupported characters"),
            ("query=a&query=apt/history.log", "a file and service"),
            ("query=apt/history.log&boot=0", "file with options"),
            ("query=apt/a&query=apt/b", "more than one file"),
            ("query=apt/nothing", "No such file"),
            ("query=../secret", "query: Invalid value"),
            ("boot=0", "query: Required value"),
            ("query=a&boot=1", "must be less than 1"),
            ("query=a&tailLines=100001", "between 0 and 100000"),
            ("query=a&pattern=(", "pattern: Invalid value"),
        ] {
            let found = errors(query, dir.path());
            assert!(found.contains(expected), "{query}: {found}");
            assert_eq!(found.is_empty(), expected.is_empty(), "{query}: {found}");
        }
        let order = format!("query=a&sinceTime=2026-01-02T00:00:00Z&{until}");
        assert!(errors(&order, dir.path()).contains("must be after"));
        let long = format!("query={}", "a".repeat(257));
        assert!(errors(&long, dir.path()).contains("length must be less"));
    }

    #[test]
    fn no_value_becomes_an_option_of_journalctl() {
        let query = "query=-f&pattern=--rotate&tailLines=5&boot=-1&sinceTime=2026-01-01T00:00:00Z";
        let query = parse(query).unwrap().unwrap();
        assert_eq!(
            query.arguments(&query.services.iter().collect::<Vec<_>>()),
            [
                "--utc",
                "--no-pager",
                "--output=short-precise",
                "--since=2026-01-01 00:00:00",
                "--lines=5",
                "--unit=-f",
                "--grep=--rotate",
                "--boot=-1",
            ]
        );
    }

    #[tokio::test]
    async fn services_without_a_journal_are_read_from_files() {
        let dir = tempfile::tempdir().unwrap();
        let logs = dir.path();
        std::fs::create_dir(logs.join("mainstay-x")).unwrap();
        std::fs::write(logs.join("mainstay-x/mainstay-x.log"), "inside\n").unwrap();
        std::fs::write(logs.join("mainstay-y.log"), "beside\n").unwrap();
        let query = parse("query=mainstay-x&query=mainstay-y&query=mainstay-z");
        let response = query.unwrap().unwrap().services(logs).await;
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let expected = "inside\nbeside\n\nlog not found for mainstay-z\n";
        assert_eq!(String::from_utf8_lossy(&body), expected);
    }
}
