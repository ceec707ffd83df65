//! Runs the handlers of lifecycle hooks. Error texts are those of the kubelet's
//! `pkg/kubelet/lifecycle`.

use std::time::Duration;

use api::k8s::api::core::v1 as core;
use client::events::EventType;

use crate::events::NodeEventRecorder;
use crate::pods::pod::Pod;
use crate::probes::handler::http::{GetError, HttpGet};
use crate::probes::handler::{HandlerTarget, PortError};
use crate::runtime::RuntimeError;

/// A lifecycle hook that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HookError {
    /// The handler failed. `action` is its command or path, `pod` is `name_namespace(uid)`.
    #[error(
        "{kind} lifecycle hook ({action}) for Container {container:?} in Pod {pod:?} failed - \
         error: {source}"
    )]
    Handler {
        kind: &'static str,
        action: String,
        container: String,
        pod: String,
        source: HandlerError,
    },
    #[error("Cannot run handler: invalid handler: this kind of lifecycle handler is not supported")]
    Unsupported,
}

/// Why the handler of a hook failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandlerError {
    #[error("command '{command}' exited with {exit_code}: {stderr}, message: {output:?}")]
    ExitCode { command: String, exit_code: i32, stderr: String, output: String },
    #[error("{}, message: \"\"", .0.grpc_text())]
    Exec(#[source] RuntimeError),
    #[error(transparent)]
    Port(#[from] PortError),
    #[error(transparent)]
    Get(#[from] GetError),
}

/// Runs a lifecycle hook.
///
/// # Errors
///
/// The handler fails or is of an unsupported kind.
pub(crate) async fn run(
    events: &NodeEventRecorder,
    pod: &Pod,
    target: HandlerTarget<'_>,
    hook: &core::LifecycleHandler,
    limit: Duration,
) -> Result<(), HookError> {
    let failed = |kind: &'static str, action: String| {
        move |source: HandlerError| HookError::Handler {
            kind,
            action,
            container: target.container.name.clone(),
            pod: format!("{}_{}({})", pod.name(), pod.namespace(), pod.uid),
            source,
        }
    };
    if let Some(action) = &hook.exec {
        let command = action.command.clone().unwrap_or_default();
        let failed = failed("Exec", format!("[{}]", command.join(" ")));
        return exec(target, &command, limit).await.map_err(failed);
    }
    if let Some(action) = &hook.http_get {
        let failed = failed("HTTP", action.path.clone().unwrap_or_default());
        return http(events, pod, target, action, limit).await.map_err(failed);
    }
    if let Some(action) = &hook.sleep {
        let duration = Duration::from_secs(u64::try_from(action.seconds).unwrap_or_default());
        base::clock::sleep(duration.min(limit)).await;
        return Ok(());
    }
    Err(HookError::Unsupported)
}

async fn exec(
    target: HandlerTarget<'_>,
    command: &[String],
    limit: Duration,
) -> Result<(), HandlerError> {
    let mut output = target
        .runtime
        .exec(target.container_id, command, limit)
        .await
        .map_err(HandlerError::Exec)?;
    if output.exit_code == 0 {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    output.stdout.extend_from_slice(&output.stderr);
    Err(HandlerError::ExitCode {
        command: command.join(" "),
        exit_code: output.exit_code,
        stderr,
        output: String::from_utf8_lossy(&output.stdout).into_owned(),
    })
}

/// Runs an HTTP hook. Any response is a success, whatever its status. If the server answers an
/// HTTPS request with HTTP, the request is repeated with HTTP.
async fn http(
    events: &NodeEventRecorder,
    pod: &Pod,
    target: HandlerTarget<'_>,
    action: &core::HTTPGetAction,
    limit: Duration,
) -> Result<(), HandlerError> {
    let mut get = HttpGet::new(target, action)?;
    let error = match get.send(limit).await {
        Ok(_) => return Ok(()),
        Err(error) if error.is_plain_http => error,
        Err(error) => return Err(error.into()),
    };
    get.https = false;
    get.headers.retain(|(name, _)| !name.eq_ignore_ascii_case("authorization"));
    get.send(limit).await.map_err(|_| error)?;
    let message = format!(
        "request to HTTPS lifecycle hook {} got HTTP response, retry with HTTP succeeded",
        get.authority()
    );
    events.pod_event(pod, EventType::Warning, "LifecycleHTTPFallback", message);
    Ok(())
}
