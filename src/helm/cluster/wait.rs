//! Waits for objects: completed hooks, established definitions, removals
//! (`pkg/kube/statuswait.go` of Helm).

use std::time::Duration;

use api::WatchEvent;
use api::value::{condition, is_condition_true};
use client::{Client, Error, Scope};
use serde_json::Value;

use super::Target;

/// An object did not reach its state.
#[derive(Debug, thiserror::Error)]
pub enum WaitError {
    /// It failed.
    #[error("resource {object} not ready. status: Failed, message: {message}")]
    Failed {
        /// Kind, namespace and name.
        object: String,
        /// Why.
        message: String,
    },
    /// Not in time.
    #[error(
        "resource {object} not ready. status: InProgress, message: {message}\ncontext deadline \
             exceeded"
    )]
    Timeout {
        /// Kind, namespace and name.
        object: String,
        /// Its last state.
        message: String,
    },
    /// Still there.
    #[error("resource {object} still exists after {} s", seconds.as_secs())]
    StillExists {
        /// Kind, namespace and name.
        object: String,
        /// The timeout.
        seconds: Duration,
    },
    /// The watch failed.
    #[error("cannot watch {object}: {cause}")]
    Watch {
        /// Kind, namespace and name.
        object: String,
        /// Cause.
        cause: Error,
    },
}

/// State of an object that is waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    Ready,
    InProgress(String),
    Failed(String),
}

fn named(target: &Target) -> String {
    format!("{}/{}/{}", target.kind_name(), target.namespace, target.name)
}

/// Waits until a hook has run: Jobs complete, Pods succeed, everything else at once.
pub(crate) async fn hook(
    client: &Client,
    target: &Target,
    timeout: Duration,
) -> Result<(), WaitError> {
    let decide: fn(&Value) -> State = match target.kind_name() {
        "Job" => job,
        "Pod" => pod,
        _ => return Ok(()),
    };
    ready(client, target, timeout, decide).await
}

/// Waits until a definition is served.
pub(crate) async fn established(
    client: &Client,
    target: &Target,
    timeout: Duration,
) -> Result<(), WaitError> {
    ready(client, target, timeout, definition).await
}

async fn ready(
    client: &Client,
    target: &Target,
    timeout: Duration,
    decide: fn(&Value) -> State,
) -> Result<(), WaitError> {
    let mut last = "not observed yet".to_owned();
    let object = || named(target);
    let watched = tokio::time::timeout(
        timeout,
        watch(client, target, |current| match current.map(decide) {
            Some(State::Ready) => Some(Ok(())),
            Some(State::Failed(message)) => {
                Some(Err(WaitError::Failed { object: object(), message }))
            }
            Some(State::InProgress(message)) => {
                last = message;
                None
            }
            None => None,
        }),
    );
    match watched.await {
        Ok(outcome) => outcome,
        Err(_) => Err(WaitError::Timeout { object: object(), message: last }),
    }
}

/// Waits until an object does not exist.
pub(crate) async fn removed(
    client: &Client,
    target: &Target,
    timeout: Duration,
) -> Result<(), WaitError> {
    let gone = watch(client, target, |current| current.is_none().then_some(Ok(())));
    match tokio::time::timeout(timeout, gone).await {
        Ok(outcome) => outcome,
        Err(_) => Err(WaitError::StillExists { object: named(target), seconds: timeout }),
    }
}

/// Follows one object until `decide` gives an outcome; `None` is an object that does not exist.
async fn watch(
    client: &Client,
    target: &Target,
    mut decide: impl FnMut(Option<&Value>) -> Option<Result<(), WaitError>>,
) -> Result<(), WaitError> {
    let failed = |cause: Error| WaitError::Watch { object: named(target), cause };
    let mut scope =
        Scope::all(target.kind.gvr.clone()).fields(format!("metadata.name={}", target.name));
    scope.namespace.clone_from(&target.namespace);
    let mut backoff = base::Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
    loop {
        let mut stream = client.transport().watch(&scope, None).await.map_err(failed)?;
        let mut is_listed = false;
        let mut exists = false;
        while let Some(event) = stream.recv().await {
            let outcome = match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    exists = true;
                    let value = object.value().map_err(|e| failed(e.into()))?;
                    decide(Some(&value))
                }
                WatchEvent::Deleted(_) => {
                    exists = false;
                    decide(None)
                }
                WatchEvent::Bookmark { initial, .. } => {
                    let is_first = initial && !is_listed;
                    is_listed |= initial;
                    if is_first && !exists { decide(None) } else { None }
                }
                WatchEvent::Error(_) => break,
            };
            if let Some(outcome) = outcome {
                return outcome;
            }
        }
        // The server ended the watch: list again, not in a tight loop.
        tokio::time::sleep(backoff.next_delay()).await;
    }
}

fn job(object: &Value) -> State {
    if is_condition_true(object, "Complete") {
        return State::Ready;
    }
    match condition(object, "Failed") {
        Some(failed) if api::value::str_at(failed, "status") == "True" => {
            let message = api::value::str_at(failed, "message");
            State::Failed(format!("Job Failed: {message}"))
        }
        _ => State::InProgress("Job in progress".into()),
    }
}

fn pod(object: &Value) -> State {
    match api::value::str_in(object, &["status", "phase"]) {
        "Succeeded" => State::Ready,
        "Failed" => State::Failed("Pod failed".into()),
        phase => State::InProgress(format!("Pod is {phase}")),
    }
}

fn definition(object: &Value) -> State {
    if is_condition_true(object, "Established") {
        State::Ready
    } else {
        State::InProgress("the definition is not established".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn hooks_end_with_their_jobs_and_pods() {
        let with = |kind: &str| {
            let condition = json!({"type": kind, "status": "True", "message": "m"});
            json!({"status": {"conditions": [condition]}})
        };
        assert_eq!(job(&with("Complete")), State::Ready);
        assert_eq!(job(&with("Failed")), State::Failed("Job Failed: m".into()));
        assert_eq!(job(&json!({})), State::InProgress("Job in progress".into()));
        assert_eq!(pod(&json!({"status": {"phase": "Succeeded"}})), State::Ready);
        assert_eq!(definition(&with("Established")), State::Ready);
    }
}
