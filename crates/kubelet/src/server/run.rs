//! `POST /run/NAMESPACE/POD[/UID]/CONTAINER?cmd=…`: runs a command in a container and returns its output, without a
//! stream.

use bytes::Bytes;
use cri::v1;
use http::{Response, StatusCode, header};
use http_body_util::{BodyExt, Full};

use super::{Body, KubeletRequest, containers, text};
use crate::core::Core;

/// Runs the command to its end. Its output is the body, standard output first; a command that fails is an error.
pub(super) async fn serve(
    core: &Core,
    namespace: &str,
    pod: &str,
    container: &str,
    ask: &KubeletRequest,
) -> Response<Body> {
    let Some(seen) = core.registry.find(namespace, pod) else {
        return text(StatusCode::NOT_FOUND, "pod does not exist");
    };
    let failed = |message: String| text(StatusCode::INTERNAL_SERVER_ERROR, message);
    let Ok(container_id) = containers::running_id(&seen, container) else {
        return failed(format!("container not found ({container:?})"));
    };
    let cmd = command(ask);
    let shown = cmd.join(" ");
    let request = v1::ExecSyncRequest {
        container_id,
        cmd,
        timeout: 0,
    };
    match core.runtime.exec_sync(request).await {
        Ok(ended) if ended.exit_code == 0 => output([ended.stdout, ended.stderr].concat()),
        Ok(ended) => failed(format!(
            "command '{shown}' exited with {}: {}",
            ended.exit_code,
            String::from_utf8_lossy(&ended.stderr)
        )),
        Err(status) => failed(status.message().to_owned()),
    }
}

/// The command: the words of one parameter, as of old; a word cannot contain a space.
fn command(ask: &KubeletRequest) -> Vec<String> {
    let text = ask.get("cmd").unwrap_or_default();
    text.split(' ').map(str::to_owned).collect()
}

/// Output is declared as JSON, as upstream declares it, whatever the command wrote.
fn output(bytes: Vec<u8>) -> Response<Body> {
    let is_empty = bytes.is_empty();
    let body = Full::new(Bytes::from(bytes)).map_err(|never| match never {});
    let mut response = Response::new(body.boxed());
    if !is_empty {
        let json = header::HeaderValue::from_static("application/json");
        response.headers_mut().insert(header::CONTENT_TYPE, json);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_one_parameter_split_at_spaces() {
        for (query, expected) in [
            ("cmd=ls+-l%20/tmp", vec!["ls", "-l", "/tmp"]),
            ("cmd=a&cmd=b", vec!["a"]),
            ("command=ls", vec![""]),
        ] {
            let uri = format!("/run/ns/pod/c?{query}");
            let request = http::Request::post(uri).body(()).unwrap();
            assert_eq!(command(&KubeletRequest::new(&request)), expected, "{query}");
        }
    }
}
