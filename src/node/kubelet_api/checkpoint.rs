//! `/checkpoint`: the runtime writes the state of a running container to an archive in the folder
//! `checkpoints` of the kubelet's root directory.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::time::Duration;

use api::codec::time::{Moment, Precision};
use http::{Response, StatusCode};
use serde_json::json;

use super::query::Query;
use super::response::{Body, response, text_response};
use super::state::KubeletApi;
use crate::pods::observed::{ObservedPod, ObservedState};
use crate::runtime::cri::CALL_TIMEOUT;

/// The folder of the archives below the kubelet's root directory.
const FOLDER: &str = "checkpoints";
/// The longest time limit of a request: writing the memory of a container takes minutes.
const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3600);

/// Why there is no checkpoint; the texts are those of upstream.
#[derive(Debug, thiserror::Error)]
enum CheckpointError {
    #[error("container {0} not found")]
    NotRunning(String),
    #[error("CheckpointContainer requires the timeout value to be > 0")]
    Timeout,
    #[error("error creating checkpoint directory: {0}")]
    Folder(String),
    #[error("{0}")]
    Runtime(String),
}

/// Serves a request about a container.
pub(super) async fn serve(
    api: &KubeletApi,
    (namespace, name, container): (&str, &str, &str),
    query: &Query,
) -> Response<Body> {
    let Some((pod, handle)) = api.table.find(namespace, name) else {
        return text_response(StatusCode::NOT_FOUND, "pod does not exist");
    };
    if pod.container(container).is_none() {
        let text = format!("container {container} does not exist");
        return text_response(StatusCode::NOT_FOUND, text);
    }
    let Ok(timeout) = query.all("timeout").last().map_or(Ok(0), |text| text.parse::<i64>()) else {
        let text = "cannot parse value of timeout parameter";
        return text_response(StatusCode::NOT_FOUND, text);
    };
    let observed = std::sync::Arc::clone(&handle.reported.lock().observed);
    let full_name = format!("{name}_{namespace}");
    match write(api, &observed, (&full_name, container), timeout).await {
        Ok(location) => {
            let body = json!({ "items": [location] }).to_string();
            response(StatusCode::OK, "application/json", body)
        }
        Err(error) => {
            let text = format!("checkpointing of {namespace}/{name}/{container} failed ({error})");
            text_response(StatusCode::INTERNAL_SERVER_ERROR, text)
        }
    }
}

/// Writes the archive and returns its path.
async fn write(
    api: &KubeletApi,
    observed: &ObservedPod,
    (full_name, container): (&str, &str),
    timeout: i64,
) -> Result<String, CheckpointError> {
    let running = observed
        .containers
        .iter()
        .find(|c| c.name == container && c.state == ObservedState::Running)
        .ok_or_else(|| CheckpointError::NotRunning(container.to_owned()))?;
    let timeout = time_limit(timeout)?;
    let folder = api.node.identity.config.root_dir.join(FOLDER);
    let location = folder.join(file_name(full_name, container, now()));
    let created = base::tasks::blocking(move || create(&folder)).await;
    created
        .unwrap_or_else(|panic| Err(std::io::Error::other(panic)))
        .map_err(|error| CheckpointError::Folder(error.to_string()))?;
    let location = location.to_string_lossy().into_owned();
    let runtime = &api.node.runtime.cri;
    let done = runtime.checkpoint_container(&running.id, &location, timeout).await;
    done.map_err(|error| CheckpointError::Runtime(error.grpc_text()))?;
    Ok(location)
}

/// The time limit of the runtime: that of the request if it is longer than that of other calls.
fn time_limit(seconds: i64) -> Result<Duration, CheckpointError> {
    let seconds = u64::try_from(seconds).map_err(|_| CheckpointError::Timeout)?;
    Ok(Duration::from_secs(seconds).clamp(CALL_TIMEOUT, TIMEOUT_MAX))
}

fn file_name(full_name: &str, container: &str, time: Moment) -> String {
    format!("checkpoint-{full_name}-{container}-{}.tar", time.text(Precision::Seconds))
}

fn now() -> Moment {
    let now = base::clock::unix_time();
    Moment { seconds: i64::try_from(now.as_secs()).unwrap_or_default(), nanos: 0 }
}

/// Creates the folder. Only root may read it: the memory of a container contains its secrets.
fn create(folder: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_has_the_name_of_upstream() {
        let time = Moment { seconds: 1_775_000_000, nanos: 5 };
        assert_eq!(file_name("p_d", "c", time), "checkpoint-p_d-c-2026-03-31T23:33:20Z.tar");
    }

    #[test]
    fn a_time_limit_is_that_of_other_calls_at_least() {
        let seconds = |given| time_limit(given).map(|limit| limit.as_secs()).ok();
        assert_eq!([seconds(0), seconds(119), seconds(300)], [Some(120), Some(120), Some(300)]);
        assert_eq!(seconds(i64::MAX), Some(86_400));
        assert_eq!(seconds(-1), None);
    }

    #[test]
    fn the_folder_is_open_to_root_only() {
        use std::os::unix::fs::PermissionsExt as _;
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join(FOLDER);
        create(&folder).unwrap();
        create(&folder).unwrap();
        assert_eq!(std::fs::metadata(folder).unwrap().permissions().mode() & 0o777, 0o700);
    }
}
