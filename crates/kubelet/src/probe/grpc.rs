//! A gRPC probe: the standard health service's Check.

use std::time::Duration;

use prost::Message;
use tonic::transport::Endpoint;
use tonic_prost::ProstCodec;

use super::Answer;

#[derive(Clone, PartialEq, Message)]
struct CheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, Message)]
struct CheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

const SERVING: i32 = 1;

/// Probes once.
pub(super) async fn probe(host: &str, port: i32, service: String, timeout: Duration) -> Answer {
    match tokio::time::timeout(timeout, check(host, port, &service)).await {
        Ok(Ok(SERVING)) => Answer::Ok,
        Ok(Ok(_)) => Answer::Failed("service unhealthy (responded with \"NOT_SERVING\")".into()),
        Ok(Err(message)) => Answer::Failed(message),
        Err(_) => Answer::Failed(format!(
            "timeout: failed to connect service \"{host}:{port}\" within {}s: context deadline exceeded",
            timeout.as_secs()
        )),
    }
}

async fn check(host: &str, port: i32, service: &str) -> Result<i32, String> {
    let host = if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_owned()
    };
    let endpoint = Endpoint::from_shared(format!("http://{host}:{port}"))
        .map_err(|error| error.to_string())?;
    let channel = endpoint
        .connect()
        .await
        .map_err(|error| format!("connect: {error}"))?;
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await.map_err(|error| error.to_string())?;
    let codec: ProstCodec<CheckRequest, CheckResponse> = ProstCodec::default();
    let path = http::uri::PathAndQuery::from_static("/grpc.health.v1.Health/Check");
    let request = tonic::Request::new(CheckRequest {
        service: service.to_owned(),
    });
    let answer = grpc
        .unary(request, path, codec)
        .await
        .map_err(|status| format!("health rpc failed: {}", status.message()))?;
    Ok(answer.into_inner().status)
}
