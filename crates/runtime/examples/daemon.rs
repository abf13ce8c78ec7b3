//! The runtime alone, for tests that kill and restart it: `daemon ID ROOT STATE [HANDLER=BINARY…]`.
//! As any program that embeds the runtime, it looks first whether it is a helper.

use std::{process::ExitCode, sync::Arc};

use lifecycle::{Context, Service};
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
    let [id, root, state, handlers @ ..] = args.as_slice() else {
        return ExitCode::from(2);
    };
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .init();
    let network = Arc::new(network::LoopbackNetwork);
    let mut config = runtime::Config::new(id, root.into(), network);
    config.state_dir = state.into();
    config.socket = config.state_dir.join("cri.sock");
    for handler in handlers {
        if let Some((name, binary)) = handler.split_once('=') {
            config.handlers.insert(name.to_owned(), binary.into());
        }
    }
    let Ok(threads) = tokio::runtime::Runtime::new() else {
        return ExitCode::FAILURE;
    };
    threads.block_on(async {
        let Ok(service) = config.build() else {
            return ExitCode::FAILURE;
        };
        let stop = CancellationToken::new();
        let asked = stop.clone();
        tokio::spawn(async move {
            let mut signal =
                tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate());
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
    })
}
