//! An HTTP client for use inside a pod.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use crate::{Command, Complaint, Outcome};

pub(crate) const COMMANDS: &[Command] = &[
    Command {
        name: "get",
        arguments: "URL [SECONDS]",
        help: "print the response of an http:// URL; fails unless it is 2xx",
        run: get,
    },
    Command {
        name: "post",
        arguments: "URL TEXT",
        help: "post a text to an http:// URL and print the response; fails unless it is 2xx",
        run: post,
    },
];

fn get(args: &[String]) -> Outcome {
    let url = args.first().ok_or("which URL?")?;
    let timeout = Duration::from_secs(crate::number(args, 1, "a number of seconds")?.unwrap_or(5));
    print(&fetch("GET", url, b"", timeout)?)
}

fn post(args: &[String]) -> Outcome {
    let [url, text] = args else {
        return Err("which URL, and what?".into());
    };
    print(&fetch(
        "POST",
        url,
        text.as_bytes(),
        Duration::from_secs(5),
    )?)
}

fn print(answer: &Answer) -> Outcome {
    io::stdout().write_all(&answer.body)?;
    Ok(u8::from(!(200..300).contains(&answer.status)))
}

/// A response.
pub(crate) struct Answer {
    pub status: u16,
    pub body: Vec<u8>,
}

/// Host, port and path of an `http://` URL.
fn parts(url: &str) -> Result<(&str, u16, &str), Complaint> {
    let rest = url.strip_prefix("http://").unwrap_or(url);
    let at = rest.find('/').unwrap_or(rest.len());
    let (authority, path) = rest.split_at(at);
    let path = if path.is_empty() { "/" } else { path };
    let bracketed = authority.ends_with(']');
    match authority.rsplit_once(':') {
        Some((host, port)) if !bracketed => {
            let port = port
                .parse()
                .map_err(|_| format!("{port:?} is not a port"))?;
            Ok((host, port, path))
        }
        _ => Ok((authority, 80, path)),
    }
}

/// Fetches an `http://` URL.
pub(crate) fn fetch(
    method: &str,
    url: &str,
    body: &[u8],
    timeout: Duration,
) -> Result<Answer, Complaint> {
    let (host, port, path) = parts(url)?;
    let mut trouble: Complaint = "no address".into();
    for address in stdx::resolve::resolve(host.trim_matches(['[', ']']))? {
        match TcpStream::connect_timeout(&SocketAddr::new(address, port), timeout) {
            Ok(stream) => {
                let head = match port {
                    80 => format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n"),
                    port => format!("{method} {path} HTTP/1.1\r\nHost: {host}:{port}\r\n"),
                };
                return exchange(stream, head, body, timeout);
            }
            Err(error) => trouble = format!("{address}:{port}: {error}").into(),
        }
    }
    Err(trouble)
}

fn exchange(
    mut stream: TcpStream,
    mut head: String,
    body: &[u8],
    timeout: Duration,
) -> Result<Answer, Complaint> {
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    head.push_str("Connection: close\r\n");
    if !body.is_empty() {
        head.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    let end = bytes
        .windows(4)
        .position(|window| window == b"\r\n\r\n")
        .ok_or("not an HTTP answer")?;
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let status = head
        .split_whitespace()
        .nth(1)
        .and_then(|code| code.parse().ok());
    let body = bytes.split_off(end + 4);
    let chunked = head
        .to_ascii_lowercase()
        .contains("transfer-encoding: chunked");
    let body = if chunked { unchunk(&body) } else { body };
    Ok(Answer {
        status: status.ok_or("not an HTTP answer")?,
        body,
    })
}

fn unchunk(mut bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = bytes.windows(2).position(|window| window == b"\r\n") {
        let size = String::from_utf8_lossy(&bytes[..end]);
        let size = usize::from_str_radix(size.split(';').next().unwrap_or_default().trim(), 16)
            .unwrap_or(0);
        let rest = &bytes[end + 2..];
        if size == 0 || rest.len() < size {
            break;
        }
        body.extend_from_slice(&rest[..size]);
        bytes = rest.get(size + 2..).unwrap_or_default();
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        assert_eq!(parts("http://web").unwrap(), ("web", 80, "/"));
        assert_eq!(parts("http://web:8080/a?b").unwrap(), ("web", 8080, "/a?b"));
        assert_eq!(parts("http://[::1]:81/").unwrap(), ("[::1]", 81, "/"));
        assert_eq!(parts("http://[::1]").unwrap(), ("[::1]", 80, "/"));
        assert!(parts("http://web:x").is_err());
    }

    #[test]
    fn chunks_are_joined() {
        assert_eq!(unchunk(b"3\r\nabc\r\n2;x=1\r\nde\r\n0\r\n\r\n"), b"abcde");
    }
}
