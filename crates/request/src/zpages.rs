//! `/statusz` and `/flagz`: what a component is and the flags it was started with, as text for people or as
//! `config.k8s.io` objects. Pure: the process' facts come from [`Process`].

use http::{HeaderMap, header};
use machinery::{
    Status, Value,
    json::{Map, json},
};

const TEXT: &str = "text/plain; charset=utf-8";
const GROUP: &str = "config.k8s.io";
/// What a 406 lists.
const SERVED: &[&str] = &["application/json", "application/yaml", "text/plain"];
/// Paths of the API itself, which are not for debugging.
const API_PATHS: &[&str] = &["/apis", "/api", "/openid", "/openapi", "/.well-known"];
/// Flags whose values are secrets.
const SECRET_FLAGS: &[&str] = &["token", "agent-token", "password"];

/// A response: its media type, its body and a value for the `Warning` header.
#[derive(Debug, PartialEq, Eq)]
pub struct Page {
    pub media: &'static str,
    pub body: String,
    pub warning: Option<&'static str>,
}

/// The facts of the running process that the pages show.
#[derive(Debug, Clone)]
pub struct Process {
    /// Seconds since the epoch.
    pub started: i64,
    /// Seconds since the epoch.
    pub now: i64,
    /// `major.minor.patch`.
    pub version: String,
    /// The command line without the program's name.
    pub args: Vec<String>,
}

impl Process {
    /// This process.
    pub fn own(now: i64, version: String) -> Self {
        Self {
            started: started().unwrap_or(now),
            now,
            version,
            args: std::env::args().skip(1).collect(),
        }
    }
}

/// When this process started, in seconds since the epoch.
fn started() -> Option<i64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The process name may contain spaces; it ends with the last parenthesis.
    let (_, fields) = stat.rsplit_once(") ")?;
    let ticks: i64 = fields.split(' ').nth(19)?.parse().ok()?;
    let kernel = std::fs::read_to_string("/proc/stat").ok()?;
    let mut lines = kernel.lines();
    let boot: i64 = lines
        .find_map(|line| line.strip_prefix("btime "))?
        .parse()
        .ok()?;
    // The kernel counts in hundredths of a second on every platform we run on.
    Some(boot + ticks / 100)
}

/// `/statusz` of a component that serves these paths.
pub fn statusz(
    component: &str,
    process: &Process,
    paths: &[String],
    headers: &HeaderMap,
) -> Result<Page, Status> {
    let form = negotiate(headers, "Statusz")?;
    let uptime = (process.now - process.started).max(0);
    let paths = debugging_paths(paths);
    let minor = process.version.splitn(3, '.').take(2);
    let emulated = minor.collect::<Vec<_>>().join(".");
    let text = || {
        let started = machinery::time::format(process.started);
        let (hours, minutes, seconds) = (uptime / 3600, uptime / 60 % 60, uptime % 60);
        format!(
            "Started: {started}\nUp: {hours} hr {minutes:02} min {seconds:02} sec\n\
             Binary version: {}\nEmulation version: {emulated}\nPaths: {}\n",
            process.version,
            paths.join(" ")
        )
    };
    let fields = || {
        json!({
            "startTime": machinery::time::format(process.started),
            "uptimeSeconds": uptime,
            "goVersion": "",
            "binaryVersion": &process.version,
            "emulationVersion": &emulated,
            "paths": paths.clone(),
        })
    };
    form.page(component, "statusz", text, fields)
}

/// `/flagz`: the flags that were given on the command line.
pub fn flagz(component: &str, process: &Process, headers: &HeaderMap) -> Result<Page, Status> {
    let form = negotiate(headers, "Flagz")?;
    let flags = flags(&process.args);
    let text = || {
        let lines = flags
            .iter()
            .map(|(name, value)| format!("{name}={value}\n"));
        lines.collect()
    };
    let fields = || {
        let pairs = flags.iter();
        let pairs = pairs.map(|(name, value)| (name.clone(), Value::from(value.as_str())));
        json!({"flags": Value::Object(pairs.collect::<Map>())})
    };
    form.page(component, "flagz", text, fields)
}

/// The flags of a command line by name; a flag that was given again has all its values.
fn flags(args: &[String]) -> std::collections::BTreeMap<String, String> {
    let mut flags = std::collections::BTreeMap::<String, String>::new();
    let mut args = args.iter().peekable();
    while let Some(arg) = args.next() {
        let Some(flag) = arg.strip_prefix("--").filter(|flag| !flag.is_empty()) else {
            continue;
        };
        let (name, value) = match flag.split_once('=') {
            Some((name, value)) => (name, value.to_owned()),
            None => {
                let next = args.next_if(|next| !next.starts_with("--"));
                (flag, next.map_or_else(|| "true".to_owned(), Clone::clone))
            }
        };
        // An address may contain a password.
        let has_userinfo = value.contains("://") && value.contains('@');
        let value = match SECRET_FLAGS.contains(&name) || has_userinfo {
            true => "CLASSIFIED".to_owned(),
            false => value,
        };
        let known = flags.entry(name.to_owned()).or_default();
        match known.is_empty() {
            true => *known = value,
            false => *known = format!("{known},{value}"),
        }
    }
    flags
}

/// The first segments of the paths, without those of the API.
fn debugging_paths(paths: &[String]) -> Vec<String> {
    let folders = paths.iter().filter_map(|path| {
        let first = path.split('/').nth(1).filter(|first| !first.is_empty())?;
        Some(format!("/{first}"))
    });
    let shown = folders.filter(|folder| !API_PATHS.contains(&folder.as_str()));
    let sorted: std::collections::BTreeSet<String> = shown.collect();
    sorted.into_iter().collect()
}

/// The negotiated form of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Text,
    Object {
        kind: &'static str,
        version: &'static str,
        is_yaml: bool,
    },
}

impl Form {
    fn page(
        self,
        component: &str,
        name: &str,
        text: impl FnOnce() -> String,
        fields: impl FnOnce() -> Value,
    ) -> Result<Page, Status> {
        let Self::Object {
            kind,
            version,
            is_yaml,
        } = self
        else {
            let body = format!(
                "\n{component} {name}\nWarning: for people only; the format may change at any time.\n\n{}",
                text()
            );
            return Ok(Page {
                media: TEXT,
                body,
                warning: None,
            });
        };
        let mut object = json!({
            "kind": kind,
            "apiVersion": format!("{GROUP}/{version}"),
            "metadata": {"name": component},
        });
        if let (Some(object), Value::Object(fields)) = (object.as_object_mut(), fields()) {
            object.extend(fields);
        }
        let body = object.to_string();
        let (media, body) = match is_yaml {
            true => ("application/yaml", crate::yaml::from_json(body.as_bytes())?),
            false => ("application/json", body + "\n"),
        };
        let warning = (version == "v1alpha1")
            .then_some("299 - \"v1alpha1 of this page is deprecated; use v1beta1\"");
        Ok(Page {
            media,
            body,
            warning,
        })
    }
}

/// The form that the client accepts first. JSON and YAML must name the kind: `;v=v1beta1;g=config.k8s.io;as=KIND`.
fn negotiate(headers: &HeaderMap, kind: &'static str) -> Result<Form, Status> {
    let accepts = headers.get_all(header::ACCEPT).into_iter();
    let accepts: Vec<&str> = accepts.filter_map(|value| value.to_str().ok()).collect();
    let accepts = accepts.join(",");
    if accepts.trim().is_empty() {
        return Ok(Form::Text);
    }
    let mut ranges = accepts.split(',');
    let form = ranges.find_map(|range| form(range, kind));
    form.ok_or_else(|| Status::not_acceptable(SERVED))
}

/// The form of one media range, if it can be served.
fn form(range: &str, kind: &'static str) -> Option<Form> {
    let mut parts = range.split(';').map(str::trim);
    let media = parts.next()?.to_ascii_lowercase();
    let parameters: Vec<(&str, &str)> = parts.filter_map(|part| part.split_once('=')).collect();
    let get = |name: &str| {
        let mut found = parameters.iter().filter(|(key, _)| *key == name);
        found.next().map(|(_, value)| *value)
    };
    let target = (get("g"), get("v"), get("as"));
    let version = match target {
        (None, None, None) => {
            let is_text = matches!(media.as_str(), "text/plain" | "text/*" | "*/*");
            return is_text.then_some(Form::Text);
        }
        (Some(GROUP), Some("v1beta1"), Some(named)) if named == kind => "v1beta1",
        (Some(GROUP), Some("v1alpha1"), Some(named)) if named == kind => "v1alpha1",
        _ => return None,
    };
    let is_yaml = match media.as_str() {
        "application/json" | "application/*" | "*/*" => false,
        "application/yaml" => true,
        _ => return None,
    };
    Some(Form::Object {
        kind,
        version,
        is_yaml,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process() -> Process {
        let args = [
            "up",
            "--data-dir",
            "/d",
            "--token=abc",
            "--verbose",
            "--node-label=a=b",
            "--node-label",
            "c=d",
        ];
        Process {
            started: 1_000,
            now: 1_000 + 3_725,
            version: "1.36.4".into(),
            args: args.map(str::to_owned).to_vec(),
        }
    }

    fn accepting(value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if !value.is_empty() {
            headers.insert(header::ACCEPT, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn a_person_reads_text_and_a_client_that_names_the_kind_gets_an_object() {
        let paths: Vec<String> = ["/healthz/ping", "/metrics", "/apis/apps", "/healthz"]
            .map(str::to_owned)
            .to_vec();
        let page = |accept: &str| statusz("kubelet", &process(), &paths, &accepting(accept));
        for accept in ["", "*/*", "text/plain", "application/json, text/plain"] {
            let page = page(accept).unwrap();
            assert_eq!(page.media, TEXT, "{accept}");
            assert!(
                page.body.starts_with("\nkubelet statusz\n"),
                "{}",
                page.body
            );
            assert!(
                page.body.contains("Up: 1 hr 02 min 05 sec\n"),
                "{}",
                page.body
            );
            assert!(
                page.body.contains("Paths: /healthz /metrics\n"),
                "{}",
                page.body
            );
        }
        let object = "application/json;v=v1beta1;g=config.k8s.io;as=Statusz";
        let json = page(object).unwrap();
        let value: Value = machinery::json::from_slice(json.body.as_bytes()).unwrap();
        assert_eq!(value["kind"], "Statusz");
        assert_eq!(value["startTime"], "1970-01-01T00:16:40Z");
        assert_eq!(value["emulationVersion"], "1.36");
        assert_eq!(json.warning, None);
        let older = page(&object.replace("v1beta1", "v1alpha1")).unwrap();
        assert!(older.warning.is_some());
        let yaml = page(&object.replace("json", "yaml")).unwrap();
        assert!(yaml.body.contains("kind: Statusz"), "{}", yaml.body);
        for refused in [
            "application/json",
            "application/json;v=v1;g=config.k8s.io;as=Statusz",
            "application/json;v=v1beta1;g=config.k8s.io;as=Flagz",
            "application/vnd.kubernetes.protobuf",
        ] {
            assert_eq!(page(refused).unwrap_err().code, 406, "{refused}");
        }
    }

    #[test]
    fn flags_are_shown_by_name_without_secrets() {
        let page = flagz("kubelet", &process(), &HeaderMap::new()).unwrap();
        let lines = "data-dir=/d\nnode-label=a=b,c=d\ntoken=CLASSIFIED\nverbose=true\n";
        assert!(page.body.ends_with(lines), "{}", page.body);
        assert!(!page.body.contains("abc"));
    }
}
