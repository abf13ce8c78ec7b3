//! Logging: to standard error, as text or JSON, filtered by level.

use anyhow::{Context, Result};
use cluster::{LogFormat, Options};
use tracing::{Level, Metadata};
use tracing_subscriber::{
    EnvFilter, filter::filter_fn, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

/// The default filter: info from our components, warnings from libraries.
const QUIET: &str =
    "info,h2=warn,hyper=warn,tower=warn,rustls=warn,kube=warn,libcontainer=warn,netlink=warn";

/// On a terminal the checklist is shown; the log then only has warnings.
const QUIETER: &str = "warn,h2=error,hyper=error,tower=error,kube=error,libcontainer=error";

/// This library would log the content of streams, including secrets read in a container.
const PRINTS_CONTENT: &str = "tungstenite";

/// Whether a line may be logged at any configured level.
fn tells_no_secret(about: &Metadata<'_>) -> bool {
    *about.level() != Level::TRACE || !about.target().starts_with(PRINTS_CONTENT)
}

/// Starts logging for the lifetime of the process.
pub(crate) fn start(options: &Options, on_terminal: bool) -> Result<()> {
    let default = if on_terminal { QUIETER } else { QUIET };
    let filter = match options.log_level.as_deref() {
        Some("info") | None => default.to_owned(),
        Some(level) => level.to_owned(),
    };
    let filter = EnvFilter::try_new(&filter).with_context(|| format!("--log-level: {filter:?}"))?;
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
