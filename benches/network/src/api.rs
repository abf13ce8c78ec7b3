//! An API server for kube-proxy, with as much as it needs: lists and watches of Services, EndpointSlices and one Node.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

use anyhow::Result;
use serde_json::{Value, json};

/// The resources: the end of their path, their group version and their kind.
const RESOURCES: [(&str, &str, &str); 4] = [
    ("/api/v1/services", "v1", "Service"),
    (
        "/apis/discovery.k8s.io/v1/endpointslices",
        "discovery.k8s.io/v1",
        "EndpointSlice",
    ),
    ("/api/v1/nodes", "v1", "Node"),
    (
        "/apis/networking.k8s.io/v1/servicecidrs",
        "networking.k8s.io/v1",
        "ServiceCIDR",
    ),
];

/// All objects, and what happened to them.
#[derive(Default)]
struct State {
    /// By the place of the resource, and by name.
    objects: BTreeMap<(usize, String), Value>,
    /// The place of the resource and the watch event. An event's revision is its index plus one.
    events: Vec<(usize, Value)>,
}

/// The server. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Api {
    /// Guards objects and events.
    state: Arc<Mutex<State>>,
    /// Wakes watches.
    changed: Arc<Condvar>,
}

fn place(kind: &str) -> usize {
    let of_kind = |(_, _, known): &(&str, &str, &str)| *known == kind;
    RESOURCES.iter().position(of_kind).unwrap_or_default()
}

impl Api {
    /// Listens on a free port of the loopback address.
    pub(crate) fn start(&self) -> Result<SocketAddr> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let api = self.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let api = api.clone();
                // A connection ends when the client is gone.
                thread::spawn(move || api.serve(stream).is_ok());
            }
        });
        Ok(address)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds or replaces an object.
    pub(crate) fn put(&self, kind: &str, mut object: Value) {
        let place = place(kind);
        let (_, version, kind) = RESOURCES[place];
        let mut state = self.state();
        let name = object["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        object["apiVersion"] = version.into();
        object["kind"] = kind.into();
        object["metadata"]["resourceVersion"] = (state.events.len() + 1).to_string().into();
        let before = state.objects.insert((place, name), object.clone());
        let what = if before.is_some() {
            "MODIFIED"
        } else {
            "ADDED"
        };
        state
            .events
            .push((place, json!({"type": what, "object": object})));
        self.changed.notify_all();
    }

    /// Deletes an object.
    pub(crate) fn remove(&self, kind: &str, name: &str) {
        let place = place(kind);
        let mut state = self.state();
        if let Some(mut object) = state.objects.remove(&(place, name.to_owned())) {
            object["metadata"]["resourceVersion"] = (state.events.len() + 1).to_string().into();
            state
                .events
                .push((place, json!({"type": "DELETED", "object": object})));
            self.changed.notify_all();
        }
    }

    /// Answers the requests of a connection.
    fn serve(&self, stream: TcpStream) -> Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut stream = stream;
        loop {
            let (mut first, mut length) = (String::new(), 0);
            if reader.read_line(&mut first)? == 0 {
                return Ok(());
            }
            loop {
                let mut line = String::new();
                reader.read_line(&mut line)?;
                let line = line.trim().to_ascii_lowercase();
                if line.is_empty() {
                    break;
                }
                if let Some(value) = line.strip_prefix("content-length:") {
                    length = value.trim().parse()?;
                }
            }
            let mut body = vec![0; length];
            std::io::Read::read_exact(&mut reader, &mut body)?;
            let target = first.split(' ').nth(1).unwrap_or_default();
            let (path, query) = target.split_once('?').unwrap_or((target, ""));
            let found = RESOURCES.iter().position(|(known, _, _)| *known == path);
            match found.filter(|_| first.starts_with("GET ")) {
                Some(_) if query.contains("sendInitialEvents=true") => {
                    respond(&mut stream, 422, &unsupported())?
                }
                Some(place) if query.contains("watch=true") => {
                    return self.watch(&mut stream, place, query);
                }
                Some(place) => respond(&mut stream, 200, &self.list(place))?,
                None => respond(
                    &mut stream,
                    404,
                    &json!({"kind": "Status", "apiVersion": "v1", "code": 404}),
                )?,
            }
        }
    }

    fn list(&self, place: usize) -> Value {
        let state = self.state();
        let of_kind = state.objects.iter().filter(|((of, _), _)| *of == place);
        let items: Vec<&Value> = of_kind.map(|(_, object)| object).collect();
        let (_, version, kind) = RESOURCES[place];
        json!({"apiVersion": version, "kind": format!("{kind}List"), "items": items,
            "metadata": {"resourceVersion": state.events.len().to_string()}})
    }

    /// Sends events until the client is gone.
    fn watch(&self, stream: &mut TcpStream, place: usize, query: &str) -> Result<()> {
        let since = query
            .split('&')
            .find_map(|part| part.strip_prefix("resourceVersion="));
        let mut next: usize = since
            .and_then(|since| since.parse().ok())
            .unwrap_or_default();
        stream.set_nodelay(true)?;
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")?;
        loop {
            let mut lines = String::new();
            {
                let mut state = self.state();
                while state.events.len() <= next {
                    let woken = self.changed.wait(state);
                    state = woken.unwrap_or_else(PoisonError::into_inner);
                }
                for (_, event) in state.events[next..].iter().filter(|(of, _)| *of == place) {
                    lines += &format!("{event}\n");
                }
                next = state.events.len();
            }
            if !lines.is_empty() {
                stream.write_all(format!("{:x}\r\n{lines}\r\n", lines.len()).as_bytes())?;
            }
        }
    }
}

/// A client that asks for a list by a watch then asks for a list.
fn unsupported() -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Invalid", "code": 422,
        "message": "sendInitialEvents is forbidden for this server"})
}

fn respond(stream: &mut TcpStream, code: u16, body: &Value) -> Result<()> {
    let body = body.to_string();
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {code} -\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all(&[head.as_bytes(), body.as_bytes()].concat())?;
    Ok(())
}
