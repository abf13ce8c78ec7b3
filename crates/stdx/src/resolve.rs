//! Resolves names by `/etc/hosts` and `/etc/resolv.conf`. A static binary cannot use the system's
//! resolver. Blocks; UDP only; no cache.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// How long one name server may take for one question.
const PATIENCE: Duration = Duration::from_secs(2);

/// The supported record types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An IPv4 address.
    A = 1,
    /// The name of an address.
    Ptr = 12,
    /// An IPv6 address.
    Aaaa = 28,
    /// A service record.
    Srv = 33,
}

/// A resolver configuration.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Settings {
    servers: Vec<IpAddr>,
    search: Vec<String>,
    ndots: usize,
}

/// The addresses of a host: a literal, an entry of `/etc/hosts`, or from DNS.
pub fn resolve(host: &str) -> io::Result<Vec<IpAddr>> {
    if let Ok(address) = host.trim_matches(['[', ']']).parse() {
        return Ok(vec![address]);
    }
    let hosts = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
    let found = in_hosts(&hosts, host);
    if !found.is_empty() {
        return Ok(found);
    }
    // Small images and roots have no /etc/hosts; RFC 6761 reserves the name.
    if host.eq_ignore_ascii_case("localhost") {
        return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
    }
    Settings::load().addresses(host)
}

fn in_hosts(text: &str, host: &str) -> Vec<IpAddr> {
    let line = |line: &str| {
        let mut words = line.split('#').next()?.split_whitespace();
        let address = words.next()?.parse().ok()?;
        words
            .any(|name| name.eq_ignore_ascii_case(host))
            .then_some(address)
    };
    text.lines().filter_map(line).collect()
}

impl Settings {
    /// The configuration of the machine or pod.
    pub fn load() -> Self {
        Self::parse(&std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        let mut settings = Self {
            ndots: 1,
            ..Self::default()
        };
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => settings
                    .servers
                    .extend(words.filter_map(|word| word.parse::<IpAddr>().ok())),
                Some("search" | "domain") => settings.search = words.map(str::to_owned).collect(),
                Some("options") => {
                    let ndots = words.find_map(|word| word.strip_prefix("ndots:")?.parse().ok());
                    settings.ndots = ndots.unwrap_or(settings.ndots);
                }
                _ => {}
            }
        }
        settings
    }

    /// The full names to query, in order.
    fn candidates(&self, name: &str) -> Vec<String> {
        if let Some(full) = name.strip_suffix('.') {
            return vec![full.to_owned()];
        }
        let searched = self
            .search
            .iter()
            .map(|domain| format!("{name}.{}", domain.trim_end_matches('.')));
        if name.matches('.').count() >= self.ndots {
            std::iter::once(name.to_owned()).chain(searched).collect()
        } else {
            searched.chain(std::iter::once(name.to_owned())).collect()
        }
    }

    /// The addresses of the first candidate that has any, of both families: a name with only an
    /// IPv4 address must not be searched elsewhere because it has no IPv6 address.
    pub fn addresses(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        let mut trouble = None;
        for candidate in self.candidates(host) {
            let mut found: Vec<IpAddr> = Vec::new();
            for kind in [Kind::A, Kind::Aaaa] {
                match self.ask(&candidate, kind) {
                    Ok(records) => {
                        found.extend(records.iter().filter_map(|r| r.parse::<IpAddr>().ok()))
                    }
                    Err(error) => trouble = Some(error),
                }
            }
            if !found.is_empty() {
                return Ok(found);
            }
        }
        let missing = || io::Error::new(io::ErrorKind::NotFound, format!("no address of {host:?}"));
        Err(trouble.unwrap_or_else(missing))
    }

    /// The records of the first candidate that has any.
    pub fn lookup(&self, name: &str, kind: Kind) -> io::Result<Vec<String>> {
        let mut trouble = None;
        for candidate in self.candidates(name) {
            match self.ask(&candidate, kind) {
                Ok(records) if records.is_empty() => {}
                Ok(records) => return Ok(records),
                Err(error) => trouble = Some(error),
            }
        }
        trouble.map_or(Ok(Vec::new()), Err)
    }

    fn ask(&self, name: &str, kind: Kind) -> io::Result<Vec<String>> {
        let mut trouble = io::Error::other("no name server is configured");
        for _ in 0..2 {
            for server in &self.servers {
                match ask_one((*server, 53).into(), name, kind) {
                    Ok(records) => return Ok(records),
                    Err(error) => {
                        trouble =
                            io::Error::new(error.kind(), format!("name server {server}: {error}"))
                    }
                }
            }
        }
        Err(io::Error::new(
            trouble.kind(),
            format!("lookup {name}: {trouble}"),
        ))
    }
}

/// A receive timeout is reported by the kernel as a resource that is temporarily unavailable.
fn timed_out(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => io::Error::new(
            io::ErrorKind::TimedOut,
            format!("no answer within {} seconds", PATIENCE.as_secs()),
        ),
        _ => error,
    }
}

fn ask_one(server: SocketAddr, name: &str, kind: Kind) -> io::Result<Vec<String>> {
    let local: SocketAddr = match server.ip() {
        IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        IpAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(local)?;
    socket.connect(server)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let nanos = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.subsec_nanos());
    let id = (nanos ^ std::process::id()) as u16;
    socket.send(&question(id, name, kind)?)?;
    let mut buffer = [0; 4096];
    loop {
        let length = socket.recv(&mut buffer).map_err(timed_out)?;
        if let Some(records) = read_answer(&buffer[..length], id, kind) {
            return records;
        }
    }
}

fn question(id: u16, name: &str, kind: Kind) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.extend(id.to_be_bytes());
    // Recursion desired, one question.
    bytes.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.split('.').filter(|label| !label.is_empty()) {
        let length = u8::try_from(label.len()).ok().filter(|length| *length < 64);
        bytes.push(length.ok_or(io::ErrorKind::InvalidInput)?);
        bytes.extend(label.as_bytes());
    }
    bytes.extend([0, 0, kind as u8, 0, 1]);
    Ok(bytes)
}

/// The records of an answer to our question; `None` if it is not for us.
fn read_answer(message: &[u8], id: u16, kind: Kind) -> Option<io::Result<Vec<String>>> {
    let word = |at: usize| {
        Some(u16::from_be_bytes([
            *message.get(at)?,
            *message.get(at + 1)?,
        ]))
    };
    if word(0)? != id || message.get(2)? & 0x80 == 0 {
        return None;
    }
    match message.get(3)? & 0x0f {
        0 | 3 => {}
        code => {
            return Some(Err(io::Error::other(format!(
                "the server failed with code {code}"
            ))));
        }
    }
    let mut at = 12;
    for _ in 0..word(4)? {
        at = skip_name(message, at)? + 4;
    }
    let mut records = Vec::new();
    for _ in 0..word(6)? {
        at = skip_name(message, at)?;
        let (found, length) = (word(at)?, usize::from(word(at + 8)?));
        at += 10;
        let data = message.get(at..at + length)?;
        if found == kind as u16 {
            records.push(match kind {
                Kind::A => Ipv4Addr::from(<[u8; 4]>::try_from(data).ok()?).to_string(),
                Kind::Aaaa => Ipv6Addr::from(<[u8; 16]>::try_from(data).ok()?).to_string(),
                Kind::Ptr => read_name(message, at)?,
                Kind::Srv => {
                    let (priority, weight, port) = (word(at)?, word(at + 2)?, word(at + 4)?);
                    format!("{priority} {weight} {port} {}", read_name(message, at + 6)?)
                }
            });
        }
        at += length;
    }
    Some(Ok(records))
}

fn skip_name(message: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match *message.get(at)? {
            0 => return Some(at + 1),
            length if length >= 0xc0 => return Some(at + 2),
            length => at += 1 + usize::from(length),
        }
    }
}

fn read_name(message: &[u8], mut at: usize) -> Option<String> {
    let mut name = String::new();
    // A name has at most 127 labels; more means that pointers form a loop.
    for _ in 0..128 {
        match *message.get(at)? {
            0 => return Some(name),
            length if length >= 0xc0 => {
                at = usize::from(u16::from_be_bytes([length & 0x3f, *message.get(at + 1)?]));
            }
            length => {
                let end = at + 1 + usize::from(length);
                name.push_str(&String::from_utf8_lossy(message.get(at + 1..end)?));
                name.push('.');
                at = end;
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONF: &str =
        "search a.svc.cluster.local svc.cluster.local\nnameserver 10.43.0.10\noptions ndots:5\n";

    #[test]
    fn search_domains_come_first_for_short_names() {
        let settings = Settings::parse(CONF);
        assert_eq!(settings.servers, [IpAddr::from([10, 43, 0, 10])]);
        assert_eq!(
            settings.candidates("web"),
            ["web.a.svc.cluster.local", "web.svc.cluster.local", "web"]
        );
        assert_eq!(settings.candidates("web.x."), ["web.x"]);
        assert_eq!(
            Settings::parse("search x\n").candidates("a.b"),
            ["a.b", "a.b.x"]
        );
    }

    #[test]
    fn an_answer_with_compressed_names_is_read() {
        let mut message = question(7, "web.a", Kind::A).unwrap();
        message[2] |= 0x80;
        message[7] = 1;
        message.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4, 10, 42, 0, 3]);
        assert_eq!(
            read_answer(&message, 7, Kind::A).unwrap().unwrap(),
            ["10.42.0.3"]
        );
        assert!(read_answer(&message, 8, Kind::A).is_none());
        assert!(read_answer(&message[..20], 7, Kind::A).is_none());
    }

    #[test]
    fn a_failed_lookup_names_the_question_the_server_and_what_happened() {
        // The kernel reports a receive timeout like this.
        let silent = timed_out(io::Error::from_raw_os_error(11));
        assert_eq!(silent.kind(), io::ErrorKind::TimedOut);
        assert_eq!(silent.to_string(), "no answer within 2 seconds");
        let refused = timed_out(io::Error::from_raw_os_error(111));
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        // A label of 64 characters cannot be asked for.
        let settings = Settings {
            servers: vec![IpAddr::from([0, 0, 0, 0])],
            ..Settings::default()
        };
        let error = settings.ask(&"x".repeat(64), Kind::A).unwrap_err();
        let (name, error) = ("x".repeat(64), error.to_string());
        assert!(
            error.starts_with(&format!("lookup {name}: name server 0.0.0.0: ")),
            "{error}"
        );
        let error = Settings::default().ask("a", Kind::A).unwrap_err();
        assert_eq!(error.to_string(), "lookup a: no name server is configured");
    }

    #[test]
    fn hosts_are_matched_by_any_of_their_names() {
        let text = "127.0.0.1 localhost # here\n10.0.0.1\tweb web.x\n";
        assert_eq!(in_hosts(text, "WEB.X"), [IpAddr::from([10, 0, 0, 1])]);
        assert!(in_hosts(text, "here").is_empty());
    }
}
