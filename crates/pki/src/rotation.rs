//! The service that renews certificates when two thirds of their lifetime are over. Servers and
//! clients use the new ones at their next handshake; nothing restarts.

use std::{sync::Arc, time::Duration};

use lifecycle::{Context, Run, Service};
use stdx::clock::Clock;

use crate::Pki;

/// The longest sleep, in case the machine is suspended or the clock moves.
const AT_MOST: Duration = Duration::from_secs(3600);
/// The retry interval, such as for a full disk; a third of the lifetime is left.
const RETRY: Duration = Duration::from_secs(60);

/// Renews the certificates of a [`Pki`] as long as the process runs.
pub struct Rotation {
    pki: Arc<Pki>,
    clock: Arc<dyn Clock>,
}

impl Rotation {
    pub fn new(pki: Arc<Pki>, clock: Arc<dyn Clock>) -> Self {
        Self { pki, clock }
    }

    fn pause(&self) -> Duration {
        let until = self.pki.next_renewal().duration_since(self.clock.now());
        Duration::try_from(until).unwrap_or_default().min(AT_MOST)
    }
}

impl Service for Rotation {
    fn name(&self) -> &'static str {
        "certificates"
    }

    fn run(self: Arc<Self>, context: Context) -> Run {
        Box::pin(async move {
            context.ready();
            loop {
                let pause = match self.pki.renew(self.clock.now()) {
                    Ok(_) => self.pause(),
                    Err(error) => {
                        tracing::error!(%error, "cannot renew certificates");
                        RETRY
                    }
                };
                tokio::select! {
                    () = self.clock.sleep(pause) => {}
                    () = context.shutdown() => return Ok(()),
                }
            }
        })
    }
}
