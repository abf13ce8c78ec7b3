//! The server side of the socket: only root may connect. A socket of a dead process is replaced,
//! one that still answers is not.

use std::{io, os::unix::fs::PermissionsExt, path::Path};

use tokio::net::{UnixListener, UnixStream};
use tokio_stream::wrappers::UnixListenerStream;

/// Accepted connections for tonic's server.
pub type Incoming = UnixListenerStream;

/// Listens on `path`, which is created with its directory and accessible only to its owner.
pub async fn listen(path: &Path) -> io::Result<Incoming> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    match UnixStream::connect(path).await {
        Ok(_) => {
            let message = format!("another runtime listens on {}", path.display());
            return Err(io::Error::new(io::ErrorKind::AddrInUse, message));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(_) => std::fs::remove_file(path)?,
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(UnixListenerStream::new(listener))
}

#[cfg(test)]
mod tests {
    use tonic::{Request, Response, Status, transport::Server};

    use super::*;
    use crate::v1::{
        VersionRequest, VersionResponse,
        runtime_service_server::{RuntimeService, RuntimeServiceServer},
    };

    struct Fake;

    #[tonic::async_trait]
    impl RuntimeService for Fake {
        async fn version(
            &self,
            _: Request<VersionRequest>,
        ) -> Result<Response<VersionResponse>, Status> {
            Ok(Response::new(VersionResponse {
                runtime_name: "fake".into(),
                ..Default::default()
            }))
        }
    }

    #[tokio::test]
    async fn a_client_reaches_a_server_over_the_socket() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("cri.sock");
        // A socket file of a dead process is replaced.
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        let incoming = listen(&socket).await.unwrap();
        let server = Server::builder().add_service(RuntimeServiceServer::new(Fake));
        let serving = tokio::spawn(server.serve_with_incoming(incoming));
        let mut client = crate::connect(&socket);
        let answer = client
            .runtime
            .version(VersionRequest::default())
            .await
            .unwrap();
        assert_eq!(answer.into_inner().runtime_name, "fake");
        let missing = client
            .runtime
            .checkpoint_pod(crate::v1::CheckpointPodRequest::default())
            .await;
        assert_eq!(missing.unwrap_err().code(), tonic::Code::Unimplemented);
        assert!(
            listen(&socket).await.is_err(),
            "a live runtime is not pushed aside"
        );
        serving.abort();
    }
}
