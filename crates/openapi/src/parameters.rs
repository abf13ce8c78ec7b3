//! Path and query parameters: name, type and, in our words, description.

use std::borrow::Cow;

use machinery::json::json;
use machinery::{Value, openapi::Dialect};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Location {
    Path,
    Query,
}

#[derive(Clone, PartialEq)]
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) place: Location,
    kind: &'static str,
    about: Cow<'static, str>,
}

/// Name, type and description of a group of parameters.
pub(super) type Options = &'static [(&'static str, &'static str, &'static str)];

const DRY_RUN: (&str, &str, &str) = (
    "dryRun",
    "string",
    "\"All\" goes through every stage of the request, validation and admission included, and stores nothing. Any other value is refused.",
);
const FIELD_VALIDATION: (&str, &str, &str) = (
    "fieldValidation",
    "string",
    "What to do about fields that are unknown or given twice: Ignore drops them silently, Warn (the default) drops them and says so in a Warning header, Strict refuses the request and names them all.",
);
const RESOURCE_VERSION: (&str, &str, &str) = (
    "resourceVersion",
    "string",
    "How fresh the answer must be: unset means the newest state, 0 any state, a version at least (or, by resourceVersionMatch, exactly) that state.",
);
const TIMEOUT_SECONDS: (&str, &str, &str) = (
    "timeoutSeconds",
    "integer",
    "Ends a list or watch after this many seconds, whether or not it is done.",
);

/// The parameters of a GET of one custom resource.
pub(super) const GET: Options = &[RESOURCE_VERSION];

pub(super) const LIST: Options = &[
    (
        "allowWatchBookmarks",
        "boolean",
        "Asks a watch for events of type BOOKMARK, which carry only a resourceVersion. When they come, and whether any do, is up to the server.",
    ),
    (
        "continue",
        "string",
        "The token that a page of a list ended with; the next page comes from the same state. An expired token is answered with 410 and one to go on with from the newest state.",
    ),
    (
        "fieldSelector",
        "string",
        "Leaves only objects whose fields have these values. Everything by default.",
    ),
    (
        "labelSelector",
        "string",
        "Leaves only objects whose labels match. Everything by default.",
    ),
    (
        "limit",
        "integer",
        "How many objects a page of a list has at most; the rest comes with the token in metadata.continue.",
    ),
    RESOURCE_VERSION,
    (
        "resourceVersionMatch",
        "string",
        "How resourceVersion is meant: Exact or NotOlderThan.",
    ),
    (
        "sendInitialEvents",
        "boolean",
        "Begins a watch with an ADDED event for every object that exists and a bookmark that marks their end.",
    ),
    (
        "shardSelector",
        "string",
        "Leaves only objects of one shard of the hashed key space.",
    ),
    TIMEOUT_SECONDS,
    (
        "watch",
        "boolean",
        "Sends changes as they happen instead of a list: ADDED, MODIFIED and DELETED events.",
    ),
];

/// Parameters of `LIST` that do not apply to a deletion.
const ONLY_WATCHES: [&str; 2] = ["allowWatchBookmarks", "watch"];

pub(super) const WRITE: Options = &[
    DRY_RUN,
    (
        "fieldManager",
        "string",
        "Who writes: the name under which managedFields notes what was set. At most 128 printable characters; the client's user agent by default.",
    ),
    FIELD_VALIDATION,
];

pub(super) const PATCH: Options = &[
    DRY_RUN,
    (
        "fieldManager",
        "string",
        "Who writes: the name under which managedFields notes what was set. Required for apply patches; the client's user agent by default for others.",
    ),
    FIELD_VALIDATION,
    (
        "force",
        "boolean",
        "Makes an apply patch take over fields that others manage, instead of a conflict. Only for apply patches.",
    ),
];

pub(super) const DELETE: Options = &[
    DRY_RUN,
    (
        "gracePeriodSeconds",
        "integer",
        "How long the object is given to end by itself; 0 removes it at once. The kind's own default if unset.",
    ),
    (
        "ignoreStoreReadErrorWithClusterBreakingPotential",
        "boolean",
        "Deletes an object that cannot be read from the store, skipping everything that would need to read it.",
    ),
    (
        "orphanDependents",
        "boolean",
        "Older form of propagationPolicy: whether dependents are left behind. Only one of both may be set.",
    ),
    (
        "propagationPolicy",
        "string",
        "What happens to dependents: Orphan leaves them, Background deletes them later, Foreground deletes them first.",
    ),
];

const CONTAINER: (&str, &str, &str) = (
    "container",
    "string",
    "Which container; needed only when the pod has several.",
);
const STREAMS: [(&str, &str, &str); 4] = [
    ("stderr", "boolean", "Whether to send standard error."),
    ("stdin", "boolean", "Whether to take standard input."),
    ("stdout", "boolean", "Whether to send standard output."),
    ("tty", "boolean", "Whether the streams are a terminal."),
];
const ATTACH: Options = &[CONTAINER, STREAMS[0], STREAMS[1], STREAMS[2], STREAMS[3]];
const EXEC: Options = &[
    (
        "command",
        "string",
        "The program and its arguments, one each; no shell is involved.",
    ),
    CONTAINER,
    STREAMS[0],
    STREAMS[1],
    STREAMS[2],
    STREAMS[3],
];
const LOG: Options = &[
    CONTAINER,
    (
        "follow",
        "boolean",
        "Goes on with what is written from now on.",
    ),
    (
        "insecureSkipTLSVerifyBackend",
        "boolean",
        "Does not check the certificate of the kubelet that has the log.",
    ),
    (
        "limitBytes",
        "integer",
        "How many bytes to send at most; the last line may be cut.",
    ),
    (
        "previous",
        "boolean",
        "The log of the instance before the last restart.",
    ),
    (
        "sinceSeconds",
        "integer",
        "Leaves out lines that are older than this many seconds.",
    ),
    (
        "stream",
        "string",
        "Which stream: All (the default), Stdout or Stderr.",
    ),
    (
        "tailLines",
        "integer",
        "Leaves out all but this many lines at the end.",
    ),
    (
        "timestamps",
        "boolean",
        "Puts the time before every line, in RFC 3339.",
    ),
];
const PORT_FORWARD: Options = &[(
    "ports",
    "integer",
    "The ports to forward; needed with WebSockets.",
)];
const PROXY: Options = &[("path", "string", "The path to ask for behind the proxy.")];

/// The parameters of subresources with options of their own.
pub(super) fn of_subresource(name: &str) -> Options {
    match name {
        "attach" => ATTACH,
        "exec" => EXEC,
        "log" => LOG,
        "portforward" => PORT_FORWARD,
        "proxy" => PROXY,
        _ => &[],
    }
}

pub(super) fn query(options: Options) -> impl Iterator<Item = Parameter> {
    options.iter().map(|(name, kind, about)| Parameter {
        name,
        place: Location::Query,
        kind,
        about: Cow::Borrowed(about),
    })
}

/// The parameters of deletecollection.
pub(super) fn delete_collection() -> impl Iterator<Item = Parameter> {
    let list = query(LIST).filter(|one| !ONLY_WATCHES.contains(&one.name));
    query(DELETE).chain(list)
}

pub(super) fn pretty() -> Parameter {
    Parameter {
        name: "pretty",
        place: Location::Query,
        kind: "string",
        about: Cow::Borrowed(
            "Whether the answer is indented; by default only for browsers, curl and wget.",
        ),
    }
}

fn in_path(name: &'static str, about: impl Into<Cow<'static, str>>) -> Parameter {
    Parameter {
        name,
        place: Location::Path,
        kind: "string",
        about: about.into(),
    }
}

/// The parameters in the path of a kind's objects.
pub(super) fn of_path(path: &str, kind: &str) -> Vec<Parameter> {
    let all = [
        in_path("name", format!("name of the {kind}")),
        in_path("namespace", "the namespace that the object lives in"),
        in_path("path", "the rest of the path, for what is behind the proxy"),
    ];
    let stands = |one: &Parameter| path.contains(&format!("{{{}}}", one.name));
    all.into_iter().filter(stands).collect()
}

impl Parameter {
    pub(super) fn json(&self, dialect: Dialect) -> Value {
        let place = match self.place {
            Location::Path => "path",
            Location::Query => "query",
        };
        let mut out = json!({"name": self.name, "in": place, "description": self.about});
        if self.place == Location::Path {
            out["required"] = true.into();
        }
        match dialect {
            Dialect::V2 => {
                out["type"] = self.kind.into();
                out["uniqueItems"] = true.into();
            }
            Dialect::V3 => out["schema"] = json!({"type": self.kind, "uniqueItems": true}),
        }
        out
    }
}
