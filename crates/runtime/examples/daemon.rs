//! The runtime as a daemon, for tests that kill and restart it: `daemon ID ROOT STATE [SETTING…]`,
//! where a setting is `HANDLER=BINARY` or one of those below. Like any program that embeds the
//! runtime, it first checks whether it was started as a helper.

use std::{path::PathBuf, process::ExitCode, sync::Arc};

use lifecycle::{Context, Service};
use runtime::{Config, Snapshots};
use tokio_util::sync::CancellationToken;

fn main() -> ExitCode {
    if let Some(code) = runtime::reexec::dispatch() {
        return code;
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Some(("hello", rest)) = args
        .split_first()
        .map(|(first, rest)| (first.as_str(), rest))
    {
        return hello::main(rest);
    }
    let [id, root, state, settings @ ..] = args.as_slice() else {
        return ExitCode::from(2);
    };
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .init();
    let network = Arc::new(network::LoopbackNetwork);
    let mut config = runtime::Config::new(id, root.into(), network);
    config.state_dir = state.into();
    config.socket = config.state_dir.join("cri.sock");
    for setting in settings {
        if let Some((name, value)) = setting.split_once('=')
            && let Err(error) = set(&mut config, name, value)
        {
            tracing::error!(error, setting);
            return ExitCode::from(2);
        }
    }
    let Ok(threads) = tokio::runtime::Runtime::new() else {
        return ExitCode::FAILURE;
    };
    threads.block_on(run(config))
}

fn set(config: &mut Config, name: &str, value: &str) -> Result<(), Box<dyn std::error::Error>> {
    match name {
        "--snapshots" => {
            config.snapshots = match value {
                "copy" => Snapshots::Copy,
                "overlay" => Snapshots::Overlay,
                _ => Snapshots::Auto,
            }
        }
        // CONF_DIR:BIN_DIR:BIN_DIR…
        "--cni" => {
            let mut dirs = value.split(':').map(PathBuf::from);
            let cni = network::CniConfig {
                conf_dir: dirs.next().unwrap_or_default(),
                bin_dirs: dirs.collect(),
                state_dir: config.root_dir.join("cni"),
            };
            config.network = cni.build()?;
        }
        // No thread has been started yet: all of them will be in the new namespace.
        "--own-network" => {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)?;
            let up = ["link", "set", "lo", "up"];
            std::process::Command::new("ip").args(up).status()?;
        }
        // The built-in network of a node with this address, on a veth pair that leads nowhere.
        "--routed" => {
            for line in [
                "link add wire0 type veth peer name wire1",
                "link set wire1 up",
                "link set wire0 up",
                &format!("addr add {value}/24 dev wire0"),
            ] {
                std::process::Command::new("ip")
                    .args(line.split(' '))
                    .status()?;
            }
            let routed = network::Config {
                id: "0123abcd".to_owned(),
                state_dir: config.state_dir.join("network"),
                cluster_cidrs: vec!["10.42.0.0/16".parse()?],
                service_cidrs: vec!["10.43.0.0/16".parse()?],
                node_ips: vec![value.parse()?],
                mtu: 1500,
            };
            config.network = routed.build(network::nft::Nft::new())?;
        }
        "--registries" => config.registries = serde_json::from_slice(&std::fs::read(value)?)?,
        "--max-bytes" => config.image_limits.bytes = value.parse()?,
        "--max-entries" => config.image_limits.entries = value.parse()?,
        "--log-max-bytes" => config.log_limits.max_bytes = value.parse()?,
        "--cdi" => config.cdi_dirs = value.split(':').map(PathBuf::from).collect(),
        handler => {
            config.handlers.insert(handler.to_owned(), value.into());
        }
    }
    Ok(())
}

async fn run(config: Config) -> ExitCode {
    let Ok(service) = config.build() else {
        return ExitCode::FAILURE;
    };
    let stop = CancellationToken::new();
    let asked = stop.clone();
    tokio::spawn(async move {
        let mut signal = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate());
        if let Ok(signal) = &mut signal {
            signal.recv().await;
        }
        asked.cancel();
    });
    match service.run(Context::standalone("runtime", stop)).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "failed");
            ExitCode::FAILURE
        }
    }
}
