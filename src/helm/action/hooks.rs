//! Hooks of releases (`pkg/action/hooks.go` of Helm).

use client::Discovery;
use sorting::CompactSort as _;

use super::{Action, ActionError};
use crate::cluster::{ClusterError, Target, wait};
use crate::release::{Hook, Release, Storage, now};
use crate::yaml;

/// When a hook's object is removed.
const BEFORE_CREATION: &str = "before-hook-creation";
const SUCCEEDED: &str = "hook-succeeded";
const FAILED: &str = "hook-failed";

impl Action<'_> {
    /// Runs the hooks of an event in the order of their weights and waits for each.
    pub(super) async fn run_hooks(
        &self,
        release: &mut Release,
        event: &'static str,
        discovery: &mut Discovery<'_>,
        storage: &Storage,
    ) -> Result<(), ActionError> {
        let hooks = release.hooks_mut();
        let mut order: Vec<usize> = (0..hooks.len()).collect();
        order.retain(|at| {
            hooks.get(*at).is_some_and(|hook| hook.events.iter().any(|known| known == event))
        });
        order.compact_sort_by_key(|at| hooks.get(*at).map(|hook| (hook.weight, hook.name.clone())));
        let mut done = Vec::new();
        for at in order {
            let Some(hook) = release.hooks_mut().get_mut(at) else { continue };
            if hook.delete_policies.is_empty() {
                hook.delete_policies.push(BEFORE_CREATION.into());
            }
            let copy = hook.clone();
            self.remove_hook(&copy, BEFORE_CREATION, discovery, event).await?;
            hook.last_run.started_at = now();
            hook.last_run.phase = "Running".into();
            if let Err(error) = storage.update(release).await {
                tracing::warn!(release = release.name, %error, "helm: hook is not recorded");
            }
            let outcome = self.run_hook(&copy, discovery).await;
            if let Some(hook) = release.hooks_mut().get_mut(at) {
                hook.last_run.completed_at = now();
                hook.last_run.phase = if outcome.is_ok() { "Succeeded" } else { "Failed" }.into();
            }
            if let Err(cause) = outcome {
                self.remove_hook(&copy, FAILED, discovery, event).await?;
                for hook in &done {
                    self.remove_hook(hook, SUCCEEDED, discovery, event).await?;
                }
                return Err(ActionError::Hook { event, path: copy.path, cause });
            }
            done.push(copy);
        }
        for hook in done.iter().rev() {
            self.remove_hook(hook, SUCCEEDED, discovery, event).await?;
        }
        Ok(())
    }

    async fn hook_targets(
        &self,
        hook: &Hook,
        discovery: &mut Discovery<'_>,
    ) -> Result<Vec<Target>, ClusterError> {
        let object = yaml::parse(hook.manifest.as_bytes()).unwrap_or_default();
        let one = [(hook.path.as_str(), &object)];
        self.cluster().targets(discovery, &one).await
    }

    async fn run_hook(
        &self,
        hook: &Hook,
        discovery: &mut Discovery<'_>,
    ) -> Result<(), ClusterError> {
        let cluster = self.cluster();
        let targets = self.hook_targets(hook, discovery).await?;
        for target in &targets {
            cluster.apply(target, false, false).await?;
        }
        for target in &targets {
            wait::hook(self.client, target, self.settings.timeout).await?;
        }
        Ok(())
    }

    /// Removes the object of a hook that has this policy, and waits until it is gone.
    async fn remove_hook(
        &self,
        hook: &Hook,
        policy: &str,
        discovery: &mut Discovery<'_>,
        event: &'static str,
    ) -> Result<(), ActionError> {
        // The removal of definitions would remove all objects of their kind.
        if hook.kind == "CustomResourceDefinition"
            || !hook.delete_policies.iter().any(|known| known == policy)
        {
            return Ok(());
        }
        let failed = |cause| ActionError::Hook { event, path: hook.path.clone(), cause };
        let cluster = self.cluster();
        for target in self.hook_targets(hook, discovery).await.map_err(failed)? {
            cluster.remove(&target).await.map_err(failed)?;
            let gone = wait::removed(self.client, &target, self.settings.timeout).await;
            gone.map_err(|error| failed(error.into()))?;
        }
        Ok(())
    }
}
