//! A change of keys, step by step: every step is in the key files of all servers before the next
//! one begins, so that an interrupted change can be resumed.

use std::sync::Arc;

use encryption::{Next, Ring, Wish, rewrite};

use super::{Error, SecretsEncryption};

/// Maximum number of rewrites of all Secrets; more than one is needed only if a server joins
/// meanwhile.
const ROUNDS_MAX: usize = 10;

impl SecretsEncryption {
    /// Changes the keys on the leader, here or on another server; the report.
    ///
    /// # Errors
    /// Why the keys were not changed, or not completely.
    pub(crate) async fn change(self: &Arc<Self>, wish: Wish) -> Result<String, Error> {
        if let Some(report) = self.by_leader(wish).await? {
            return Ok(report);
        }
        self.change_here(wish).await
    }

    /// Changes the keys as the leader; the report.
    ///
    /// # Errors
    /// Why the keys were not changed, or not completely.
    pub(crate) async fn change_here(&self, wish: Wish) -> Result<String, Error> {
        if let Some(file) = &self.file {
            return Err(Error::ConfiguredByFile(file.clone()));
        }
        if !self.servers.members.leadership().borrow().leads {
            return Err(Error::NotLeader);
        }
        let _running = self.running.try_lock().map_err(|_| Error::InProgress)?;
        let rings = self.rings().await.map_err(|e| Error::Unchanged(Box::new(e)))?;
        let agreed = Ring::merged(rings).ok_or(Error::NoKeys)?;
        let done = self.take_steps(wish, agreed).await;
        self.report_unfinished_change();
        done
    }

    async fn take_steps(&self, wish: Wish, agreed: Ring) -> Result<String, Error> {
        let next = agreed.next(wish).map_err(|e| Error::Forbidden(e.to_string()))?;
        let incomplete = |e| Error::Incomplete(Box::new(e));
        match next {
            Next::Nothing => {
                self.adopt_on_all(&agreed).await.map_err(incomplete)?;
                Ok(report(wish, 0))
            }
            Next::Steps { prepared, active, finished } => {
                let steps = self.steps(agreed, prepared, active, finished).await;
                Ok(report(wish, steps.map_err(incomplete)?))
            }
        }
    }

    async fn steps(
        &self,
        agreed: Ring,
        prepared: Option<Ring>,
        active: Ring,
        finished: Ring,
    ) -> Result<usize, Error> {
        // All servers have the agreed keys, then all have the new key, then all encrypt with it.
        self.adopt_on_all(&agreed).await?;
        if let Some(prepared) = prepared {
            self.adopt_on_all(&prepared).await?;
        }
        self.adopt_on_all(&active).await?;
        let mut written = 0;
        for _ in 0..ROUNDS_MAX {
            written += rewrite::rewrite_stale(&self.store, self.keys())
                .await
                .map_err(|e| Error::Rewrite(e.to_string()))?;
            // A server that joined meanwhile may have encrypted with the old key.
            let late = self.adopt_on_all(&active).await?;
            let count = rewrite::count(&self.store, self.keys()).await?;
            if late == 0 && count.stale == 0 {
                self.adopt_on_all(&finished).await?;
                let stage = finished.stage().name();
                tracing::info!(written, stage, "secrets-encrypt: rewrote Secrets");
                return Ok(written);
            }
        }
        Err(Error::NoProgress)
    }
}

/// The report, in the words of k3s.
fn report(wish: Wish, written: usize) -> String {
    let what = match wish {
        Wish::Rotate => "keys rotated, reencryption finished",
        Wish::Enable => "secrets-encryption enabled",
        Wish::Disable => "secrets-encryption disabled",
    };
    format!("{what}\n{written} Secrets rewritten\n")
}
