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

use super::runtime_error;

/// Bytes per message: well below the server's limit.
const PIECE: usize = 1 << 20;

/// Sends an archive to the node.
pub(super) async fn import(socket: &Path, file: &str) -> Result<()> {
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
    for image in once(imported.into_inner().images) {
        println!("imported {image}");
    }
    Ok(())
}

/// Every name once: images with the same content are one image, which has all their names.
fn once(names: Vec<String>) -> Vec<String> {
    let mut seen = std::collections::HashSet::new();
    let is_new = |name: &String| seen.insert(name.clone());
    names.into_iter().filter(is_new).collect()
}

/// Reads a file in pieces; ends early if the receiver is gone.
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

/// Creates a new file: an existing file or link is removed, not written through.
fn new_file(path: &str) -> io::Result<fs::File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => fs::File::create_new(path),
    }
}

/// Writes an image to a file, atomically, or to standard output.
pub(super) async fn export(socket: &Path, image: String, file: &str) -> Result<()> {
    if file == "-" && io::stdout().is_terminal() {
        bail!("standard output is a terminal; give a file or use a pipe");
    }
    let mut client = ImageFilesClient::new(cri::channel(socket));
    let request = ExportRequest {
        image: image.clone(),
    };
    let mut pieces = client
        .export(request)
        .await
        .map_err(runtime_error)?
        .into_inner();
    let partial = format!("{file}.partial");
    let mut out: Box<dyn Write> = match file {
        "-" => Box::new(io::stdout()),
        _ => Box::new(new_file(&partial).with_context(|| partial.clone())?),
    };
    let mut written = Ok(());
    while let Some(piece) = pieces.message().await.map_err(runtime_error).transpose() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_printed_once_in_the_order_of_the_archive() {
        let names = ["b:1", "b:1", "a:1", "b:1"].map(str::to_owned);
        assert_eq!(once(names.into()), ["b:1", "a:1"]);
    }

    #[test]
    fn a_link_in_the_place_of_a_new_file_is_not_written_through() {
        let directory = tempfile::tempdir().unwrap();
        let (theirs, link) = (
            directory.path().join("theirs"),
            directory.path().join("link"),
        );
        fs::write(&theirs, "theirs").unwrap();
        std::os::unix::fs::symlink(&theirs, &link).unwrap();
        for content in ["first", "second"] {
            let mut file = new_file(link.to_str().unwrap()).unwrap();
            file.write_all(content.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&link).unwrap(), content);
        }
        assert_eq!(fs::read_to_string(&theirs).unwrap(), "theirs");
    }
}
