//! Images as files, for the command line: CRI has no words for it.

use cri::{
    files::{ImportResponse, Piece, image_files_server::ImageFiles},
    tonic::{Request, Response, Status, Streaming, async_trait},
};
use futures::TryStreamExt;
use tokio_util::io::{StreamReader, SyncIoBridge};

use super::Cri;
use crate::images::Image;

#[async_trait]
impl ImageFiles for Cri {
    async fn import(
        &self,
        request: Request<Streaming<Piece>>,
    ) -> Result<Response<ImportResponse>, Status> {
        let pieces = request.into_inner();
        let content = pieces.map_ok(|piece| bytes::Bytes::from(piece.content));
        let content = SyncIoBridge::new(StreamReader::new(content.map_err(std::io::Error::other)));
        let engine = self.0.clone();
        let imported = self.0.blocking(move || engine.images.import(content)).await;
        let imported = imported.and_then(|imported| imported);
        let imported = imported.map_err(|error| Status::invalid_argument(error.to_string()))?;
        let images = imported.iter().map(name).collect();
        Ok(Response::new(ImportResponse { images }))
    }
}

fn name(image: &Image) -> String {
    image.tags.first().unwrap_or(&image.id).clone()
}
