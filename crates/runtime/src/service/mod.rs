//! The CRI server: translates requests to calls of the engine.

mod files;
mod image;
mod runtime;

use std::sync::Arc;

use cri::{
    MAX_MESSAGE_SIZE,
    files::image_files_server::ImageFilesServer,
    v1::{image_service_server::ImageServiceServer, runtime_service_server::RuntimeServiceServer},
};
use lifecycle::Context;

use crate::{
    engine::Engine,
    error::{Error, Result},
};

/// Both CRI services.
#[derive(Clone)]
struct Cri(Arc<Engine>);

/// Serves until shutdown.
pub(crate) async fn serve(engine: Arc<Engine>, context: Context) -> Result<()> {
    if let Some(program) = engine.config.hello_program.clone() {
        let images = engine.clone();
        let made = engine
            .blocking(move || images.images.ensure_hello(&program))
            .await?;
        if let Err(error) = made {
            tracing::warn!(%error, "cannot import the built-in hello image");
        }
    }
    let images = engine.clone();
    let preloaded = engine
        .blocking(move || images.images.preload(&images.config.image_dirs))
        .await?;
    if let Err(error) = preloaded {
        tracing::error!(%error, "cannot import images");
    }
    engine.serve_streams().await?;
    let socket = engine.config.socket.clone();
    let incoming = cri::listen(&socket).await.map_err(Error::file(&socket))?;
    let cri = Cri(engine);
    let runtime = RuntimeServiceServer::new(cri.clone())
        .max_decoding_message_size(MAX_MESSAGE_SIZE)
        .max_encoding_message_size(MAX_MESSAGE_SIZE);
    let files = ImageFilesServer::new(cri.clone());
    let images = ImageServiceServer::new(cri)
        .max_decoding_message_size(MAX_MESSAGE_SIZE)
        .max_encoding_message_size(MAX_MESSAGE_SIZE);
    let server = cri::tonic::transport::Server::builder()
        .add_service(runtime)
        .add_service(images)
        .add_service(files);
    context.ready();
    tracing::info!(socket = %socket.display(), "serving CRI");
    let stop = context.token();
    let served = server
        .serve_with_incoming_shutdown(incoming, stop.cancelled_owned())
        .await;
    let _ = std::fs::remove_file(&socket);
    served.map_err(|error| Error::System {
        action: "serve CRI".to_owned(),
        source: std::io::Error::other(error),
    })
}
