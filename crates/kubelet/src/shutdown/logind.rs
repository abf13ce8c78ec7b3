//! systemd-logind: signals a shutdown of the machine, and waits for inhibitor locks.

use std::{os::fd::OwnedFd, path::Path, sync::Arc, time::Duration};

use tracing::{debug, info, warn};

use super::dbus::{Argument, Bus, Call, Error, Value};
use crate::core::Core;

const SYSTEM_BUS: &str = "/var/run/dbus/system_bus_socket";
const OVERRIDES: &str = "/etc/systemd/logind.conf.d";
const RETRY: Duration = Duration::from_secs(30);
/// How long logind may take to reload its configuration.
const RELOAD: Duration = Duration::from_secs(4);
const LOGIND: Call<'static> = Call {
    destination: "org.freedesktop.login1",
    path: "/org/freedesktop/login1",
    interface: "org.freedesktop.login1.Manager",
    member: "",
};

/// Follows logind. Never returns; retries periodically on a machine without it.
pub(super) async fn follow(core: &Arc<Core>, period: Duration) {
    loop {
        match follow_once(core, period).await {
            Ok(()) => debug!("D-Bus closed the connection to logind"),
            Err(error) => info!(%error, "cannot use logind, no graceful node shutdown"),
        }
        core.config.clock.sleep(RETRY).await;
    }
}

async fn follow_once(core: &Arc<Core>, period: Duration) -> Result<(), Error> {
    let mut bus = Bus::connect(Path::new(SYSTEM_BUS)).await?;
    let session = Session::open(&mut bus, period, Path::new(OVERRIDES)).await?;
    info!(
        seconds = period.as_secs(),
        "logind delays shutdowns for this node's pods"
    );
    session.follow(core, &mut bus).await
}

/// An inhibitor lock on the machine's shutdown.
struct Session {
    /// logind continues when this descriptor is closed.
    lock: Option<OwnedFd>,
}

impl Session {
    async fn open(bus: &mut Bus, period: Duration, overrides: &Path) -> Result<Self, Error> {
        if delay(bus).await? < period {
            raise_delay(bus, period, overrides).await?;
        }
        let lock = Some(inhibit(bus).await?);
        let rule = "type='signal',interface='org.freedesktop.login1.Manager',member='PrepareForShutdown',path='/org/freedesktop/login1'";
        bus.add_match(rule).await?;
        Ok(Self { lock })
    }

    async fn follow(mut self, core: &Arc<Core>, bus: &mut Bus) -> Result<(), Error> {
        while let Some(begins) = next(bus).await? {
            if begins {
                super::end_pods(core).await;
                self.lock = None;
            } else {
                super::cancelled(core);
                self.lock = Some(inhibit(bus).await?);
            }
        }
        Ok(())
    }
}

/// Whether a shutdown begins (true) or is cancelled (false); `None` when the bus has closed the
/// connection.
async fn next(bus: &mut Bus) -> Result<Option<bool>, Error> {
    while let Some(signal) = bus.signal().await? {
        if signal.member == "PrepareForShutdown"
            && let Some(Value::Bool(begins)) = signal.values.first()
        {
            return Ok(Some(*begins));
        }
    }
    Ok(None)
}

/// logind's maximum inhibitor delay.
async fn delay(bus: &mut Bus) -> Result<Duration, Error> {
    let get = Call {
        interface: "org.freedesktop.DBus.Properties",
        member: "Get",
        ..LOGIND
    };
    let arguments = [
        Argument::Text(LOGIND.interface),
        Argument::Text("InhibitDelayMaxUSec"),
    ];
    let answer = bus.call(&get, &arguments).await?;
    match answer.values.first() {
        Some(Value::U64(microseconds)) => Ok(Duration::from_micros(*microseconds)),
        _ => Err(Error::Protocol("InhibitDelayMaxUSec is not a number")),
    }
}

/// Raises logind's maximum inhibitor delay.
async fn raise_delay(bus: &mut Bus, period: Duration, overrides: &Path) -> Result<(), Error> {
    let text = format!("[Login]\nInhibitDelayMaxSec={}\n", period.as_secs());
    std::fs::create_dir_all(overrides)?;
    std::fs::write(overrides.join("99-kubelet.conf"), text)?;
    let kill = Call {
        destination: "org.freedesktop.systemd1",
        path: "/org/freedesktop/systemd1",
        interface: "org.freedesktop.systemd1.Manager",
        member: "KillUnit",
    };
    // SIGHUP makes logind reload its configuration.
    let arguments = [
        Argument::Text("systemd-logind.service"),
        Argument::Text("all"),
        Argument::I32(1),
    ];
    bus.call(&kill, &arguments).await?;
    let wait = async {
        let mut backoff = stdx::Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
        while delay(bus).await? < period {
            tokio::time::sleep(backoff.step()).await;
        }
        Ok::<(), Error>(())
    };
    match tokio::time::timeout(RELOAD, wait).await {
        Ok(outcome) => outcome,
        Err(_) => {
            warn!("logind's InhibitDelayMaxSec is less than shutdownGracePeriod");
            Ok(())
        }
    }
}

async fn inhibit(bus: &mut Bus) -> Result<OwnedFd, Error> {
    let inhibit = Call {
        member: "Inhibit",
        ..LOGIND
    };
    let arguments = [
        Argument::Text("shutdown"),
        Argument::Text("kubelet"),
        Argument::Text("Kubelet needs time to handle node shutdown"),
        Argument::Text("delay"),
    ];
    let answer = bus.call(&inhibit, &arguments).await?;
    let lock = answer.descriptors.into_iter().next();
    lock.ok_or(Error::Protocol("Inhibit returned no file descriptor"))
}

#[cfg(test)]
#[path = "logind_tests.rs"]
mod tests;
