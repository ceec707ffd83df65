//! A change of keys from its first step to its last: every step is in all files before the next one begins, so that it goes
//! on from wherever it was interrupted.

use std::sync::Arc;

use apiserver::encryption::{Next, Ring, Wish, rewrite};

use super::Sealing;

/// Rounds of writing anew: more than one only when a server joined in the middle of it.
const ROUNDS_MAX: usize = 10;

impl Sealing {
    /// Does it, or has the leader of the servers do it; what to tell.
    ///
    /// # Errors
    /// Why it was not done, or not to the end.
    pub(crate) async fn change(self: &Arc<Self>, wish: Wish) -> Result<String, String> {
        if let Some(told) = self.by_leader(wish).await {
            return told;
        }
        self.change_here(wish).await
    }

    pub(crate) async fn change_here(&self, wish: Wish) -> Result<String, String> {
        if let Some(file) = &self.file {
            return Err(format!(
                "encryption-provider-config={} says how Secrets are sealed: change that file, and write Secrets anew with `kubectl get secrets -A -o json | kubectl replace -f -`",
                file.display()
            ));
        }
        if !self.members.leadership().borrow().leads {
            return Err("another server leads now, try again".to_owned());
        }
        let _one = self.one.try_lock().map_err(|_| "another change of keys is under way")?;
        let unchanged = |why| format!("{why}; all servers have to answer, nothing was changed");
        let rings = self.rings().await.map_err(unchanged)?;
        let agreed = Ring::merged(rings).ok_or("this server has no keys")?;
        let done = self.take_steps(wish, agreed).await;
        self.note();
        done
    }

    async fn take_steps(&self, wish: Wish, agreed: Ring) -> Result<String, String> {
        let next = agreed.next(wish)?;
        let left = |why| {
            format!("{why}; nothing is lost, run the same command again to go on from where it is")
        };
        match next {
            Next::Nothing => {
                self.everywhere(&agreed).await.map_err(left)?;
                Ok(told(wish, 0))
            }
            Next::Steps { prepared, active, finished } => {
                let written = self.steps(agreed, prepared, active, finished).await.map_err(left)?;
                Ok(told(wish, written))
            }
        }
    }

    async fn steps(
        &self,
        agreed: Ring,
        prepared: Option<Ring>,
        active: Ring,
        finished: Ring,
    ) -> Result<usize, String> {
        // All have what was agreed on, then all know the new key, then all seal with it.
        self.everywhere(&agreed).await?;
        if let Some(prepared) = prepared {
            self.everywhere(&prepared).await?;
        }
        self.everywhere(&active).await?;
        let mut written = 0;
        for _ in 0..ROUNDS_MAX {
            written += rewrite::rewrite_stale(&self.store, self.keys()).await?;
            // Whoever joined since may have sealed with the old key.
            let late = self.everywhere(&active).await?;
            let count =
                rewrite::count(&self.store, self.keys()).await.map_err(|e| e.to_string())?;
            if late == 0 && count.stale == 0 {
                self.everywhere(&finished).await?;
                tracing::info!(
                    written,
                    stage = finished.stage().name(),
                    "Secrets are written anew"
                );
                return Ok(written);
            }
        }
        Err("Secrets under an old key come again and again".to_owned())
    }
}

/// k3s's sentences.
fn told(wish: Wish, written: usize) -> String {
    let what = match wish {
        Wish::Rotate => "keys rotated, reencryption finished",
        Wish::Enable => "secrets-encryption enabled",
        Wish::Disable => "secrets-encryption disabled",
    };
    format!("{what}\n{written} Secrets written anew\n")
}
