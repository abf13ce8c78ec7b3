//! exec, attach and port-forward: gets a streaming URL from the runtime and proxies the connection
//! to it.

use cri::v1;
use http::{Request, Response, StatusCode, Uri, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::net::TcpStream;
use tracing::debug;

use super::{Body, KubeletRequest, containers, idle::Watched, text};
use crate::{core::Core, pod::spec};

/// Gets the URL for the container and joins the two connections.
pub(super) async fn serve(
    core: &Core,
    ask: &KubeletRequest,
    request: Request<Incoming>,
) -> Response<Body> {
    match runtime_url(core, ask).await {
        Ok(url) => tunnel(core, &url, request).await,
        Err(response) => *response,
    }
}

async fn runtime_url(core: &Core, ask: &KubeletRequest) -> Result<String, Box<Response<Body>>> {
    let parts: Vec<&str> = ask.parts.iter().map(String::as_str).collect();
    let (verb, namespace, pod, container) = match parts.as_slice() {
        [verb, namespace, pod, _uid, container] => (*verb, *namespace, *pod, Some(*container)),
        ["portForward", namespace, pod, ..] => ("portForward", *namespace, *pod, None),
        [verb, namespace, pod, container] => (*verb, *namespace, *pod, Some(*container)),
        _ => return Err(Box::new(text(StatusCode::NOT_FOUND, "404 page not found"))),
    };
    let seen = containers::pod(core, namespace, pod)?;
    let mut runtime = core.runtime.client.clone().runtime;
    let tty = ask.is_on(&["tty"]);
    let stdin = ask.is_on(&["input", "stdin"]);
    let stdout = ask.is_on(&["output", "stdout"]);
    let stderr = ask.is_on(&["error", "stderr"]) && !tty;
    let url = match verb {
        "exec" => {
            let container_id = containers::running_id(&seen, container.unwrap_or_default())?;
            let cmd = ask.all("command");
            let request = v1::ExecRequest {
                container_id,
                cmd,
                tty,
                stdin,
                stdout,
                stderr,
            };
            runtime
                .exec(request)
                .await
                .map(|answer| answer.into_inner().url)
        }
        "attach" => {
            let container_id = containers::running_id(&seen, container.unwrap_or_default())?;
            let request = v1::AttachRequest {
                container_id,
                stdin,
                tty,
                stdout,
                stderr,
            };
            runtime
                .attach(request)
                .await
                .map(|answer| answer.into_inner().url)
        }
        _ => {
            let mut ports: Vec<i32> = ask
                .all("port")
                .iter()
                .chain(&ask.all("ports"))
                .flat_map(|list| list.split(','))
                .filter_map(|port| port.parse().ok())
                .collect();
            ports.dedup();
            let pod_sandbox_id = sandbox(core, spec::uid(&seen.pod)).await?;
            let request = v1::PortForwardRequest {
                pod_sandbox_id,
                port: ports,
            };
            runtime
                .port_forward(request)
                .await
                .map(|answer| answer.into_inner().url)
        }
    };
    url.map_err(|status| Box::new(text(StatusCode::INTERNAL_SERVER_ERROR, status.message())))
}

async fn sandbox(core: &Core, uid: &str) -> Result<String, Box<Response<Body>>> {
    let observed = core.runtime.observe(uid, &mut Default::default()).await;
    let ready = observed
        .ok()
        .and_then(|o| o.sandboxes.into_iter().find(|s| s.ready));
    ready.map(|sandbox| sandbox.id).ok_or_else(|| {
        Box::new(text(
            StatusCode::NOT_FOUND,
            "the pod has no running sandbox",
        ))
    })
}

async fn tunnel(core: &Core, url: &str, mut request: Request<Incoming>) -> Response<Body> {
    let bad = |message: String| text(StatusCode::BAD_GATEWAY, message);
    let Ok(uri) = url.parse::<Uri>() else {
        return bad(format!(
            "the runtime returned an invalid streaming URL: {url}"
        ));
    };
    let (Some(host), port) = (uri.host(), uri.port_u16().unwrap_or(80)) else {
        return bad(format!(
            "the runtime returned a streaming URL without a host: {url}"
        ));
    };
    let host = if host == "localhost" {
        "127.0.0.1"
    } else {
        host.trim_matches(['[', ']'])
    };
    let Ok(ip) = host.parse::<std::net::IpAddr>() else {
        return bad(format!(
            "the runtime's streaming address is not an IP: {url}"
        ));
    };
    let backend = match TcpStream::connect((ip, port)).await {
        Ok(backend) => backend,
        Err(error) => return bad(format!("cannot reach the runtime at {url}: {error}")),
    };
    let _ = backend.set_nodelay(true);
    if let Ok(authority) = header::HeaderValue::from_str(&format!("{host}:{port}")) {
        request.headers_mut().insert(header::HOST, authority);
    }
    let path = uri.path_and_query().cloned();
    *request.uri_mut() = path.map(Uri::from).unwrap_or_default();
    let (backend, activity) = Watched::new(backend);
    let limit = core.settings().streaming_connection_idle_timeout.0;
    match streaming::tunnel::upgrade(request, backend).await {
        Ok((answer, splice)) => {
            if let Some(splice) = splice {
                core.context.spawn("stream", async move {
                    tokio::select! {
                        ended = splice.run() => if let Err(error) = ended {
                            debug!(%error, "stream ended");
                        },
                        () = activity.ended(limit) => debug!("stream was idle for too long"),
                    }
                });
            }
            answer.map(|body| body.map_err(|never| match never {}).boxed())
        }
        Err(error) => bad(error.to_string()),
    }
}
