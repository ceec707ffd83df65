//! Runs the handlers of lifecycle hooks. Error texts are those of the kubelet's
//! `pkg/kubelet/lifecycle`.

use std::time::Duration;

use api::k8s::api::core::v1 as core;
use client::events::EventType;

use crate::events::NodeEventRecorder;
use crate::pods::pod::Pod;
use crate::probes::handler::HandlerTarget;
use crate::probes::handler::http::HttpGet;

/// Runs a lifecycle hook.
///
/// # Errors
///
/// The message of the failure.
pub(crate) async fn run(
    events: &NodeEventRecorder,
    pod: &Pod,
    target: HandlerTarget<'_>,
    hook: &core::LifecycleHandler,
    limit: Duration,
) -> Result<(), String> {
    let of = |kind: &str, what: &str| {
        format!(
            "{kind} lifecycle hook ({what}) for Container {:?} in Pod {:?} failed - error: ",
            target.container.name,
            format!("{}_{}({})", pod.name(), pod.namespace(), pod.uid)
        )
    };
    if let Some(action) = &hook.exec {
        let command = action.command.clone().unwrap_or_default();
        let shown = of("Exec", &format!("[{}]", command.join(" ")));
        return exec(target, &command, limit).await.map_err(|why| format!("{shown}{why}"));
    }
    if let Some(action) = &hook.http_get {
        let shown = of("HTTP", action.path.as_deref().unwrap_or_default());
        let outcome = http(events, pod, target, action, limit).await;
        return outcome.map_err(|why| format!("{shown}{why}"));
    }
    if let Some(action) = &hook.sleep {
        let wanted = Duration::from_secs(u64::try_from(action.seconds).unwrap_or_default());
        base::clock::sleep(wanted.min(limit)).await;
        return Ok(());
    }
    Err("Cannot run handler: invalid handler: this kind of lifecycle handler is not supported"
        .to_owned())
}

async fn exec(
    target: HandlerTarget<'_>,
    command: &[String],
    limit: Duration,
) -> Result<(), String> {
    match target.runtime.exec(target.container_id, command, limit).await {
        Ok(output) if output.exit_code == 0 => Ok(()),
        Ok(mut output) => {
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            output.stdout.extend_from_slice(&output.stderr);
            Err(format!(
                "command '{}' exited with {}: {error}, message: {:?}",
                command.join(" "),
                output.exit_code,
                String::from_utf8_lossy(&output.stdout)
            ))
        }
        Err(error) => Err(format!("{}, message: \"\"", error.grpc_text())),
    }
}

/// Runs an HTTP hook. Any response is a success, whatever its status. If the server answers an
/// HTTPS request with HTTP, the request is repeated with HTTP.
async fn http(
    events: &NodeEventRecorder,
    pod: &Pod,
    target: HandlerTarget<'_>,
    action: &core::HTTPGetAction,
    limit: Duration,
) -> Result<(), String> {
    let mut get = HttpGet::new(target, action)?;
    let error = match get.send(limit).await {
        Ok(_) => return Ok(()),
        Err(error) if error.is_plain_http => error,
        Err(error) => return Err(error.to_string()),
    };
    get.https = false;
    get.headers.retain(|(name, _)| !name.eq_ignore_ascii_case("authorization"));
    get.send(limit).await.map_err(|_| error.to_string())?;
    let message = format!(
        "request to HTTPS lifecycle hook {} got HTTP response, retry with HTTP succeeded",
        get.authority()
    );
    events.pod_event(pod, EventType::Warning, "LifecycleHTTPFallback", message);
    Ok(())
}
