//! The candidates for the word that is being typed; names come from the cluster.

use serde_json::Value;

use crate::{
    args::Global,
    json::{list, str_of},
    kubeconfig,
    session::Session,
    streams::pod_of,
};

use super::words::{self, ThenWanted, Wanted, Words};

/// Types whose objects have pods.
const WITH_PODS: [&str; 8] = [
    "daemonsets",
    "deployments",
    "pods",
    "jobs",
    "replicasets",
    "replicationcontrollers",
    "services",
    "statefulsets",
];
const NO_SPACE: u8 = 2;
const NO_FILES: u8 = 4;
/// The lines are endings of files.
const ENDINGS: u8 = 8;

/// Candidates, and what the shell does after them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    pub lines: Vec<String>,
    pub directive: u8,
}

impl Found {
    /// The directive's name in upstream's scripts.
    pub(super) fn directive_name(&self) -> &'static str {
        match self.directive {
            0 => "ShellCompDirectiveDefault",
            NO_SPACE => "ShellCompDirectiveNoSpace",
            NO_FILES => "ShellCompDirectiveNoFileComp",
            ENDINGS => "ShellCompDirectiveFilterFileExt",
            _ => "ShellCompDirectiveNoSpace, ShellCompDirectiveNoFileComp",
        }
    }
}

/// The candidates for the last word. A cluster that does not answer has none. Our scripts need the part of the word
/// before the candidate, such as `--output=`; upstream's add it themselves.
pub(super) async fn find(global: &Global, words: &[String], has_prefix: bool) -> Found {
    let mut words = words::parse(words);
    let mut global = global.clone();
    if words.namespace.is_some() {
        global.namespace.clone_from(&words.namespace);
    }
    if words.context.is_some() {
        global.context.clone_from(&words.context);
    }
    let mut found = Found {
        lines: Vec::new(),
        directive: NO_FILES,
    };
    match &words.wanted {
        Wanted::Nothing => {}
        Wanted::File => found.directive = 0,
        // Our scripts let the shell complete files.
        Wanted::FileWithEnding(_) if has_prefix => found.directive = 0,
        Wanted::FileWithEnding(endings) => {
            let lines = endings.iter().map(|&ending| ending.to_owned()).collect();
            let directive = ENDINGS;
            return Found { lines, directive };
        }
        Wanted::Given(lines) => found.lines.clone_from(lines),
        Wanted::Context => found.lines = named(&global, "contexts"),
        Wanted::Cluster => found.lines = named(&global, "clusters"),
        Wanted::User => found.lines = named(&global, "users"),
        wanted => {
            if let Ok(session) = Session::open(&global, "", "kubectl __complete") {
                found = ask(&session, &words, wanted).await;
            }
        }
    }
    drop(found.lines.splice(0..0, words.required.drain(..)));
    found.lines.retain(|line| line.starts_with(&words.typed));
    if has_prefix {
        for line in &mut found.lines {
            line.insert_str(0, &words.prefix);
        }
    }
    found
}

/// The names in a list of the kubeconfig.
fn named(global: &Global, field: &str) -> Vec<String> {
    let config = kubeconfig::load(global).unwrap_or_default();
    let mut names: Vec<String> = list(&config[field])
        .map(|entry| str_of(&entry["name"]).to_owned())
        .collect();
    names.sort();
    names
}

async fn ask(session: &Session, words: &Words, wanted: &Wanted) -> Found {
    let first = words.arguments.first().map(String::as_str);
    let mut found = Found {
        lines: Vec::new(),
        directive: NO_FILES,
    };
    match (wanted, first) {
        (Wanted::Name("namespaces" | "clusterroles"), _) | (Wanted::Name(_), None) => {
            let Wanted::Name(kind) = wanted else {
                return found;
            };
            found.lines = names(session, kind).await;
        }
        (Wanted::Container | Wanted::Pod(ThenWanted::Container), Some(pod)) => {
            found.lines = containers(&attachable(session, pod).await);
        }
        (Wanted::Pod(ThenWanted::Port), Some(target)) if words.arguments.len() == 1 => {
            found.lines = ports(session, target, &words.typed).await;
        }
        (Wanted::CopySource, _) => found = copy_sources(session, &words.typed).await,
        (Wanted::Pod(_), None) => found = pods(session, &words.typed).await,
        (Wanted::Objects { types, is_repeated }, _) => {
            found = objects(session, words, types, *is_repeated).await;
        }
        _ => {}
    }
    found
}

/// The names of all objects of a type in the namespace.
async fn names(session: &Session, kind: &str) -> Vec<String> {
    let Ok(resource) = session.discovery.resolve(kind).await else {
        return Vec::new();
    };
    let path = resource.collection(Some(&session.namespace));
    let items = session.api.items(&path).await.unwrap_or_default();
    let names = items.iter().map(|item| str_of(&item["metadata"]["name"]));
    names.map(ToOwned::to_owned).collect()
}

/// `TYPE/NAME` for all objects of the type before the slash.
async fn qualified(session: &Session, kind: &str) -> Vec<String> {
    let names = names(session, kind).await;
    names.iter().map(|name| format!("{kind}/{name}")).collect()
}

/// Pods, and types whose objects have pods.
async fn pods(session: &Session, typed: &str) -> Found {
    if let Some((kind, _)) = typed.split_once('/') {
        return Found {
            lines: qualified(session, kind).await,
            directive: NO_FILES,
        };
    }
    let mut lines = names(session, "pods").await;
    lines.retain(|name| name.starts_with(typed));
    let directive = match lines.is_empty() {
        true => NO_SPACE | NO_FILES,
        false => NO_FILES,
    };
    lines.extend(WITH_PODS.map(|kind| format!("{kind}/")));
    Found { lines, directive }
}

/// Namespaces, pods and files that begin with what is typed.
async fn copy_sources(session: &Session, typed: &str) -> Found {
    let mut lines = Vec::new();
    if typed.starts_with(['/', '.', '~']) || typed.contains(':') {
        // A local path, or one in a container.
    } else if let Some((namespace, _)) = typed.split_once('/') {
        let path = format!(
            "/api/v1/namespaces/{}/pods",
            crate::discovery::encode(namespace)
        );
        let pods = session.api.items(&path).await.unwrap_or_default();
        let pods = pods.iter().map(|pod| str_of(&pod["metadata"]["name"]));
        lines.extend(pods.map(|pod| format!("{namespace}/{pod}:")));
    } else {
        let namespaces = names(session, "namespaces").await;
        lines.extend(namespaces.iter().map(|name| format!("{name}/")));
        let pods = names(session, "pods").await;
        lines.extend(pods.iter().map(|name| format!("{name}:")));
        lines.retain(|line| line.starts_with(typed));
        match typed {
            "" => lines.extend(["./".to_owned(), "/".to_owned()]),
            _ if lines.is_empty() => {}
            _ => lines.extend(local_files()),
        }
    }
    let directive = NO_SPACE;
    Found { lines, directive }
}

/// The files of the current directory in the order of their names.
fn local_files() -> Vec<String> {
    let entries = std::fs::read_dir(".").into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            match entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                true => format!("{name}/"),
                false => name,
            }
        })
        .collect();
    names.sort();
    names
}

/// Types, and after a type the names of its objects.
async fn objects(session: &Session, words: &Words, types: &[&str], is_repeated: bool) -> Found {
    let arguments = &words.arguments;
    let is_first = arguments.is_empty();
    let mut found = Found {
        lines: Vec::new(),
        directive: NO_FILES,
    };
    let kind = arguments.first().filter(|kind| !kind.contains('/'));
    match (kind, words.typed.split_once('/')) {
        (Some(kind), _) if is_repeated || arguments.len() == 1 => {
            found.lines = names(session, kind).await;
        }
        (None, Some((kind, _))) if is_repeated || is_first => {
            found.lines = qualified(session, kind).await;
        }
        (None, None) if is_first => found.lines = known_types(session, words, types).await,
        (None, None) if is_repeated => {
            found.lines = known_types(session, words, types).await;
            found.lines.iter_mut().for_each(|kind| kind.push('/'));
            found.directive = NO_SPACE | NO_FILES;
        }
        _ => {}
    }
    found.lines.retain(|line| !arguments.contains(line));
    found
}

/// The given types, or all that can be read. A list is completed at its last element.
async fn known_types(session: &Session, words: &Words, types: &[&str]) -> Vec<String> {
    if !types.is_empty() {
        return types.iter().map(|&kind| kind.to_owned()).collect();
    }
    let resources = session.discovery.resources().await.unwrap_or_default();
    let mut readable: Vec<(String, String)> = resources
        .iter()
        .filter(|resource| resource.verbs.iter().any(|verb| verb == "get"))
        .map(|resource| (resource.group.clone(), resource.qualified_plural()))
        .collect();
    readable.sort();
    readable.dedup();
    let start = words.typed.rfind(',').map_or(0, |comma| comma + 1);
    let before = &words.typed[..start];
    let names = readable.into_iter().map(|(_, name)| name);
    names.map(|name| format!("{before}{name}")).collect()
}

/// The pod with a name, or one of `TYPE/NAME`.
async fn attachable(session: &Session, argument: &str) -> Value {
    pod_of(session, argument, "100ms").await.unwrap_or_default()
}

fn containers(pod: &Value) -> Vec<String> {
    let all = list(&pod["spec"]["initContainers"]).chain(list(&pod["spec"]["containers"]));
    all.map(|container| str_of(&container["name"]).to_owned())
        .collect()
}

/// `LOCAL:REMOTE` for the ports of a Service, or of a pod's containers.
async fn ports(session: &Session, argument: &str, typed: &str) -> Vec<String> {
    let numbers: Vec<String> = match argument.split_once('/') {
        Some(("service" | "services" | "svc", name)) => {
            let path = format!("/api/v1/namespaces/{}/services/{name}", session.namespace);
            let service = session.api.get(&path).await.unwrap_or_default();
            let ports = list(&service["spec"]["ports"]).map(|port| port["port"].to_string());
            ports.collect()
        }
        _ => {
            let pod = attachable(session, argument).await;
            let ports = list(&pod["spec"]["containers"]).flat_map(|one| list(&one["ports"]));
            ports
                .map(|port| port["containerPort"].to_string())
                .collect()
        }
    };
    let local = typed.split(':').next().unwrap_or_default();
    let pair = |remote: &String| match local {
        "" => format!("{remote}:{remote}"),
        local => format!("{local}:{remote}"),
    };
    numbers.iter().map(pair).collect()
}
