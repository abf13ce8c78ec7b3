//! Questions, parsed from command-line words.

use client::kube;

use crate::{
    Answer, Error, Result, access::Access, claim, connection::ConnectionQuery, ingress, namespace,
    node, pod, service, workload,
};

/// One question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Question {
    /// Why an object is in its state.
    Object(Kind, Name),
    /// Whether and why a connection is allowed.
    Connection(ConnectionQuery),
    /// Whether and why a user may do something.
    Access(Access),
}

/// The name of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    /// Ignored for cluster-scoped kinds.
    pub namespace: String,
    /// The name itself.
    pub name: String,
}

/// The kinds that can be asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A pod.
    Pod,
    /// A Deployment.
    Deployment,
    /// A ReplicaSet.
    ReplicaSet,
    /// A StatefulSet.
    StatefulSet,
    /// A DaemonSet.
    DaemonSet,
    /// A Job.
    Job,
    /// A PersistentVolumeClaim.
    Claim,
    /// A Service.
    Service,
    /// An Ingress.
    Ingress,
    /// A namespace.
    Namespace,
    /// A node.
    Node,
}

/// Every kind with its common names.
const KINDS: &[(Kind, &[&str])] = &[
    (Kind::Pod, &["pod", "pods", "po"]),
    (Kind::Deployment, &["deployment", "deployments", "deploy"]),
    (Kind::ReplicaSet, &["replicaset", "replicasets", "rs"]),
    (Kind::StatefulSet, &["statefulset", "statefulsets", "sts"]),
    (Kind::DaemonSet, &["daemonset", "daemonsets", "ds"]),
    (Kind::Job, &["job", "jobs"]),
    (
        Kind::Claim,
        &["pvc", "persistentvolumeclaim", "persistentvolumeclaims"],
    ),
    (Kind::Service, &["service", "services", "svc"]),
    (Kind::Ingress, &["ingress", "ingresses", "ing"]),
    (Kind::Namespace, &["namespace", "namespaces", "ns"]),
    (Kind::Node, &["node", "nodes", "no"]),
];

impl Kind {
    fn parse(word: &str) -> Option<Self> {
        let word = word.to_lowercase();
        let known = KINDS.iter().find(|(_, names)| names.contains(&&*word));
        known.map(|(kind, _)| *kind)
    }

    pub(crate) fn is_namespaced(self) -> bool {
        !matches!(self, Self::Namespace | Self::Node)
    }

    pub(crate) async fn answer(self, client: &kube::Client, name: &Name) -> Result<Answer> {
        match self {
            Self::Pod => pod::answer(client, name).await,
            Self::Deployment => workload::deployment(client, name).await,
            Self::ReplicaSet => workload::replica_set(client, name).await,
            Self::StatefulSet => workload::stateful_set(client, name).await,
            Self::DaemonSet => workload::daemon_set(client, name).await,
            Self::Job => workload::job(client, name).await,
            Self::Claim => claim::answer(client, name).await,
            Self::Service => service::answer(client, name).await,
            Self::Ingress => ingress::answer(client, name).await,
            Self::Namespace => namespace::answer(client, name).await,
            Self::Node => node::answer(client, name).await,
        }
    }
}

impl Question {
    /// Parses `pod/web`, `pod web`, `connection FROM TO` or `can USER VERB RESOURCE [NAME]`.
    pub fn parse(words: &[String], namespace: &str, groups: &[String]) -> Result<Self> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words[..] {
            ["connection", from, to] => Ok(Self::Connection(ConnectionQuery {
                from: from.to_owned(),
                to: to.to_owned(),
                namespace: namespace.to_owned(),
            })),
            ["can" | "may", user, verb, resource] => {
                Access::parse(user, groups, verb, resource, None, namespace).map(Self::Access)
            }
            ["can" | "may", user, verb, resource, name] => {
                Access::parse(user, groups, verb, resource, Some(name), namespace).map(Self::Access)
            }
            ["can" | "may", ..] => Err(incomplete("can USER VERB RESOURCE [NAME]")),
            ["connection", ..] => Err(incomplete("connection FROM TO:PORT")),
            [object] => match object.split_once('/') {
                Some((kind, name)) => Self::object(kind, name, namespace),
                None => Err(unknown(object)),
            },
            [kind, name] => Self::object(kind, name, namespace),
            _ => Err(unknown(&words.join(" "))),
        }
    }

    fn object(kind: &str, name: &str, namespace: &str) -> Result<Self> {
        let Some(known) = Kind::parse(kind) else {
            return Err(unknown(kind));
        };
        if name.is_empty() || name.contains('/') {
            return Err(Error::Question(format!("{name:?} is not a name")));
        }
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        Ok(Self::Object(known, Name { namespace, name }))
    }
}

fn incomplete(form: &str) -> Error {
    Error::Question(format!("the question is not of the form `{form}`"))
}

fn unknown(what: &str) -> Error {
    let kinds: Vec<&str> = KINDS.iter().map(|(_, names)| names[0]).collect();
    Error::Question(format!(
        "{what:?} cannot be asked about: ask for KIND/NAME (one of {}), `connection FROM TO` or `can USER VERB RESOURCE`",
        kinds.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Question> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        Question::parse(&words, "default", &[])
    }

    #[test]
    fn objects_are_named_as_kubectl_names_them() {
        for line in ["pod/web", "po/web", "pods web", "Pod/web"] {
            let expected = Name {
                namespace: "default".to_owned(),
                name: "web".to_owned(),
            };
            assert_eq!(
                parse(line).unwrap(),
                Question::Object(Kind::Pod, expected),
                "{line}"
            );
        }
    }

    #[test]
    fn a_question_about_rights_begins_with_can_or_may_and_is_complete() {
        assert_eq!(
            parse("may alice get pods").unwrap(),
            parse("can alice get pods").unwrap()
        );
        for (line, form) in [
            ("may alice", "`can USER VERB RESOURCE [NAME]`"),
            ("connection pod/a", "`connection FROM TO:PORT`"),
        ] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains(form), "{error}");
        }
    }

    #[test]
    fn invalid_questions_are_refused_and_supported_kinds_listed() {
        for line in [
            "web",
            "secret/x",
            "pod/",
            "pod/a/b",
            "connection a",
            "can alice get",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
        let error = parse("secret/x").unwrap_err().to_string();
        assert!(error.contains("pod, deployment"), "{error}");
    }
}
