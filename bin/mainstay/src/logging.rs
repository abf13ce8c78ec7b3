//! Where log lines go: standard error, as text or JSON, filtered as asked.

use anyhow::{Context, Result};
use cluster::{LogFormat, Options};
use tracing::{Level, Metadata};
use tracing_subscriber::{
    EnvFilter, filter::filter_fn, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

/// What is logged when nothing is said: our own parts' news, the libraries' complaints.
const QUIET: &str =
    "info,h2=warn,hyper=warn,tower=warn,rustls=warn,kube=warn,libcontainer=warn,netlink=warn";

/// On a terminal the checklist speaks; the log then only says what is wrong.
const QUIETER: &str = "warn,h2=error,hyper=error,tower=error,kube=error,libcontainer=error";

/// The library that would print whatever goes through a stream, a token that somebody reads in a
/// container as well.
const PRINTS_CONTENT: &str = "tungstenite";

/// Whether a line may be logged whatever is asked for.
fn tells_no_secret(about: &Metadata<'_>) -> bool {
    *about.level() != Level::TRACE || !about.target().starts_with(PRINTS_CONTENT)
}

/// Starts logging for the life of the process.
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
        LogFormat::Text => builder.with_ansi(on_terminal).finish().with(safe).init(),
        LogFormat::Json => builder.json().finish().with(safe).init(),
    }
    Ok(())
}
