//! Pulling an image with progress: a line per layer on a terminal, elsewhere a line per finished
//! layer.

use std::{
    collections::BTreeSet,
    io::{self, IsTerminal, Write},
    path::Path,
};

use anyhow::{Context, Result, bail};
use cri::files::{
    PullPart, PullProgress, PullRequest, PullStage, image_files_client::ImageFilesClient,
};

use super::runtime_error;

/// Columns of a bar.
const BAR: usize = 30;

/// Pulls and shows the progress.
pub(super) async fn pull(socket: &Path, image: String, username: Option<String>) -> Result<()> {
    let password = match username {
        Some(_) => password()?,
        None => String::new(),
    };
    let mut client = ImageFilesClient::new(cri::channel(socket));
    let request = PullRequest {
        image: image.clone(),
        username: username.unwrap_or_default(),
        password,
    };
    let mut messages = client
        .pull(request)
        .await
        .map_err(runtime_error)?
        .into_inner();
    let mut out = io::stdout();
    let mut screen = Screen::new(out.is_terminal());
    let mut id = None;
    while let Some(progress) = messages.message().await.map_err(runtime_error)? {
        out.write_all(screen.show(&progress).as_bytes())?;
        out.flush()?;
        id = (!progress.id.is_empty()).then_some(progress.id);
    }
    let Some(id) = id else {
        bail!("{image}: the node stopped before the pull was complete");
    };
    println!("pulled {image} ({id})");
    Ok(())
}

fn password() -> Result<String> {
    let mut password = String::new();
    io::stdin().read_line(&mut password).context("password")?;
    Ok(password.trim_end_matches(['\r', '\n']).to_owned())
}

/// The progress display.
struct Screen {
    terminal: bool,
    /// Lines to redraw.
    lines: usize,
    /// Layers already reported, without a terminal.
    shown: BTreeSet<String>,
}

impl Screen {
    fn new(terminal: bool) -> Self {
        Self {
            terminal,
            lines: 0,
            shown: BTreeSet::new(),
        }
    }

    fn show(&mut self, progress: &PullProgress) -> String {
        if self.terminal {
            self.redraw(progress)
        } else {
            self.render(progress)
        }
    }

    /// Redraws all lines.
    fn redraw(&mut self, progress: &PullProgress) -> String {
        let mut text = String::new();
        if self.lines > 0 {
            text += &format!("\x1b[{}A", self.lines);
        }
        for part in &progress.parts {
            text += &format!("\x1b[2K{}\n", line(part));
        }
        self.lines = progress.parts.len();
        text
    }

    fn render(&mut self, progress: &PullProgress) -> String {
        let done = progress
            .parts
            .iter()
            .filter(|part| stage(part) == PullStage::Done);
        let new = done.filter(|part| self.shown.insert(part.digest.clone()));
        new.map(|part| format!("{} {}\n", short(part), size(part.size)))
            .collect()
    }
}

fn line(part: &PullPart) -> String {
    let words = match stage(part) {
        PullStage::Waiting => "waiting".to_owned(),
        PullStage::Downloading => {
            format!("{} {} / {}", bar(part), size(part.have), size(part.size))
        }
        PullStage::Downloaded => format!("downloaded {}", size(part.size)),
        PullStage::Unpacking => format!("unpacking {}", size(part.size)),
        PullStage::Done => format!("done {}", size(part.size)),
    };
    format!("{} {words}", short(part))
}

fn bar(part: &PullPart) -> String {
    let filled = match part.size {
        0 => BAR,
        size => (part.have as f64 / size as f64 * BAR as f64) as usize,
    };
    let filled = filled.min(BAR);
    format!("[{}{}]", "#".repeat(filled), " ".repeat(BAR - filled))
}

fn stage(part: &PullPart) -> PullStage {
    PullStage::try_from(part.stage).unwrap_or_default()
}

fn short(part: &PullPart) -> String {
    let digest = part.digest.trim_start_matches("sha256:");
    digest.chars().take(12).collect()
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(have: u64, stage: PullStage) -> PullProgress {
        let part = |digest: &str, have, stage: PullStage| PullPart {
            digest: format!("sha256:{digest}"),
            size: 2_000_000,
            have,
            stage: stage.into(),
        };
        PullProgress {
            parts: vec![
                part("aaaaaaaaaaaaaaaa", have, stage),
                part("bbbbbbbbbbbbbbbb", 0, PullStage::Waiting),
            ],
            id: String::new(),
        }
    }

    #[test]
    fn a_terminal_sees_bars_that_grow() {
        let mut screen = Screen::new(true);
        let first = screen.show(&progress(0, PullStage::Downloading));
        assert!(!first.contains("\x1b[2A"), "nothing to draw over yet");
        let half = screen.show(&progress(1_000_000, PullStage::Downloading));
        assert!(half.starts_with("\x1b[2A"));
        let bar = format!(
            "aaaaaaaaaaaa [{}{}] 1.0 MB / 2.0 MB",
            "#".repeat(15),
            " ".repeat(15)
        );
        assert!(half.contains(&bar), "{half:?}");
        assert!(half.contains("bbbbbbbbbbbb waiting"), "{half:?}");
    }

    #[test]
    fn a_file_gets_a_line_per_layer_once() {
        let mut screen = Screen::new(false);
        assert_eq!(screen.show(&progress(1, PullStage::Downloading)), "");
        assert_eq!(
            screen.show(&progress(2_000_000, PullStage::Done)),
            "aaaaaaaaaaaa 2.0 MB\n"
        );
        assert_eq!(screen.show(&progress(2_000_000, PullStage::Done)), "");
    }
}
