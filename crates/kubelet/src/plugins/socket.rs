//! One socket in the registry: asks the plugin for its description until it answers, registers it,
//! and deregisters it when the socket is gone.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use csi::registration::{InfoRequest, RegistrationStatus, registration_client::RegistrationClient};
use stdx::{Backoff, Clock};
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tracing::{info, warn};

use super::{Handler, Handlers, Plugin};

/// The timeout of calls to a plugin.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

static REGISTRATIONS: AtomicU64 = AtomicU64::new(0);

/// Keeps the plugin of a socket registered until `gone`.
pub(super) async fn follow(
    path: PathBuf,
    handlers: Handlers,
    clock: Arc<dyn Clock>,
    gone: CancellationToken,
) {
    let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(120));
    let registered = loop {
        // A registration is never cancelled halfway.
        match register(&path, &handlers).await {
            Ok(registered) => break registered,
            Err(error) => {
                warn!(socket = %path.display(), error, "cannot register the plugin");
            }
        }
        tokio::select! {
            () = clock.sleep(backoff.step()) => {}
            () = gone.cancelled() => return,
        }
    };
    let (handler, plugin) = registered;
    tokio::select! {
        () = handler.maintain(&plugin) => {}
        () = gone.cancelled() => {}
    }
    gone.cancelled().await;
    info!(plugin = plugin.name, "deregistering plugin");
    handler.deregister(&plugin).await;
}

async fn in_time<T>(
    call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<T, String> {
    match tokio::time::timeout(REQUEST_TIMEOUT, call).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) => Err(status.message().to_owned()),
        Err(_) => Err("the plugin does not answer".to_owned()),
    }
}

async fn register(
    path: &std::path::Path,
    handlers: &Handlers,
) -> Result<(Arc<dyn Handler>, Plugin), String> {
    let mut client = RegistrationClient::new(csi::channel(path));
    let info = in_time(client.get_info(InfoRequest {})).await?;
    let handler = handlers
        .iter()
        .find(|handler| handler.kind() == info.r#type);
    let Some(handler) = handler.cloned() else {
        let kind = info.r#type;
        let why = format!(
            "no handler registered for plugin type: {kind} at socket {}",
            path.display()
        );
        notify(&mut client, Err(&why)).await?;
        return Err(why);
    };
    let endpoint = match info.endpoint.is_empty() {
        true => path.to_string_lossy().into_owned(),
        false => info.endpoint,
    };
    let plugin = Plugin {
        id: REGISTRATIONS.fetch_add(1, Ordering::Relaxed),
        name: info.name,
        socket: path.to_owned(),
        endpoint,
        versions: info.supported_versions,
    };
    if let Err(why) = handler.validate(&plugin) {
        notify(&mut client, Err(&why)).await?;
        return Err(why);
    }
    if let Err(why) = handler.register(&plugin).await {
        notify(&mut client, Err(&why)).await?;
        return Err(why);
    }
    info!(
        plugin = plugin.name,
        endpoint = plugin.endpoint,
        "plugin registered"
    );
    if let Err(error) = notify(&mut client, Ok(())).await {
        // The plugin is usable; if it is gone, the next scan of the registry notices.
        warn!(
            plugin = plugin.name,
            error, "cannot notify plugin of its registration"
        );
    }
    Ok((handler, plugin))
}

async fn notify(
    client: &mut RegistrationClient<Channel>,
    outcome: Result<(), &str>,
) -> Result<(), String> {
    let status = RegistrationStatus {
        plugin_registered: outcome.is_ok(),
        error: outcome.err().unwrap_or_default().to_owned(),
    };
    in_time(client.notify_registration_status(status))
        .await
        .map(drop)
}
