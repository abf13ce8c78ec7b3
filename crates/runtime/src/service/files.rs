//! Import and export of images, and pulls with progress, for the command line: CRI has no calls for
//! them.

use std::{
    collections::BTreeSet,
    io::{self, BufWriter, Write},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use cri::{
    files::{
        ExportRequest, ImportResponse, Piece, PullPart, PullProgress, PullRequest, PullStage,
        image_files_server::ImageFiles,
    },
    tonic::{Request, Response, Status, Streaming, async_trait},
    v1::AuthConfig,
};
use futures::{Stream, TryStreamExt};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::io::{StreamReader, SyncIoBridge};

use super::Cri;
use crate::images::{Image, Part, Progress, Stage};

/// The bytes of one message: well below gRPC's limit.
const PIECE: usize = 1 << 20;

/// The minimum interval between two progress messages.
const SHOW_EVERY: Duration = Duration::from_millis(100);

type Streamed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[async_trait]
impl ImageFiles for Cri {
    async fn import(
        &self,
        request: Request<Streaming<Piece>>,
    ) -> Result<Response<ImportResponse>, Status> {
        let pieces = request.into_inner();
        let content = pieces.map_ok(|piece| bytes::Bytes::from(piece.content));
        let content = SyncIoBridge::new(StreamReader::new(content.map_err(io::Error::other)));
        let engine = self.0.clone();
        let imported = self.0.blocking(move || engine.images.import(content)).await;
        let imported = imported.and_then(|imported| imported);
        let imported = imported.map_err(|error| Status::invalid_argument(error.to_string()))?;
        let images = imported.iter();
        let images = names(images.map(|image| (&image.tags, image.id.as_str())));
        Ok(Response::new(ImportResponse { images }))
    }

    async fn export(
        &self,
        request: Request<ExportRequest>,
    ) -> Result<Response<Streamed<Piece>>, Status> {
        let image = request.into_inner().image;
        self.0.images.need(&image)?;
        let (sender, pieces) = mpsc::channel(4);
        let engine = self.0.clone();
        tokio::task::spawn_blocking(move || {
            let mut out = BufWriter::with_capacity(PIECE, Pieces(&sender));
            let written = engine.images.export(&image, &mut out);
            let flushed = out.flush();
            drop(out);
            let failed = match (written, flushed) {
                (Err(error), _) => Some(Status::from(error)),
                (Ok(()), Err(error)) => Some(Status::unknown(error.to_string())),
                (Ok(()), Ok(())) => None,
            };
            if let Some(failed) = failed {
                let _ = sender.blocking_send(Err(failed));
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(pieces))))
    }

    async fn pull(
        &self,
        request: Request<PullRequest>,
    ) -> Result<Response<Streamed<PullProgress>>, Status> {
        let request = request.into_inner();
        let auth = (!request.username.is_empty()).then(|| AuthConfig {
            username: request.username,
            password: request.password,
            ..AuthConfig::default()
        });
        let progress = Arc::new(Progress::default());
        let parts = progress.watch();
        let (sender, messages) = mpsc::channel(4);
        let engine = self.0.clone();
        let work = async move { engine.pull_image(&request.image, auth, &progress).await };
        let engine = self.0.clone();
        self.0.spawn("pull", async move {
            let pulling = engine.finish(work);
            let last = show(pulling, parts, &sender).await;
            let _ = sender.send(last.map_err(Status::from)).await;
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(messages))))
    }
}

/// Sends the progress of a pull until it has ended; returns the final message.
async fn show(
    pulling: impl Future<Output = crate::Result<Image>>,
    mut parts: watch::Receiver<Vec<Part>>,
    messages: &mpsc::Sender<Result<PullProgress, Status>>,
) -> crate::Result<PullProgress> {
    tokio::pin!(pulling);
    loop {
        let image = tokio::select! {
            image = &mut pulling => image?,
            Ok(()) = parts.changed() => {
                let now = describe(&parts.borrow_and_update());
                // A slow or disconnected client does not delay the pull.
                let _ = messages.try_send(Ok(now));
                tokio::select! {
                    image = &mut pulling => image?,
                    () = tokio::time::sleep(SHOW_EVERY) => continue,
                }
            }
        };
        let mut last = describe(&parts.borrow());
        last.id = image.id;
        return Ok(last);
    }
}

fn describe(parts: &[Part]) -> PullProgress {
    let stage = |stage: Stage| match stage {
        Stage::Waiting => PullStage::Waiting,
        Stage::Downloading => PullStage::Downloading,
        Stage::Downloaded => PullStage::Downloaded,
        Stage::Unpacking => PullStage::Unpacking,
        Stage::Done => PullStage::Done,
    };
    let part = |part: &Part| PullPart {
        digest: part.digest.clone(),
        size: part.size,
        have: part.have,
        stage: stage(part.stage).into(),
    };
    PullProgress {
        parts: parts.iter().map(part).collect(),
        id: String::new(),
    }
}

/// A writer that sends data as messages.
struct Pieces<'a>(&'a mpsc::Sender<Result<Piece, Status>>);

impl Write for Pieces<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let bytes = &bytes[..bytes.len().min(PIECE)];
        let piece = Piece {
            content: bytes.to_vec(),
        };
        self.0
            .blocking_send(Ok(piece))
            .map_err(|_| io::ErrorKind::BrokenPipe)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A name of each imported image, or its ID. Entries of an archive with the same content are one image with several
/// tags, of which each entry has its own.
fn names<'a>(imported: impl Iterator<Item = (&'a BTreeSet<String>, &'a str)>) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for (tags, id) in imported {
        let is_new = |tag: &&str| !names.iter().any(|known| known == tag);
        let mut tags = tags.iter().map(String::as_str).chain([id]);
        if let Some(name) = tags.find(is_new) {
            names.push(name.to_owned());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_with_the_same_content_are_named_once_each() {
        let one = BTreeSet::from(["a".to_owned()]);
        let both = BTreeSet::from(["a".to_owned(), "b".to_owned()]);
        let none = BTreeSet::new();
        let imported = [(&one, "x"), (&both, "x"), (&none, "y")];
        assert_eq!(names(imported.into_iter()), ["a", "b", "y"]);
    }
}
