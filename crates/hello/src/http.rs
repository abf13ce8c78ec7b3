//! An HTTP server that responds with its identity.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use crate::{Command, Outcome, host_name, number, print_line, signals};

pub(crate) const COMMANDS: &[Command] = &[Command {
    name: "http",
    arguments: "[PORT]",
    help: "serve HTTP (8080): / host name, /headers, /client, /healthz, /healthz/off, /healthz/on, /exit",
    run,
}];

/// The maximum size of a request's head.
const MAX_HEAD: u64 = 64 * 1024;
/// The maximum size of a body.
const MAX_BODY: u64 = 16 << 20;

#[derive(Default)]
struct State {
    unhealthy: AtomicBool,
    requests: AtomicU64,
}

fn run(args: &[String]) -> Outcome {
    let port = number(args, 0, "a port")?.unwrap_or(8080);
    let state = State::default();
    serve(port, move |request, client| {
        state.requests.fetch_add(1, Ordering::Relaxed);
        answer(request, client, &state)
    })
}

/// Serves until the process is asked to end. Every connection has a thread.
pub(crate) fn serve(
    port: u16,
    answer: impl Fn(&Request, &str) -> Answer + Send + Sync + 'static,
) -> Outcome {
    signals::end_when_asked()?;
    let listener = listen(port)?;
    print_line(format_args!("{} serves HTTP on port {port}", host_name()))?;
    let answer = Arc::new(answer);
    for stream in listener.incoming().flatten() {
        let answer = answer.clone();
        // If no thread can be created, the connection is dropped: the client may retry.
        let _ = thread::Builder::new()
            .stack_size(256 * 1024)
            .spawn(move || connection(stream, &*answer));
    }
    Ok(0)
}

/// A response.
pub(crate) struct Answer {
    pub status: &'static str,
    /// Additional header lines, each with its line end.
    pub headers: &'static str,
    pub body: String,
    /// The exit code, if the process ends after the response.
    pub exit_code: Option<i32>,
}

impl Answer {
    pub(crate) fn text(status: &'static str, body: impl Into<String>) -> Self {
        Self {
            status,
            headers: "Content-Type: text/plain; charset=utf-8\r\n",
            body: body.into(),
            exit_code: None,
        }
    }

    pub(crate) fn html(body: String) -> Self {
        Self {
            status: "200 OK",
            headers: "Content-Type: text/html; charset=utf-8\r\n",
            body,
            exit_code: None,
        }
    }
}

/// Dual-stack if possible.
pub(crate) fn listen(port: u16) -> io::Result<TcpListener> {
    TcpListener::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)))
        .or_else(|_| TcpListener::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))))
}

fn connection(stream: TcpStream, answer: &dyn Fn(&Request, &str) -> Answer) {
    let _ = stream.set_read_timeout(Some(Duration::from_secs(60)));
    let client = stream
        .peer_addr()
        .map(|address| address.to_string())
        .unwrap_or_default();
    let Ok(mut writer) = stream.try_clone() else {
        return;
    };
    let mut reader = BufReader::new(stream);
    while let Ok(Some(request)) = Request::read(&mut reader) {
        let Answer {
            status,
            headers,
            body,
            exit_code,
        } = answer(&request, &client);
        let keep = request.keeps_alive();
        let connection = if keep { "keep-alive" } else { "close" };
        let head = format!(
            "HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\nConnection: {connection}\r\n\r\n",
            body.len()
        );
        let sent = if request.method == "HEAD" {
            head
        } else {
            head + &body
        };
        if writer.write_all(sent.as_bytes()).is_err() || !keep {
            return;
        }
        if let Some(code) = exit_code {
            std::process::exit(code);
        }
    }
}

fn answer(request: &Request, client: &str, state: &State) -> Answer {
    let ok = |body: String| Answer::text("200 OK", body);
    match request.path() {
        "/" | "/hostname" => ok(format!("{}\n", host_name())),
        "/headers" => ok(request.text.clone()),
        "/client" => ok(format!("{client}\n")),
        "/requests" => ok(format!("{}\n", state.requests.load(Ordering::Relaxed))),
        "/env" => {
            let lines =
                std::env::vars_os().map(|(k, v)| format!("{}={}\n", k.display(), v.display()));
            ok(lines.collect())
        }
        "/echo" => ok(String::from_utf8_lossy(&request.body).into_owned()),
        "/exit" => {
            let code = request.query("code").and_then(|code| code.parse().ok());
            Answer {
                exit_code: Some(code.unwrap_or(0)),
                ..ok("goodbye\n".into())
            }
        }
        "/healthz" | "/readyz" | "/livez" if state.unhealthy.load(Ordering::Relaxed) => {
            Answer::text("503 Service Unavailable", "turned off\n")
        }
        "/healthz" | "/readyz" | "/livez" => ok("ok\n".into()),
        "/healthz/off" => {
            state.unhealthy.store(true, Ordering::Relaxed);
            ok("off\n".into())
        }
        "/healthz/on" => {
            state.unhealthy.store(false, Ordering::Relaxed);
            ok("on\n".into())
        }
        _ => Answer::text("404 Not Found", "not here\n"),
    }
}

/// A request.
pub(crate) struct Request {
    pub method: String,
    target: String,
    text: String,
    pub body: Vec<u8>,
}

impl Request {
    /// Reads one request; `None` at the end of the connection.
    fn read(reader: &mut impl BufRead) -> io::Result<Option<Self>> {
        let mut text = String::new();
        let mut head = reader.take(MAX_HEAD);
        loop {
            let start = text.len();
            if head.read_line(&mut text)? == 0 {
                return Ok(None);
            }
            if text[start..].trim_end().is_empty() {
                break;
            }
        }
        let mut words = text.lines().next().unwrap_or_default().split_whitespace();
        let method = words.next().unwrap_or_default().to_owned();
        let target = words.next().unwrap_or_default().to_owned();
        let mut request = Self {
            method,
            target,
            text,
            body: Vec::new(),
        };
        let length = request
            .header("content-length")
            .and_then(|text| text.parse().ok())
            .unwrap_or(0);
        reader
            .take(length.min(MAX_BODY))
            .read_to_end(&mut request.body)?;
        Ok(Some(request))
    }

    fn header(&self, name: &str) -> Option<&str> {
        let matching = |line: &&str| {
            line.split(':')
                .next()
                .is_some_and(|key| key.eq_ignore_ascii_case(name))
        };
        self.text
            .lines()
            .skip(1)
            .find(matching)?
            .split_once(':')
            .map(|(_, value)| value.trim())
    }

    fn keeps_alive(&self) -> bool {
        let close = |value: &str| value.eq_ignore_ascii_case("close");
        let old = self
            .text
            .lines()
            .next()
            .is_some_and(|line| line.ends_with("HTTP/1.0"));
        !old && !self.header("connection").is_some_and(close)
    }

    pub(crate) fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    pub(crate) fn query(&self, name: &str) -> Option<&str> {
        let query = self.target.split_once('?')?.1;
        query
            .split('&')
            .find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(text: &str) -> Request {
        Request::read(&mut text.as_bytes()).unwrap().unwrap()
    }

    #[test]
    fn health_can_be_turned_off_and_on() {
        let state = State::default();
        let get = |path: &str| {
            answer(
                &request(&format!("GET {path} HTTP/1.1\r\n\r\n")),
                "",
                &state,
            )
            .status
        };
        assert_eq!(get("/healthz"), "200 OK");
        get("/healthz/off");
        assert_eq!(get("/healthz"), "503 Service Unavailable");
        get("/healthz/on");
        assert_eq!(get("/healthz"), "200 OK");
        assert_eq!(get("/nowhere"), "404 Not Found");
    }

    #[test]
    fn bodies_and_queries_are_read() {
        let post = request("POST /echo?a=1&code=7 HTTP/1.1\r\nContent-Length: 3\r\n\r\nhey");
        assert_eq!(
            (post.path(), post.query("code"), post.body.as_slice()),
            ("/echo", Some("7"), &b"hey"[..])
        );
        assert!(post.keeps_alive());
        assert!(!request("GET / HTTP/1.1\r\nConnection: close\r\n\r\n").keeps_alive());
    }
}
