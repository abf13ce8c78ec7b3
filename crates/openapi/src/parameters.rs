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
    "\"All\" runs all stages of the request, including validation and admission, and stores nothing. Any other value is rejected.",
);
const FIELD_VALIDATION: (&str, &str, &str) = (
    "fieldValidation",
    "string",
    "How unknown and duplicate fields are handled: Ignore drops them silently, Warn (the default) drops them with a Warning header for each, Strict rejects the request with an error that lists them all.",
);
const RESOURCE_VERSION: (&str, &str, &str) = (
    "resourceVersion",
    "string",
    "How recent the response must be: unset means the newest state, 0 any state, a version that state or a newer one (or, with resourceVersionMatch, exactly that state).",
);
const TIMEOUT_SECONDS: (&str, &str, &str) = (
    "timeoutSeconds",
    "integer",
    "Ends a list or watch after this many seconds, even if it is not complete.",
);

/// The parameters of a GET of one custom resource.
pub(super) const GET: Options = &[RESOURCE_VERSION];

pub(super) const LIST: Options = &[
    (
        "allowWatchBookmarks",
        "boolean",
        "Requests events of type BOOKMARK in a watch, which have only a resourceVersion. The server decides when, and whether, it sends them.",
    ),
    (
        "continue",
        "string",
        "The continue token of the previous page of a list; the next page is read from the same state. An expired token gets a 410 response with a token that continues from the newest state.",
    ),
    (
        "fieldSelector",
        "string",
        "Returns only objects whose fields have these values. By default all objects.",
    ),
    (
        "labelSelector",
        "string",
        "Returns only objects whose labels match. By default all objects.",
    ),
    (
        "limit",
        "integer",
        "Maximum number of objects in a page of a list; the token in metadata.continue gets the rest.",
    ),
    RESOURCE_VERSION,
    (
        "resourceVersionMatch",
        "string",
        "How resourceVersion is applied: Exact or NotOlderThan.",
    ),
    (
        "sendInitialEvents",
        "boolean",
        "Starts a watch with an ADDED event for every existing object, and a bookmark after the last one.",
    ),
    (
        "shardSelector",
        "string",
        "Returns only objects of one shard of the hashed key space.",
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
        "Name of the field manager, recorded in managedFields. At most 128 printable characters; by default from the client's user agent.",
    ),
    FIELD_VALIDATION,
];

pub(super) const PATCH: Options = &[
    DRY_RUN,
    (
        "fieldManager",
        "string",
        "Name of the field manager, recorded in managedFields. Required for apply patches; for others by default from the client's user agent.",
    ),
    FIELD_VALIDATION,
    (
        "force",
        "boolean",
        "Lets an apply patch take over fields of other managers instead of failing with a conflict. Only for apply patches.",
    ),
];

pub(super) const DELETE: Options = &[
    DRY_RUN,
    (
        "gracePeriodSeconds",
        "integer",
        "Seconds before the object is removed; 0 removes it at once. By default the kind's own grace period.",
    ),
    (
        "ignoreStoreReadErrorWithClusterBreakingPotential",
        "boolean",
        "Deletes an object that cannot be read from the store; checks that need the object are skipped.",
    ),
    (
        "orphanDependents",
        "boolean",
        "Deprecated form of propagationPolicy: whether dependents are orphaned. Only one of the two may be set.",
    ),
    (
        "propagationPolicy",
        "string",
        "How dependents are handled: Orphan keeps them, Background deletes them later, Foreground deletes them first.",
    ),
];

const CONTAINER: (&str, &str, &str) = (
    "container",
    "string",
    "Name of the container; required only if the pod has several.",
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
    ("follow", "boolean", "Follows the log."),
    (
        "insecureSkipTLSVerifyBackend",
        "boolean",
        "Does not verify the certificate of the kubelet.",
    ),
    (
        "limitBytes",
        "integer",
        "Maximum number of bytes; the last line may be truncated.",
    ),
    (
        "previous",
        "boolean",
        "The log of the instance before the last restart.",
    ),
    (
        "sinceSeconds",
        "integer",
        "Returns only lines of the last seconds, this many.",
    ),
    (
        "stream",
        "string",
        "Which stream: All (the default), Stdout or Stderr.",
    ),
    (
        "tailLines",
        "integer",
        "Returns only this many lines at the end.",
    ),
    (
        "timestamps",
        "boolean",
        "Prefixes every line with its time, in RFC 3339.",
    ),
];
const PORT_FORWARD: Options = &[(
    "ports",
    "integer",
    "The ports to forward; required with WebSockets.",
)];
const PROXY: Options = &[(
    "path",
    "string",
    "The path to request from the proxied server.",
)];

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
            "Whether the response is indented; by default only for browsers, curl and wget.",
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
        in_path("namespace", "namespace of the object"),
        in_path("path", "rest of the path, for the proxied server"),
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
