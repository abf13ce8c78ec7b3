//! Images as files: OCI and docker archives in, OCI archives out.

use std::{
    fs,
    io::{self, IsTerminal, Read, Write},
    path::Path,
};

use anyhow::{Context, Result, bail};
use cri::files::{ExportRequest, Piece, image_files_client::ImageFilesClient};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::said;

/// Bytes per message: well below what the server accepts.
const PIECE: usize = 1 << 20;

/// Sends an archive to the node.
pub async fn import(socket: &Path, file: &str) -> Result<()> {
    let content: Box<dyn Read + Send> = match file {
        "-" if io::stdin().is_terminal() => {
            bail!("standard input is a terminal; try `docker save IMAGE | mainstay image import -`")
        }
        "-" => Box::new(io::stdin()),
        path => Box::new(fs::File::open(path).with_context(|| path.to_owned())?),
    };
    let mut client = ImageFilesClient::new(cri::channel(socket));
    let (sender, pieces) = mpsc::channel(4);
    let reading = tokio::task::spawn_blocking(move || read(content, &sender));
    let imported = client.import(ReceiverStream::new(pieces)).await;
    let read = reading.await?;
    let imported = imported.map_err(|status| anyhow::anyhow!("{file}: {}", status.message()))?;
    read.with_context(|| file.to_owned())?;
    for image in imported.into_inner().images {
        println!("imported {image}");
    }
    Ok(())
}

/// Reads a file in pieces; ends early when the other side has had enough.
fn read(mut content: Box<dyn Read + Send>, pieces: &mpsc::Sender<Piece>) -> io::Result<()> {
    loop {
        let mut piece = Vec::new();
        content
            .by_ref()
            .take(PIECE as u64)
            .read_to_end(&mut piece)?;
        if piece.is_empty() || pieces.blocking_send(Piece { content: piece }).is_err() {
            return Ok(());
        }
    }
}

/// Writes an image to a file, whole or not at all, or to standard output.
pub async fn export(socket: &Path, image: String, file: &str) -> Result<()> {
    if file == "-" && io::stdout().is_terminal() {
        bail!("standard output is a terminal; name a file, or pipe it somewhere");
    }
    let mut client = ImageFilesClient::new(cri::channel(socket));
    let request = ExportRequest {
        image: image.clone(),
    };
    let mut pieces = client.export(request).await.map_err(said)?.into_inner();
    let partial = format!("{file}.partial");
    let mut out: Box<dyn Write> = match file {
        "-" => Box::new(io::stdout()),
        _ => Box::new(fs::File::create(&partial).with_context(|| partial.clone())?),
    };
    let mut written = Ok(());
    while let Some(piece) = pieces.message().await.map_err(said).transpose() {
        written = piece.and_then(|piece| Ok(out.write_all(&piece.content)?));
        if written.is_err() {
            break;
        }
    }
    let written = written.and_then(|()| Ok(out.flush()?));
    if file == "-" {
        return written;
    }
    if let Err(error) = written {
        let _ = fs::remove_file(&partial);
        return Err(error.context(file.to_owned()));
    }
    fs::rename(&partial, file).with_context(|| file.to_owned())?;
    println!("exported {image} to {file}");
    Ok(())
}
