//! `--raw`: requests of any path, with a file as their body.

use std::io::{Read, Write};

use anyhow::{Result, bail};
use http::Method;

use crate::{args::Files, output::PrintFlags, session::Session};

/// Sends a file and prints the response.
pub(super) async fn send(
    session: &Session,
    method: Method,
    path: &str,
    files: &Files,
    print: &PrintFlags,
) -> Result<()> {
    if files.is_empty() {
        bail!("must specify one of -f and -k");
    }
    if files.filename.is_empty() {
        bail!("--raw can only use a single local file or stdin");
    }
    let body = body(files, print.output.as_deref())?;
    check_path(path)?;
    let answer = session.api.raw(method, path, body).await?;
    std::io::stdout().write_all(&answer)?;
    Ok(())
}

/// The content of the file, if there is one; checks the flags that `--raw` excludes.
pub(super) fn body(files: &Files, output: Option<&str>) -> Result<Vec<u8>> {
    let file = match files.filename.as_slice() {
        [] => None,
        [file] => Some(file.as_str()),
        _ => bail!("--raw can only use a single local file or stdin"),
    };
    if file.is_some_and(|file| file.starts_with("http://") || file.starts_with("https://")) {
        bail!("--raw cannot read from a url");
    }
    if files.recursive {
        bail!("--raw and --recursive are mutually exclusive");
    }
    if output.is_some_and(|output| !output.is_empty()) {
        bail!("--raw and --output are mutually exclusive");
    }
    let mut body = Vec::new();
    match file {
        None => {}
        Some("-") => std::io::stdin().read_to_end(&mut body).map(drop)?,
        Some(file) => body = std::fs::read(file)?,
    }
    Ok(body)
}

/// A path begins with a slash.
pub(super) fn check_path(path: &str) -> Result<()> {
    if !path.starts_with('/') {
        bail!("--raw must be a valid URL path: parse {path:?}: invalid URI for request");
    }
    Ok(())
}
