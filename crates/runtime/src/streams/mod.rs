//! The streaming server behind the URLs of Exec, Attach and PortForward. It listens on loopback; a
//! URL contains a single-use token that expires soon, so that only the CRI client can use it.

mod attach;
mod exec;
mod forward;
mod terminal;

use std::{
    collections::HashMap,
    convert::Infallible,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use cri::v1;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use streaming::Options;
use tokio::net::{TcpListener, TcpStream};

use crate::{
    engine::Engine,
    error::{Error, Result},
    id,
};

/// How long a token is valid.
const VALID: Duration = Duration::from_secs(60);

/// The maximum number of unused tokens.
const MAX_TICKETS: usize = 1000;

/// How long output is read after a command has ended.
const DRAIN: Duration = Duration::from_secs(1);

/// The request of a token.
enum Work {
    Exec {
        container: String,
        command: Vec<String>,
        options: Options,
    },
    Attach {
        container: String,
        options: Options,
    },
    Forward {
        sandbox: String,
        ports: Vec<u16>,
    },
}

/// The issued tokens.
#[derive(Default)]
pub(crate) struct Streams {
    address: Mutex<Option<SocketAddr>>,
    tickets: Mutex<HashMap<String, (Instant, Work)>>,
}

impl Streams {
    fn issue(&self, kind: &str, work: Work) -> Result<String> {
        let address = *self.address.lock();
        let address =
            address.ok_or_else(|| Error::Precondition("streams are not served yet".into()))?;
        let mut tickets = self.tickets.lock();
        tickets.retain(|_, (given, _)| given.elapsed() < VALID);
        if tickets.len() >= MAX_TICKETS {
            return Err(Error::Precondition(
                "too many streams are waiting to be opened".into(),
            ));
        }
        let ticket = id::generate();
        tickets.insert(ticket.clone(), (Instant::now(), work));
        Ok(format!("http://{address}/{kind}/{ticket}"))
    }

    fn redeem(&self, path: &str) -> Option<Work> {
        let ticket = path.rsplit('/').next()?;
        let (given, work) = self.tickets.lock().remove(ticket)?;
        (given.elapsed() < VALID).then_some(work)
    }
}

impl Engine {
    /// The URL of an exec.
    pub(crate) fn exec_url(&self, request: v1::ExecRequest) -> Result<String> {
        let container = self.running(&request.container_id)?;
        let options = Options {
            stdin: request.stdin,
            stdout: request.stdout,
            stderr: request.stderr,
            tty: request.tty,
        };
        if request.tty && request.stderr {
            return Err(Error::Invalid("a terminal has no stderr of its own".into()));
        }
        self.streams.issue(
            "exec",
            Work::Exec {
                container,
                command: request.cmd,
                options,
            },
        )
    }

    /// The URL of an attach.
    pub(crate) fn attach_url(&self, request: v1::AttachRequest) -> Result<String> {
        let container = self.running(&request.container_id)?;
        let options = Options {
            stdin: request.stdin,
            stdout: request.stdout,
            stderr: request.stderr,
            tty: request.tty,
        };
        self.streams
            .issue("attach", Work::Attach { container, options })
    }

    /// The URL of a port-forward.
    pub(crate) fn forward_url(&self, request: v1::PortForwardRequest) -> Result<String> {
        let sandbox = self.sandbox(&request.pod_sandbox_id)?;
        if !sandbox.is_ready() {
            return Err(Error::Precondition(format!(
                "sandbox {} is not ready",
                sandbox.id
            )));
        }
        let port = |port: i32| {
            u16::try_from(port).map_err(|_| Error::Invalid(format!("{port} is not a port")))
        };
        let ports = request.port.into_iter().map(port).collect::<Result<_>>()?;
        self.streams.issue(
            "portforward",
            Work::Forward {
                sandbox: sandbox.id.clone(),
                ports,
            },
        )
    }

    fn running(&self, id: &str) -> Result<String> {
        let container = self.container(id)?;
        if container.is_running() {
            return Ok(container.id.clone());
        }
        Err(Error::Precondition(format!(
            "container {id} is not running"
        )))
    }

    /// Listens and serves until shutdown.
    pub(crate) async fn serve_streams(self: &Arc<Self>) -> Result<()> {
        let wrong = || Error::system("listen for streams");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .map_err(wrong())?;
        *self.streams.address.lock() = Some(listener.local_addr().map_err(wrong())?);
        let engine = self.clone();
        self.spawn("streams", async move {
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => engine.clone().accept(stream),
                    // Out of descriptors: wait until connections end.
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
        });
        Ok(())
    }

    fn accept(self: Arc<Self>, stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        let engine = self.clone();
        self.spawn("stream connection", async move {
            let service = service_fn(move |request| {
                let answer = engine.clone().open(request);
                std::future::ready(Ok::<_, Infallible>(answer))
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(Duration::from_secs(10))
                .serve_connection(TokioIo::new(stream), service)
                .with_upgrades();
            if let Err(error) = connection.await {
                tracing::debug!(%error, "stream connection ended");
            }
        });
    }

    fn open(self: Arc<Self>, mut request: Request<Incoming>) -> Response<Full<Bytes>> {
        let Some(work) = self.streams.redeem(request.uri().path()) else {
            return refusal(StatusCode::NOT_FOUND, "no such stream");
        };
        let engine = self.clone();
        match work {
            Work::Exec {
                container,
                command,
                options,
            } => match streaming::server::exec(&mut request, options) {
                Ok((answer, pending)) => {
                    self.spawn(
                        "exec",
                        exec::run(engine, container, command, options.tty, pending),
                    );
                    answer
                }
                Err(refusal) => refusal,
            },
            Work::Attach { container, options } => {
                match streaming::server::exec(&mut request, options) {
                    Ok((answer, pending)) => {
                        self.spawn("attach", attach::run(engine, container, pending));
                        answer
                    }
                    Err(refusal) => refusal,
                }
            }
            Work::Forward { sandbox, ports } => {
                match streaming::portforward::accept(&mut request, &ports) {
                    Ok((answer, pending)) => {
                        self.spawn("port-forward", forward::run(engine, sandbox, pending));
                        answer
                    }
                    Err(refusal) => refusal,
                }
            }
        }
    }
}

fn refusal(status: StatusCode, message: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(message));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_works_once() {
        let streams = Streams::default();
        let work = || Work::Forward {
            sandbox: "x".into(),
            ports: vec![],
        };
        assert!(
            streams.issue("portforward", work()).is_err(),
            "nobody listens"
        );
        *streams.address.lock() = Some(([127, 0, 0, 1], 1).into());
        let url = streams.issue("portforward", work()).unwrap();
        assert!(url.starts_with("http://127.0.0.1:1/portforward/"));
        assert!(streams.redeem(&url).is_some());
        assert!(streams.redeem(&url).is_none());
    }

    #[test]
    fn a_ticket_does_not_wait_for_ever_and_there_are_not_too_many() {
        let streams = Streams::default();
        *streams.address.lock() = Some(([127, 0, 0, 1], 1).into());
        let work = || Work::Forward {
            sandbox: "x".into(),
            ports: vec![],
        };
        let late = streams.issue("portforward", work()).unwrap();
        let age = |streams: &Streams| {
            for (given, _) in streams.tickets.lock().values_mut() {
                *given -= VALID;
            }
        };
        age(&streams);
        assert!(streams.redeem(&late).is_none(), "too late");
        for _ in 0..MAX_TICKETS {
            streams.issue("portforward", work()).unwrap();
        }
        assert!(streams.issue("portforward", work()).is_err());
        age(&streams);
        assert!(streams.issue("portforward", work()).is_ok(), "old ones go");
    }
}
