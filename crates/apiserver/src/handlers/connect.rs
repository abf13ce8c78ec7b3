//! `log`, `exec`, `attach`, `portforward` and `proxy`: admission with the options as the object, then the kubelet or
//! another process serves the request.

use std::sync::Arc;

use connect::{Backends, Connect};
use machinery::{Object, Status, Value, json::json};
use request::AuditTrail;
use stdx::percent;

use crate::{
    Resource,
    admission::{Attributes, Operation, RequestOptions},
    pipeline::Request,
    query::Query,
    respond::Answer,
    write::AdmissionChain,
};

/// Options with several values.
const LISTS: &[&str] = &["command", "ports"];
const FLAGS: &[&str] = &["stdin", "stdout", "stderr", "tty"];

/// What these requests need.
pub(crate) struct ConnectContext {
    /// The kubelets, pods and Services that serve them.
    pub(crate) backends: Arc<Backends>,
    pub(crate) admission: Arc<AdmissionChain>,
}

/// Admits the request and passes it on.
pub(super) async fn serve(
    context: &ConnectContext,
    mut request: Request,
    resource: Arc<Resource>,
) -> Answer {
    let subject = request.info.resource.clone().unwrap_or_default();
    if subject.subresource != "log" {
        admit(context, &mut request, &resource).await?;
    }
    let body = request.take_body();
    let audit = request.audit.clone();
    let connect = Connect {
        parts: request.parts,
        query: request.query,
        subject,
        body,
        audit: audit.map(|ticket| ticket as Arc<dyn AuditTrail>),
    };
    context.backends.serve(connect, &resource.plural).await
}

/// Runs admission. Changed options take effect.
async fn admit(
    context: &ConnectContext,
    request: &mut Request,
    resource: &Resource,
) -> Result<(), Status> {
    let chain = &context.admission;
    if !chain.handles_connect() {
        return Ok(());
    }
    let subject = request.info.resource.clone().unwrap_or_default();
    let info = resource.kind.subresource_info(&subject.subresource);
    let kind = info.map_or("", |info| info.kind);
    let before = options(kind, &request.query, &subject.rest);
    let effects = request.effects();
    let given = RequestOptions::default();
    let attributes = Attributes {
        user: &request.user,
        peer: request.peer,
        operation: Operation::Connect,
        group: &resource.group,
        version: &resource.version,
        api_version: "v1",
        kind,
        resource: &resource.plural,
        subresource: &subject.subresource,
        namespace: &subject.namespace,
        name: &subject.name,
        generate_name: "",
        dry_run: false,
        options: &given,
        old: None,
        reader: &context.backends.reader,
        effects: &effects,
    };
    let mut admitted = before.clone();
    chain.mutate(&attributes, &mut admitted).await?;
    chain.validate(&attributes, Some(&admitted)).await?;
    if admitted != before {
        if subject.subresource == "proxy" {
            let why = "admission may not change where a request is proxied to";
            return Err(Status::internal(why));
        }
        request.query = Query::parse(&query_of(&admitted));
    }
    Ok(())
}

/// The options as an object.
fn options(kind: &str, query: &Query, rest: &str) -> Object {
    let mut options = json!({"kind": kind, "apiVersion": "v1"});
    match kind {
        "PodExecOptions" | "PodAttachOptions" => {
            for key in FLAGS {
                if query.flag(key) {
                    options[*key] = true.into();
                }
            }
            if let Some(container) = query.filled("container") {
                options["container"] = container.into();
            }
            let command: Vec<Value> = query.all("command").map(Value::from).collect();
            if kind == "PodExecOptions" {
                options["command"] = command.into();
            }
        }
        "PodPortForwardOptions" => {
            let ports = query.all("ports").flat_map(|ports| ports.split(','));
            let ports = ports.filter_map(|port| port.parse::<i64>().ok());
            let ports: Vec<Value> = ports.map(Value::from).collect();
            if !ports.is_empty() {
                options["ports"] = ports.into();
            }
        }
        _ if !rest.is_empty() => {
            options["path"] = format!("/{}", rest.trim_start_matches('/')).into()
        }
        _ => {}
    }
    options.as_object().cloned().unwrap_or_default()
}

/// The options as a query.
fn query_of(options: &Object) -> String {
    let mut pairs = Vec::new();
    let mut push =
        |key: &str, value: String| pairs.push(format!("{key}={}", percent::encode(&value, "")));
    for key in FLAGS {
        if options.get(key) == Some(&Value::Bool(true)) {
            push(key, "true".to_owned());
        }
    }
    if let Some(container) = options.get("container").and_then(Value::as_str) {
        push("container", container.to_owned());
    }
    for key in LISTS {
        let list = options.get(key).and_then(Value::as_array);
        for item in list.into_iter().flatten() {
            push(key, machinery::text::plain(item));
        }
    }
    pairs.join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connect_options_round_trip_through_the_query() {
        let text = "stdin=true&container=c&command=sh&command=-c&command=a%20b%26c";
        let made = options("PodExecOptions", &Query::parse(text), "");
        let expected = json!({"kind": "PodExecOptions", "apiVersion": "v1", "stdin": true,
            "container": "c", "command": ["sh", "-c", "a b&c"]});
        assert_eq!(Value::Object(made.clone()), expected);
        let again = options("PodExecOptions", &Query::parse(&query_of(&made)), "");
        assert_eq!(again, made);
    }

    #[test]
    fn a_proxied_path_is_an_option() {
        let made = options("ServiceProxyOptions", &Query::parse(""), "a/b");
        assert_eq!(made["path"], "/a/b");
    }
}
