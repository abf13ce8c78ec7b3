//! Limits parallel image pulls and their rate, as the KubeletConfiguration says.

use std::{sync::Arc, time::Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{configuration::KubeletConfiguration, rate::Rate};

/// Upstream's message for a pull above the rate limit.
pub(crate) const EXCEEDED: &str = "pull QPS exceeded";

/// The limits.
pub struct Pulls {
    /// One permit per parallel pull; `None`: unlimited.
    slots: Option<Arc<Semaphore>>,
    rate: Option<Rate>,
}

impl Pulls {
    pub fn new(configuration: &KubeletConfiguration) -> Self {
        let slots = match configuration.serialize_image_pulls {
            true => Some(1),
            false => configuration.max_parallel_image_pulls,
        };
        let slots = slots.and_then(|slots| usize::try_from(slots).ok());
        let slots = slots.map(|slots| slots.min(Semaphore::MAX_PERMITS));
        Self {
            slots: slots.map(|slots| Arc::new(Semaphore::new(slots))),
            rate: Rate::new(
                configuration.registry_pull_qps,
                configuration.registry_burst,
            ),
        }
    }

    /// Waits for a permit. Fails if the rate limit is exceeded.
    pub async fn turn(&self) -> Result<Option<OwnedSemaphorePermit>, &'static str> {
        let permit = match &self.slots {
            // The semaphore is never closed.
            Some(slots) => slots.clone().acquire_owned().await.ok(),
            None => None,
        };
        if let Some(rate) = &self.rate
            && !rate.take(Instant::now())
        {
            return Err(EXCEEDED);
        }
        Ok(permit)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn pulls(change: impl FnOnce(&mut KubeletConfiguration)) -> Pulls {
        let mut configuration = KubeletConfiguration::default();
        change(&mut configuration);
        Pulls::new(&configuration)
    }

    #[tokio::test]
    async fn only_so_many_images_are_pulled_at_once() {
        for (change, slots) in [
            ((|_| {}) as fn(&mut KubeletConfiguration), None),
            (|c| c.max_parallel_image_pulls = Some(2), Some(2)),
            (|c| c.serialize_image_pulls = true, Some(1)),
        ] {
            let pulls = pulls(change);
            let free = |pulls: &Pulls| pulls.slots.as_ref().map(|slots| slots.available_permits());
            assert_eq!(free(&pulls), slots);
            let turn = pulls.turn().await.unwrap();
            assert_eq!(free(&pulls), slots.map(|slots| slots - 1));
            drop(turn);
            assert_eq!(free(&pulls), slots);
        }
    }

    #[tokio::test]
    async fn pulls_beyond_the_burst_are_refused_until_time_has_passed() {
        let pulls = pulls(|c| (c.registry_pull_qps, c.registry_burst) = (2, 3));
        for _ in 0..3 {
            assert!(pulls.turn().await.is_ok());
        }
        assert_eq!(pulls.turn().await.err(), Some(EXCEEDED));
        let later = Instant::now() + Duration::from_millis(600);
        let rate = pulls.rate.as_ref().unwrap();
        assert!(rate.take(later) && !rate.take(later));
    }
}
