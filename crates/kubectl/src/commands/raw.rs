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
    let [file] = files.filename.as_slice() else {
        bail!("--raw can only use a single local file or stdin");
    };
    if file.starts_with("http://") || file.starts_with("https://") {
        bail!("--raw cannot read from a url");
    }
    if files.recursive {
        bail!("--raw and --recursive are mutually exclusive");
    }
    if print
        .output
        .as_deref()
        .is_some_and(|output| !output.is_empty())
    {
        bail!("--raw and --output are mutually exclusive");
    }
    check_path(path)?;
    let mut body = Vec::new();
    match file.as_str() {
        "-" => std::io::stdin().read_to_end(&mut body).map(drop)?,
        file => body = std::fs::read(file)?,
    }
    let answer = session.api.raw(method, path, body).await?;
    std::io::stdout().write_all(&answer)?;
    Ok(())
}

/// A path begins with a slash.
pub(super) fn check_path(path: &str) -> Result<()> {
    if !path.starts_with('/') {
        bail!("--raw must be a valid URL path: parse {path:?}: invalid URI for request");
    }
    Ok(())
}
