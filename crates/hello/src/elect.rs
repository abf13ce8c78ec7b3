//! A small leader election as in Kubernetes' own components: a Lease names the leader, which renews
//! it; another candidate takes it over if it was not renewed for a while. Uses the kubectl in the
//! same program for the API.

use std::{
    io::Write,
    process::{Command as Process, Stdio},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use crate::{Command, Complaint, Outcome, host_name, print_line};

pub(crate) const COMMANDS: &[Command] = &[Command {
    name: "elect",
    arguments: "LEASE",
    help: "run a leader election forever: the leader holds the Lease of this name in the pod's namespace",
    run: elect,
}];

/// A leader without renewal for this long has lost.
const LEASE: Duration = Duration::from_secs(6);
const RENEW: Duration = Duration::from_secs(2);

/// A Lease on the server.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    holder: String,
    version: String,
    acquired: String,
    transitions: u32,
}

fn elect(args: &[String]) -> Outcome {
    let Some(name) = args.first() else {
        return Err("which Lease?".into());
    };
    let own = host_name();
    let mut known: Option<(Seen, Instant)> = None;
    let mut said = String::new();
    loop {
        let seen = read(name)?;
        // Machines' clocks differ: what counts is how long this process saw no change.
        let since = match (&known, &seen) {
            (Some((before, since)), Some(seen)) if before == seen => *since,
            _ => Instant::now(),
        };
        let is_free = seen.as_ref().is_none_or(|seen| {
            seen.holder.is_empty() || seen.holder == own || since.elapsed() > LEASE
        });
        let leads = is_free && write(name, &own, seen.as_ref())?;
        let line = match &seen {
            _ if leads => format!("{own} leads"),
            Some(seen) => format!("{own} follows {}", seen.holder),
            None => format!("{own} waits"),
        };
        if line != said {
            print_line(&line)?;
            said = line;
        }
        known = seen.map(|seen| (seen, since));
        thread::sleep(RENEW);
    }
}

fn kubectl(args: &[&str], input: &str) -> Result<(bool, String, String), Complaint> {
    let mut process = Process::new(std::env::current_exe()?)
        .arg("kubectl")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut stdin) = process.stdin.take() {
        stdin.write_all(input.as_bytes())?;
    }
    let output = process.wait_with_output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((
        output.status.success(),
        text(&output.stdout),
        text(&output.stderr),
    ))
}

/// Reads the Lease; `None` if there is none.
fn read(name: &str) -> Result<Option<Seen>, Complaint> {
    const FIELDS: &str = "-o=jsonpath={.spec.holderIdentity}|{.metadata.resourceVersion}|{.spec.acquireTime}|{.spec.leaseTransitions}";
    let (ok, out, err) = kubectl(&["get", "lease", name, "--ignore-not-found", FIELDS], "")?;
    if !ok {
        return Err(err.trim().to_owned().into());
    }
    Ok(parse(&out))
}

fn parse(line: &str) -> Option<Seen> {
    let [holder, version, acquired, transitions] =
        line.trim().split('|').collect::<Vec<_>>().try_into().ok()?;
    Some(Seen {
        holder: holder.to_owned(),
        version: version.to_owned(),
        acquired: acquired.to_owned(),
        transitions: transitions.parse().unwrap_or_default(),
    })
}

/// Creates or renews the Lease. The server rejects it if another candidate was faster, by the
/// resourceVersion.
fn write(name: &str, own: &str, seen: Option<&Seen>) -> Result<bool, Complaint> {
    let manifest = manifest(name, own, seen, SystemTime::now());
    let verb = if seen.is_some() { "replace" } else { "create" };
    let (ok, _, err) = kubectl(&[verb, "-f", "-"], &manifest)?;
    let was_faster = ["AlreadyExists", "Conflict", "NotFound"]
        .iter()
        .any(|reason| err.contains(&format!("({reason})")));
    if !ok && !was_faster {
        return Err(err.trim().to_owned().into());
    }
    Ok(ok)
}

fn manifest(name: &str, own: &str, seen: Option<&Seen>, now: SystemTime) -> String {
    let time = stamp(now);
    let (version, acquired, transitions) = match seen {
        Some(seen) if seen.holder == own => {
            (&seen.version[..], seen.acquired.clone(), seen.transitions)
        }
        Some(seen) => (&seen.version[..], time.clone(), seen.transitions + 1),
        None => ("", time.clone(), 0),
    };
    let version = match version {
        "" => String::new(),
        version => format!(r#","resourceVersion":"{version}""#),
    };
    format!(
        r#"{{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{{"name":"{name}"{version}}},"spec":{{"holderIdentity":"{own}","leaseDurationSeconds":{},"acquireTime":"{acquired}","renewTime":"{time}","leaseTransitions":{transitions}}}}}"#,
        LEASE.as_secs()
    )
}

/// A timestamp in a Lease's format: microseconds, UTC. The date is computed as in Howard Hinnant's
/// `civil_from_days`.
fn stamp(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, seconds) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let date = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = year + era * 400 + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{date:02}T{:02}:{:02}:{:02}.{:06}Z",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60,
        since.subsec_micros()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, shown) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_827_696, "2000-02-29T12:34:56.000000Z"),
            (1_767_225_599, "2025-12-31T23:59:59.000000Z"),
            (1_772_323_200, "2026-03-01T00:00:00.000000Z"),
        ] {
            assert_eq!(stamp(UNIX_EPOCH + Duration::from_secs(seconds)), shown);
        }
    }

    #[test]
    fn a_renewal_keeps_and_a_takeover_counts() {
        let seen = parse("a|7|2026-01-01T00:00:00.000000Z|2\n").unwrap();
        let renewed = manifest("x", "a", Some(&seen), UNIX_EPOCH);
        assert!(
            renewed.contains(r#""acquireTime":"2026-01-01T00:00:00.000000Z""#),
            "{renewed}"
        );
        assert!(
            renewed.contains(r#""leaseTransitions":2"#)
                && renewed.contains(r#""resourceVersion":"7""#)
        );
        let taken = manifest("x", "b", Some(&seen), UNIX_EPOCH);
        assert!(
            taken.contains(r#""leaseTransitions":3"#) && taken.contains("1970-01-01"),
            "{taken}"
        );
        assert!(!manifest("x", "b", None, UNIX_EPOCH).contains("resourceVersion"));
        assert_eq!(parse(""), None);
    }
}
