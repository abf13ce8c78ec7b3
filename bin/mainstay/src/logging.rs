//! Logging: to standard error, as text or JSON, filtered by level.

use anyhow::{Context, Result};
use cluster::{LogFormat, Options};
use tracing::{Level, Metadata};
use tracing_subscriber::{
    EnvFilter, filter::filter_fn, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

/// The default filter: info from our components, warnings from libraries. A target is matched as a
/// prefix: `kube` would also silence the kubelet.
const QUIET: &str = "info,h2=warn,hyper=warn,tower=warn,rustls=warn,kube_client=warn,kube_runtime=warn,libcontainer=warn,netlink=warn";

/// On a terminal the checklist is shown; the log then only has warnings.
const QUIETER: &str =
    "warn,h2=error,hyper=error,tower=error,kube_client=error,kube_runtime=error,libcontainer=error";

/// This library would log the content of streams, including secrets read in a container.
const PRINTS_CONTENT: &str = "tungstenite";

/// Whether a line may be logged at any configured level.
fn tells_no_secret(about: &Metadata<'_>) -> bool {
    *about.level() != Level::TRACE || !about.target().starts_with(PRINTS_CONTENT)
}

/// The filter for a `--log-level`.
fn filter(level: Option<&str>, on_terminal: bool) -> &str {
    match level {
        None if on_terminal => QUIETER,
        None | Some("info") => QUIET,
        Some(level) => level,
    }
}

/// Starts logging for the lifetime of the process.
pub(crate) fn start(options: &Options, on_terminal: bool) -> Result<()> {
    let filter = filter(options.log_level.as_deref(), on_terminal);
    let filter = EnvFilter::try_new(filter).with_context(|| format!("--log-level: {filter:?}"))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let safe = filter_fn(tells_no_secret);
    match options.log_format.unwrap_or_default() {
        LogFormat::Text => {
            let has_colours = on_terminal && std::env::var_os("NO_COLOR").is_none();
            builder.with_ansi(has_colours).finish().with(safe).init();
        }
        LogFormat::Json => builder.json().finish().with(safe).init(),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_filters_silence_libraries_and_not_the_kubelet() {
        for (filter, ours, of_libraries) in [
            (QUIET, Level::INFO, Level::WARN),
            (QUIETER, Level::WARN, Level::ERROR),
        ] {
            let subscriber = tracing_subscriber::registry().with(EnvFilter::new(filter));
            tracing::subscriber::with_default(subscriber, || {
                let info = tracing::enabled!(target: "kubelet::worker", Level::INFO);
                assert!(tracing::enabled!(target: "kubelet::worker", Level::WARN));
                assert_eq!(info, ours == Level::INFO);
                let warns = tracing::enabled!(target: "kube_client::client", Level::WARN);
                assert_eq!(warns, of_libraries == Level::WARN);
                assert!(!tracing::enabled!(target: "kube_client::client", Level::INFO));
            });
        }
    }

    #[test]
    fn an_explicit_level_is_obeyed_on_a_terminal() {
        for (level, on_terminal, expected) in [
            (None, true, QUIETER),
            (None, false, QUIET),
            (Some("info"), true, QUIET),
            (Some("info"), false, QUIET),
            (Some("debug"), true, "debug"),
        ] {
            assert_eq!(
                filter(level, on_terminal),
                expected,
                "{level:?} {on_terminal}"
            );
        }
    }
}
