//! Connects this process's scheduler to the API server's path for diagnoses.

use std::pin::Pin;

use apiserver::Diagnose;

/// Asks the scheduler, if it runs here.
pub(crate) struct SchedulerDiagnoses(pub(crate) scheduler::Diagnoses);

impl Diagnose for SchedulerDiagnoses {
    fn diagnose<'a>(
        &'a self,
        uid: &'a str,
    ) -> Pin<Box<dyn Future<Output = Option<Vec<u8>>> + Send + 'a>> {
        Box::pin(async move {
            let diagnosis = self.0.get(uid).await?;
            serde_json::to_vec(&diagnosis).ok()
        })
    }
}
