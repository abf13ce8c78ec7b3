//! `GET /logs/…`: the node's own log files and directories. Links are followed only within the log
//! directory.

use std::{
    fs::File,
    io::Read,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::Path,
};

use bytes::Bytes;
use futures::stream;
use http::{Response, StatusCode, header};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use stdx::percent;

use super::{Body, text, whole};
use crate::core::Core;

const CHUNK: usize = 64 * 1024;

/// Serves a file or a directory listing. `parts` are the decoded path segments after `/logs`.
pub(super) fn serve(core: &Core, parts: &[&str], path: &str) -> Response<Body> {
    match open(&core.config.node_logs_dir, parts) {
        Ok(opened) => match opened.metadata() {
            Ok(meta) if meta.is_dir() && !path.ends_with('/') => moved(path),
            Ok(meta) if meta.is_dir() => directory(&opened),
            Ok(meta) if meta.is_file() => content(opened, parts.last(), meta.len()),
            _ => text(StatusCode::FORBIDDEN, "403 Forbidden"),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            text(StatusCode::NOT_FOUND, "404 page not found\n")
        }
        Err(_) => text(StatusCode::FORBIDDEN, "403 Forbidden\n"),
    }
}

pub(super) fn open(root: &Path, parts: &[&str]) -> std::io::Result<File> {
    let root = File::open(root)?;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    // O_NONBLOCK: a pipe among the logs must not block the kubelet.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let path = if parts.is_empty() {
        ".".to_owned()
    } else {
        parts.join("/")
    };
    let opened: OwnedFd = rustix::fs::openat2(&root, path, flags, Mode::empty(), resolve)?;
    Ok(opened.into())
}

/// Redirects to the path with a slash, since a listing has relative links.
fn moved(path: &str) -> Response<Body> {
    let mut response = text(StatusCode::MOVED_PERMANENTLY, "");
    let name = path.rsplit('/').next().unwrap_or_default();
    if let Ok(location) = header::HeaderValue::from_str(&format!("{name}/")) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

fn directory(dir: &File) -> Response<Body> {
    let Ok(entries) = rustix::fs::Dir::read_from(dir) else {
        return text(StatusCode::INTERNAL_SERVER_ERROR, "Error reading directory");
    };
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|entry| {
            let name = std::ffi::OsStr::from_bytes(entry.file_name().to_bytes()).to_str()?;
            let slash = if entry.file_type().is_dir() { "/" } else { "" };
            (name != "." && name != "..").then(|| format!("{name}{slash}"))
        })
        .collect();
    names.sort();
    let mut page =
        "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n"
            .to_owned();
    for name in names {
        page.push_str(&format!(
            "<a href=\"{}\">{}</a>\n",
            percent::encode(&name, "/@"),
            escape_html(&name)
        ));
    }
    page.push_str("</pre>\n");
    whole(
        StatusCode::OK,
        "text/html; charset=utf-8",
        page.into_bytes(),
    )
}

fn escape_html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
    out
}

/// The file up to its current length, so that a growing log ends.
pub(super) fn content(file: File, name: Option<&&str>, length: u64) -> Response<Body> {
    let kind = match name.and_then(|name| Path::new(name).extension()?.to_str()) {
        Some("gz") => "application/gzip",
        Some("json") => "application/json",
        Some("xz" | "zst" | "journal") => "application/octet-stream",
        _ => "text/plain; charset=utf-8",
    };
    let frames = stream::unfold((file, length), |(file, left)| async move {
        if left == 0 {
            return None;
        }
        let read = tokio::task::spawn_blocking(move || {
            let mut chunk = vec![0; CHUNK.min(usize::try_from(left).unwrap_or(CHUNK))];
            let count = (&file).read(&mut chunk)?;
            chunk.truncate(count);
            Ok::<_, std::io::Error>((file, chunk))
        });
        match read.await {
            Ok(Ok((file, chunk))) if !chunk.is_empty() => {
                let left = left - chunk.len() as u64;
                Some((Ok(Frame::data(Bytes::from(chunk))), (file, left)))
            }
            // Truncated meanwhile or unreadable: the client gets fewer bytes than announced.
            _ => None,
        }
    });
    let mut response = Response::new(BodyExt::boxed(StreamBody::new(Box::pin(frames))));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    headers.insert(header::CONTENT_LENGTH, length.into());
    response
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_do_not_lead_out_of_the_log_directory() {
        let dir = tempfile::tempdir().unwrap();
        let logs = dir.path().join("logs");
        std::fs::create_dir_all(logs.join("apt")).unwrap();
        std::fs::write(logs.join("apt/history.log"), "inside").unwrap();
        std::fs::write(dir.path().join("secret"), "outside").unwrap();
        symlink("../secret", logs.join("up")).unwrap();
        symlink(dir.path().join("secret"), logs.join("absolute")).unwrap();
        symlink("apt/history.log", logs.join("history.log")).unwrap();
        let read = |parts: &[&str]| {
            let mut text = String::new();
            open(&logs, parts)?.read_to_string(&mut text)?;
            std::io::Result::Ok(text)
        };
        assert_eq!(read(&["apt", "history.log"]).unwrap(), "inside");
        assert_eq!(read(&["history.log"]).unwrap(), "inside");
        for parts in [
            &["up"][..],
            &["absolute"],
            &["..", "secret"],
            &["../secret"],
        ] {
            assert!(read(parts).is_err(), "{parts:?}");
        }
        assert!(open(&logs, &[]).unwrap().metadata().unwrap().is_dir());
    }

    #[test]
    fn names_are_escaped() {
        assert_eq!(escape_html("<a&\"b>"), "&lt;a&amp;&#34;b&gt;");
        assert_eq!(percent::encode("a b?c%", "/@"), "a%20b%3Fc%25");
    }
}
