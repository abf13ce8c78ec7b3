//! The guestbook of Kubernetes' tutorial: a web page, a leader that stores the entries, and
//! followers that replicate them for readers.

use std::{
    collections::VecDeque,
    fmt::Write,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use crate::{
    Command, Complaint, Outcome,
    get::fetch,
    host_name,
    http::{Answer, Request, serve},
    number, print_line,
};

pub(crate) const COMMANDS: &[Command] = &[
    Command {
        name: "guestbook",
        arguments: "[PORT]",
        help: "serve the guestbook's page (8080); GET_HOSTS_FROM=env finds its store by variables, not by names",
        run: frontend,
    },
    Command {
        name: "entries",
        arguments: "[PORT] [LEADER]",
        help: "keep the guestbook's entries (6379), or a copy of those at LEADER",
        run: store,
    },
];

const PORT: u16 = 6379;
/// The maximum number of entries; the oldest are dropped.
const KEPT: usize = 1000;
const LONGEST: usize = 1000;
/// How long a follower's request waits for new entries.
const PATIENCE: Duration = Duration::from_secs(10);
const TIMEOUT: Duration = Duration::from_secs(3);

/// The entries of one run of a leader.
#[derive(Debug, Default)]
struct Entries {
    /// Identifies this run: copies of an earlier one are useless.
    life: u128,
    /// The number of dropped entries.
    gone: usize,
    kept: VecDeque<String>,
}

impl Entries {
    fn end(&self) -> usize {
        self.gone + self.kept.len()
    }

    fn push(&mut self, entry: String) {
        self.kept.push_back(entry);
        if self.kept.len() > KEPT {
            self.kept.pop_front();
            self.gone += 1;
        }
    }

    /// The entries after `after` for a replica: a line with the start, then the entries.
    fn since(&self, life: u128, after: usize) -> String {
        let known = life == self.life && after <= self.end();
        let start = if known {
            after.max(self.gone)
        } else {
            self.gone
        };
        let mut text = format!("{} {start}\n", self.life);
        for entry in self.kept.iter().skip(start - self.gone) {
            text.push_str(entry);
            text.push('\n');
        }
        text
    }

    /// Applies the result of [`Entries::since`].
    fn follow(&mut self, text: &str) -> Option<()> {
        let mut lines = text.lines();
        let (life, start) = lines.next()?.split_once(' ')?;
        let (life, start): (u128, usize) = (life.parse().ok()?, start.parse().ok()?);
        if life != self.life || start != self.end() {
            *self = Self {
                life,
                gone: start,
                kept: VecDeque::new(),
            };
        }
        lines.for_each(|line| self.push(line.to_owned()));
        Some(())
    }
}

/// Entries shared by threads.
#[derive(Default)]
struct Shared {
    entries: Mutex<Entries>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is an entry after `after`, or until the timeout.
    fn since(&self, life: u128, after: usize) -> String {
        let deadline = Instant::now() + PATIENCE;
        let mut entries = self.lock();
        while entries.life == life && entries.end() <= after {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let woken = self.changed.wait_timeout(entries, left);
            entries = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        entries.since(life, after)
    }
}

fn store(args: &[String]) -> Outcome {
    let port = number(args, 0, "a port")?.unwrap_or(PORT);
    let shared = Arc::new(Shared::default());
    let leader = args.get(1).cloned();
    match leader.clone() {
        Some(leader) => {
            let copy = shared.clone();
            thread::spawn(move || follow(&leader, &copy));
        }
        None => shared.lock().life = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos(),
    }
    serve(port, move |request, _| {
        answer(request, &shared, leader.as_deref())
    })
}

fn answer(request: &Request, shared: &Shared, leader: Option<&str>) -> Answer {
    match (&request.method[..], request.path()) {
        ("POST", "/entries") if leader.is_some() => {
            Answer::text("405 Method Not Allowed", "followers are read only\n")
        }
        ("POST", "/entries") => match entry(&request.body) {
            Some(entry) => {
                shared.lock().push(entry);
                shared.changed.notify_all();
                Answer::text("201 Created", "written\n")
            }
            None => Answer::text("400 Bad Request", "an entry is a line of text\n"),
        },
        ("GET", "/entries") => {
            let entries = shared.lock();
            let lines = entries.kept.iter().map(|entry| format!("{entry}\n"));
            Answer::text("200 OK", lines.collect::<String>())
        }
        ("GET", "/entries/since") => {
            let life = request.query("life").and_then(|life| life.parse().ok());
            let after = request.query("after").and_then(|after| after.parse().ok());
            let text = shared.since(life.unwrap_or(0), after.unwrap_or(0));
            Answer::text("200 OK", text)
        }
        ("GET", "/") => Answer::text("200 OK", format!("{}\n", host_name())),
        // A follower is ready once it has reached its leader.
        ("GET", "/readyz") if shared.lock().life == 0 => {
            Answer::text("503 Service Unavailable", "waits for the leader\n")
        }
        ("GET", "/readyz" | "/healthz") => Answer::text("200 OK", "ok\n"),
        _ => Answer::text("404 Not Found", "not here\n"),
    }
}

/// One short line; as a form sends it or plain.
fn entry(body: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(body);
    let text = text.trim();
    let text = text.strip_prefix("entry=").unwrap_or(text);
    let line: String = text.lines().next()?.chars().take(LONGEST).collect();
    (!line.is_empty()).then_some(line)
}

/// Replicates a leader's entries. Never returns.
fn follow(leader: &str, shared: &Shared) {
    let mut was_there = false;
    loop {
        let (life, end) = {
            let entries = shared.lock();
            (entries.life, entries.end())
        };
        let url = format!("http://{leader}/entries/since?life={life}&after={end}");
        let news = fetch("GET", &url, b"", PATIENCE + TIMEOUT);
        let text = news.map(|answer| String::from_utf8_lossy(&answer.body).into_owned());
        let followed = text.map(|text| shared.lock().follow(&text));
        let is_there = matches!(followed, Ok(Some(())));
        if is_there != was_there {
            let how = if is_there { "follows" } else { "has lost" };
            let _ = print_line(format_args!("{how} {leader}"));
            was_there = is_there;
        }
        if !is_there {
            thread::sleep(Duration::from_millis(500));
        }
        shared.changed.notify_all();
    }
}

fn frontend(args: &[String]) -> Outcome {
    let port = number(args, 0, "a port")?.unwrap_or(8080);
    let hosts = Hosts::find(|name| std::env::var(name).ok())?;
    serve(port, move |request, _| page(request, &hosts))
}

/// The hosts of the store.
#[derive(Debug, PartialEq, Eq)]
struct Hosts {
    leader: String,
    followers: String,
}

impl Hosts {
    /// By the names of the Services, or by their environment variables.
    fn find(variable: impl Fn(&str) -> Option<String>) -> Result<Self, Complaint> {
        if variable("GET_HOSTS_FROM").as_deref() != Some("env") {
            return Ok(Self {
                leader: format!("guestbook-leader:{PORT}"),
                followers: format!("guestbook-followers:{PORT}"),
            });
        }
        let host = |name: &str| {
            let host = variable(&format!("GUESTBOOK_{name}_SERVICE_HOST"));
            let port = variable(&format!("GUESTBOOK_{name}_SERVICE_PORT"));
            match (host, port) {
                (Some(host), Some(port)) => Ok(format!("{host}:{port}")),
                _ => Err(format!(
                    "GUESTBOOK_{name}_SERVICE_HOST is not set: was the Service made before this pod?"
                )),
            }
        };
        Ok(Self {
            leader: host("LEADER")?,
            followers: host("FOLLOWERS")?,
        })
    }
}

fn page(request: &Request, hosts: &Hosts) -> Answer {
    let ask = |method: &str, host: &str, path: &str| {
        let url = format!("http://{host}{path}");
        let answer = fetch(method, &url, &request.body, TIMEOUT)?;
        match answer.status {
            200 | 201 => Ok(String::from_utf8_lossy(&answer.body).into_owned()),
            status => Err(Complaint::from(format!("{host} answered {status}"))),
        }
    };
    let failed = |complaint: Complaint| Answer::text("502 Bad Gateway", format!("{complaint}\n"));
    match (&request.method[..], request.path()) {
        ("POST", "/") => match ask("POST", &hosts.leader, "/entries") {
            Ok(_) => Answer {
                headers: "Location: /\r\n",
                ..Answer::text("303 See Other", "")
            },
            Err(complaint) => failed(complaint),
        },
        ("POST", "/entries") => match ask("POST", &hosts.leader, "/entries") {
            Ok(text) => Answer::text("201 Created", text),
            Err(complaint) => failed(complaint),
        },
        ("GET", "/entries") => match ask("GET", &hosts.followers, "/entries") {
            Ok(text) => Answer::text("200 OK", text),
            Err(complaint) => failed(complaint),
        },
        ("GET", "/") => match ask("GET", &hosts.followers, "/entries") {
            Ok(entries) => Answer::html(html(&entries, &host_name())),
            Err(complaint) => failed(complaint),
        },
        ("GET", "/healthz" | "/readyz") => Answer::text("200 OK", "ok\n"),
        _ => Answer::text("404 Not Found", "not here\n"),
    }
}

fn html(entries: &str, server: &str) -> String {
    let mut items = String::new();
    for entry in entries.lines().rev() {
        let _ = write!(items, "<li>{}</li>", escaped(entry));
    }
    format!(
        "<!doctype html><html lang=en><meta charset=utf-8><title>Guestbook</title>\
         <meta name=viewport content='width=device-width'><style>\
         body{{font:16px/1.5 system-ui,sans-serif;max-width:36em;margin:3em auto;padding:0 1em;color:#222}}\
         input{{font:inherit;padding:.4em .6em;width:70%}}button{{font:inherit;padding:.4em 1em}}\
         li{{border-bottom:1px solid #ddd;padding:.4em 0;overflow-wrap:anywhere}}ul{{list-style:none;padding:0}}\
         footer{{color:#777;font-size:.85em}}</style>\
         <h1>Guestbook</h1><form method=post enctype=text/plain>\
         <input name=entry maxlength={LONGEST} required autofocus aria-label='Your entry'> <button>Sign</button></form>\
         <ul>{items}</ul><footer>served by {}</footer></html>\n",
        escaped(server)
    )
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leader(life: u128, entries: usize) -> Entries {
        let mut leader = Entries {
            life,
            ..Entries::default()
        };
        (0..entries).for_each(|n| leader.push(n.to_string()));
        leader
    }

    #[test]
    fn a_copy_follows_its_leader_through_restarts_and_gaps() {
        let mut copy = Entries::default();
        // A first leader, a few more entries, so many that some were dropped, and a restarted
        // leader.
        for leader in [
            leader(1, 3),
            leader(1, 5),
            leader(1, 5),
            leader(1, KEPT + 50),
            leader(2, 1),
            leader(2, 0),
        ] {
            copy.follow(&leader.since(copy.life, copy.end())).unwrap();
            assert_eq!(
                (copy.life, copy.gone, &copy.kept),
                (leader.life, leader.gone, &leader.kept)
            );
        }
        assert_eq!(copy.follow("nonsense"), None);
    }

    #[test]
    fn entries_are_single_lines() {
        assert_eq!(entry(b"entry=hello\r\n").as_deref(), Some("hello"));
        assert_eq!(entry(b"one\ntwo").as_deref(), Some("one"));
        assert_eq!(
            entry("x".repeat(5000).as_bytes()).map(|entry| entry.len()),
            Some(LONGEST)
        );
        assert_eq!(entry(b" \n"), None);
    }

    #[test]
    fn the_store_is_found_by_names_or_by_variables() {
        let by_name = Hosts::find(|_| None).unwrap();
        assert_eq!(by_name.leader, "guestbook-leader:6379");
        let by_variable = Hosts::find(|name| {
            Some(match name {
                "GET_HOSTS_FROM" => "env".to_owned(),
                name if name.ends_with("PORT") => "6379".to_owned(),
                name if name.contains("LEADER") => "10.0.0.1".to_owned(),
                _ => "10.0.0.2".to_owned(),
            })
        });
        let expected = Hosts {
            leader: "10.0.0.1:6379".to_owned(),
            followers: "10.0.0.2:6379".to_owned(),
        };
        assert_eq!(by_variable.unwrap(), expected);
        let without = Hosts::find(|name| (name == "GET_HOSTS_FROM").then(|| "env".to_owned()));
        assert!(without.is_err());
    }

    #[test]
    fn entries_cannot_put_markup_into_the_page() {
        let page = html("<script>alert('x')</script>\n", "pod");
        assert!(page.contains("&lt;script&gt;alert(&#39;x&#39;)"), "{page}");
    }
}
