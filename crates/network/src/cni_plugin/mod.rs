//! The built-in network as a CNI plugin, for other runtimes: containerd, CRI-O.
//!
//! The plugin is this binary, called by the runtime for each command. It answers VERSION itself and
//! passes everything else to the node's daemon over a socket ([`server`]): addresses have one
//! owner, and a pod's network policies are in place before its containers start.

mod call;
mod server;

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use serde_json::{Value, json};

pub use call::{Call, Failure};
pub use server::CniServer;

/// The supported versions of the specification, the newest last.
pub const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
/// The timeout of a call to the daemon, which itself waits for policies.
const PATIENCE: Duration = Duration::from_secs(90);

/// Whether a runtime called this binary as a plugin.
pub fn is_called() -> bool {
    std::env::var_os("CNI_COMMAND").is_some()
}

/// Handles one command, from environment and standard input to standard output. `socket_of` returns
/// the daemon's socket for a data directory.
pub fn main(socket_of: impl Fn(Option<&Path>) -> PathBuf) -> ExitCode {
    let mut input = Vec::new();
    let read = std::io::stdin().read_to_end(&mut input);
    let answer = read
        .map_err(|error| Failure::new(call::IO, "cannot read the configuration", error))
        .and_then(|_| answer(&input, |name| std::env::var(name).ok(), socket_of));
    let (text, code) = match answer {
        Ok(Value::Null) => (String::new(), ExitCode::SUCCESS),
        Ok(result) => (result.to_string(), ExitCode::SUCCESS),
        Err(failure) => (failure.shown(&input).to_string(), ExitCode::FAILURE),
    };
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => code,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Handles one command with the environment that `variable` reads.
pub fn answer(
    input: &[u8],
    variable: impl Fn(&str) -> Option<String>,
    socket_of: impl Fn(Option<&Path>) -> PathBuf,
) -> Result<Value, Failure> {
    let command = variable("CNI_COMMAND").unwrap_or_default();
    if command == "VERSION" {
        let config: Value = serde_json::from_slice(input).unwrap_or_default();
        let version = config["cniVersion"].as_str().unwrap_or("1.1.0");
        return Ok(json!({"cniVersion": version, "supportedVersions": VERSIONS}));
    }
    let call = Call::new(input, variable)?;
    let socket = match call.config["socket"].as_str() {
        Some(path) => PathBuf::from(path),
        None => socket_of(call.config["dataDir"].as_str().map(Path::new)),
    };
    ask(&socket, &call)
}

/// Passes a call to the daemon.
fn ask(socket: &Path, call: &Call) -> Result<Value, Failure> {
    let unavailable = |error: std::io::Error| {
        let details = format!("{}: {error}", socket.display());
        // STATUS has its own error code; other commands are retried.
        match call.command.as_str() {
            "STATUS" => Failure::new(call::NOT_AVAILABLE, "mainstay does not run here", details),
            _ => Failure::new(call::TRY_AGAIN, "mainstay does not run here", details),
        }
    };
    let exchange = || {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(&serde_json::to_vec(call)?)?;
        stream.shutdown(std::net::Shutdown::Write)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(answer)
    };
    let answer = exchange().map_err(unavailable)?;
    match serde_json::from_slice::<Result<Value, Failure>>(&answer) {
        Ok(answer) => answer,
        Err(error) => Err(Failure::new(
            call::IO,
            "incomplete response from mainstay",
            error,
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_known_without_a_daemon() {
        let variable = |name: &str| (name == "CNI_COMMAND").then(|| "VERSION".to_owned());
        let found = answer(br#"{"cniVersion":"0.4.0"}"#, variable, |_| PathBuf::new()).unwrap();
        assert_eq!(found["cniVersion"], "0.4.0");
        assert_eq!(found["supportedVersions"][4], "1.1.0");
    }

    #[test]
    fn without_a_daemon_the_runtime_tries_again() {
        let call = |command: &'static str| {
            let variable = move |name: &str| {
                Some(match name {
                    "CNI_COMMAND" => command.to_owned(),
                    "CNI_CONTAINERID" => "c".to_owned(),
                    "CNI_NETNS" => "/proc/self/ns/net".to_owned(),
                    "CNI_IFNAME" => "eth0".to_owned(),
                    _ => return None,
                })
            };
            let config = br#"{"cniVersion":"1.1.0","name":"mainstay","type":"mainstay"}"#;
            let socket = |_: Option<&Path>| PathBuf::from("/nowhere/cni.sock");
            answer(config, variable, socket).unwrap_err().code
        };
        assert_eq!(call("ADD"), call::TRY_AGAIN);
        assert_eq!(call("STATUS"), call::NOT_AVAILABLE);
    }
}
