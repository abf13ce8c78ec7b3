//! `mainstay image`: the images of a running node.

use std::{
    io::{IsTerminal, Read},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use cluster::Options;
use cri::{
    files::{Piece, image_files_client::ImageFilesClient},
    v1::{Image as CriImage, ImageSpec, ListImagesRequest, RemoveImageRequest},
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::cli::{Image, ImageStore};

/// Bytes per message: well below what the server accepts.
const PIECE: usize = 1 << 20;

/// Runs one of the image commands against the node's runtime.
pub fn run(image: Image) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    match image {
        Image::Import { file, store } => runtime.block_on(import(&socket(&store)?, &file)),
        Image::List { store } => runtime.block_on(list(&socket(&store)?)),
        Image::Remove { image, store } => runtime.block_on(remove(&socket(&store)?, image)),
    }
}

/// Where the runtime of the cluster in this data directory listens.
fn socket(store: &ImageStore) -> Result<PathBuf> {
    let options = Options {
        data_dir: store.data_dir.clone(),
        ..Options::default()
    };
    let data_dir = cluster::settings::data_dir(&options)?;
    let socket = cluster::settings::state_dir(&cluster::settings::id(&data_dir)).join("cri.sock");
    if !socket.exists() {
        bail!(
            "no cluster runs from {}; start one with `mainstay up`, or name another with --data-dir",
            data_dir.display()
        );
    }
    Ok(socket)
}

async fn import(socket: &Path, file: &str) -> Result<()> {
    let content: Box<dyn Read + Send> = match file {
        "-" if std::io::stdin().is_terminal() => {
            bail!("standard input is a terminal; try `docker save IMAGE | mainstay image import -`")
        }
        "-" => Box::new(std::io::stdin()),
        path => Box::new(std::fs::File::open(path).with_context(|| path.to_owned())?),
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
fn read(mut content: Box<dyn Read + Send>, pieces: &mpsc::Sender<Piece>) -> std::io::Result<()> {
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

async fn list(socket: &Path) -> Result<()> {
    let mut client = cri::connect(socket);
    let answer = client
        .images
        .list_images(ListImagesRequest { filter: None })
        .await?;
    let mut rows: Vec<[String; 3]> = answer.into_inner().images.iter().flat_map(rows).collect();
    rows.sort();
    rows.insert(0, ["IMAGE", "ID", "SIZE"].map(str::to_owned));
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let (name, id) = (width(0), width(1));
    for row in &rows {
        println!("{:<name$}   {:<id$}   {}", row[0], row[1], row[2]);
    }
    Ok(())
}

fn rows(image: &CriImage) -> Vec<[String; 3]> {
    let id: String = image
        .id
        .trim_start_matches("sha256:")
        .chars()
        .take(12)
        .collect();
    let size = format!("{:.1} MB", image.size as f64 / 1e6);
    let names = if image.repo_tags.is_empty() {
        &image.repo_digests
    } else {
        &image.repo_tags
    };
    let names = if names.is_empty() {
        vec!["<none>".to_owned()]
    } else {
        names.clone()
    };
    names
        .into_iter()
        .map(|name| [name, id.clone(), size.clone()])
        .collect()
}

async fn remove(socket: &Path, image: String) -> Result<()> {
    let mut client = cri::connect(socket);
    let spec = ImageSpec {
        image: image.clone(),
        ..ImageSpec::default()
    };
    client
        .images
        .remove_image(RemoveImageRequest { image: Some(spec) })
        .await?;
    println!("removed {image}");
    Ok(())
}
