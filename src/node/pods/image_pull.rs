//! Ensures that a container's image is present: pull policy, credentials, back-off, events.

mod back_off;
pub(crate) mod metrics;

use std::collections::HashMap;
use std::time::Duration;

use api::field::aggregate;
use api::k8s::api::core::v1 as core;
use client::events::EventType;
use proto::runtime::v1 as cri;

use crate::context::{ApiHandles, RuntimeHandles};
use crate::events;
use crate::image_access::{Access, PullIntent};
use crate::image_credentials::keyring::TrackedCredential;
use crate::pods::objects::{CachedObject, ObjectKind};
use crate::pods::pod::{Pod, PodContainer};
use crate::runtime::RuntimeError;
use crate::runtime::images::name;
use crate::status::pod::WaitingReason;

pub(crate) use back_off::PullState;

/// Whether a container with this reason is retried at its own time: that of [`PullState::next_try`]
/// or of the crash back-off.
pub(crate) fn has_back_off(reason: &str) -> bool {
    let of_pull = ["ErrImagePull", "ImagePullBackOff", REGISTRY_UNAVAILABLE, SIGNATURE_FAILED];
    reason == "CrashLoopBackOff" || of_pull.contains(&reason)
}

/// Records an event about missing pull secrets of the pod, after a failed pull.
pub(crate) fn report_missing_secrets(api: &ApiHandles, pod: &Pod) {
    let is_present = |name: &str| {
        let reference = (ObjectKind::Secret, pod.namespace().to_owned(), name.to_owned());
        matches!(api.objects.get(&reference), CachedObject::Present(_))
    };
    if let Some(message) = missing_secrets(pod, is_present) {
        api.events.pod_event(pod, EventType::Warning, "FailedToRetrieveImagePullSecret", message);
    }
}

fn missing_secrets(pod: &Pod, is_present: impl Fn(&str) -> bool) -> Option<String> {
    let names = pod.spec().image_pull_secrets.iter().flatten().map(|s| s.name.as_str());
    let missing: Vec<&str> = names.filter(|n| !n.is_empty() && !is_present(n)).collect();
    (!missing.is_empty()).then(|| {
        format!(
            "Unable to retrieve some image pull secrets ({}); attempting to pull the image may \
             not succeed.",
            missing.join(", ")
        )
    })
}

/// An image that a pod needs, and its user.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequiredImage<'a> {
    pod: &'a Pod,
    /// As written in the specification.
    image: &'a str,
    /// `Always`, `IfNotPresent` or `Never`.
    policy: Option<&'a str>,
    /// The container that runs it; `None` for a volume, which belongs to the whole pod.
    member: Option<&'a PodContainer>,
}

impl<'a> RequiredImage<'a> {
    /// The image of a container.
    pub(crate) fn of_container(pod: &'a Pod, member: &'a PodContainer) -> Self {
        let policy = member.container.image_pull_policy.as_deref();
        Self { pod, image: member.image(), policy, member: Some(member) }
    }

    /// The image of a volume.
    fn of_volume(pod: &'a Pod, source: &'a core::ImageVolumeSource) -> Self {
        let image = source.reference.as_deref().unwrap_or_default();
        Self { pod, image, policy: source.pull_policy.as_deref(), member: None }
    }

    fn event(&self, api: &ApiHandles, kind: EventType, reason: &str, message: impl Into<String>) {
        match self.member {
            Some(member) => api.events.container_event(self.pod, member, kind, reason, message),
            None => api.events.pod_event(self.pod, kind, reason, message),
        }
    }
}

/// Returns the images of volumes that this container mounts, by the names of the volumes (KEP
/// 4639).
///
/// # Errors
///
/// The waiting state of the container.
pub(crate) async fn volume_images(
    runtime: &RuntimeHandles,
    api: &ApiHandles,
    pod: &Pod,
    member: &PodContainer,
    sandbox: &cri::PodSandboxConfig,
    state: &mut PullState,
) -> Result<HashMap<String, cri::ImageSpec>, WaitingReason> {
    let mut out = HashMap::new();
    for volume in pod.spec().volumes.iter().flatten() {
        let Some(source) = &volume.image else { continue };
        let mut mounts = member.container.volume_mounts.iter().flatten();
        if !mounts.any(|mount| mount.name == volume.name) {
            continue;
        }
        let wanted = RequiredImage::of_volume(pod, source);
        let found = ensure(runtime, api, wanted, sandbox, state).await?;
        let spec = cri::ImageSpec {
            image: found.id,
            user_specified_image: wanted.image.to_owned(),
            ..cri::ImageSpec::default()
        };
        out.insert(volume.name.clone(), spec);
    }
    Ok(out)
}

/// Returns the image; pulls it if its policy requires.
///
/// # Errors
///
/// The waiting state of the container.
pub(crate) async fn ensure(
    runtime: &RuntimeHandles,
    api: &ApiHandles,
    wanted: RequiredImage<'_>,
    sandbox: &cri::PodSandboxConfig,
    state: &mut PullState,
) -> Result<cri::Image, WaitingReason> {
    let image = wanted.image;
    if !name::is_valid(image) {
        let message = format!(
            "Failed to apply default image tag {image:?}: couldn't parse image name {image:?}: \
             invalid reference format"
        );
        wanted.event(api, EventType::Warning, events::INSPECT_FAILED, message.clone());
        metrics::record_request(wanted.policy.unwrap_or_default(), None, None);
        return Err(WaitingReason { reason: "InvalidImageName", message });
    }
    let name = name::normalize(image);
    let policy = wanted.policy.filter(|p| !p.is_empty());
    let policy = policy.unwrap_or(if name::is_latest(image) { "Always" } else { "IfNotPresent" });
    let present = runtime.cri.image(&name).await.map_err(|error| {
        let message = format!("Failed to inspect image {image:?}: {error}");
        wanted.event(api, EventType::Warning, events::INSPECT_FAILED, message.clone());
        metrics::record_request(policy, None, None);
        WaitingReason { reason: "ImageInspectError", message }
    })?;
    let mut credentials = None;
    match (policy, present) {
        ("Always", _) => metrics::record_request(policy, None, Some(true)),
        (_, Some(found)) => {
            let access = check_access(runtime, api, wanted, &found.id, &mut credentials).await;
            metrics::record_request(policy, Some(true), Some(!access));
            match (access, policy) {
                (true, _) => {
                    state.forget(&name);
                    let message = format!(
                        "Container image {image:?} already present on machine and can be accessed \
                         by the pod"
                    );
                    wanted.event(api, EventType::Normal, events::PULLED, message);
                    return Ok(found);
                }
                // The pod does not learn that the image is present.
                (false, "Never") => return Err(never_pulled(api, wanted)),
                (false, _) => {}
            }
        }
        ("Never", None) => {
            metrics::record_request(policy, Some(false), None);
            return Err(never_pulled(api, wanted));
        }
        _ => metrics::record_request(policy, Some(false), Some(true)),
    }
    pull(runtime, api, wanted, &name, credentials, sandbox, state).await
}

fn never_pulled(api: &ApiHandles, wanted: RequiredImage<'_>) -> WaitingReason {
    let image = wanted.image;
    let message = format!("Container image {image:?} is not present with pull policy of Never");
    wanted.event(api, EventType::Warning, events::ERR_IMAGE_NEVER_PULL, message.clone());
    WaitingReason { reason: events::ERR_IMAGE_NEVER_PULL, message }
}

/// Whether the pod may use an image that is present. Looks up credentials only if the answer
/// depends on them, and keeps them for the pull.
async fn check_access(
    runtime: &RuntimeHandles,
    api: &ApiHandles,
    wanted: RequiredImage<'_>,
    id: &str,
    credentials: &mut Option<Vec<TrackedCredential>>,
) -> bool {
    let Some(access) = &runtime.image_access else { return true };
    match access.check(wanted.image, id).await {
        Access::Allowed => true,
        Access::MustPull => false,
        Access::Compare(comparison) => {
            let found = lookup(runtime, api, wanted).await;
            let found = credentials.insert(found);
            access.allows(comparison, found).await
        }
    }
}

async fn pull(
    runtime: &RuntimeHandles,
    api: &ApiHandles,
    wanted: RequiredImage<'_>,
    name: &str,
    credentials: Option<Vec<TrackedCredential>>,
    sandbox: &cri::PodSandboxConfig,
    state: &mut PullState,
) -> Result<cri::Image, WaitingReason> {
    let image = wanted.image;
    if let Some(failure) = state.back_off(name, base::clock::now()) {
        let short = format!("Back-off pulling image {image:?}");
        wanted.event(api, EventType::Normal, events::BACK_OFF, short.clone());
        return Err(WaitingReason {
            reason: "ImagePullBackOff",
            message: format!("{short}: {failure}"),
        });
    }
    // A provider that hangs holds no slot.
    let credentials = match credentials {
        Some(credentials) => credentials,
        None => lookup(runtime, api, wanted).await,
    };
    let intent = begin(runtime, image).await.inspect_err(|why| {
        let text = format!("{}: {}", why.reason, why.message);
        state.record_failure(name, text, base::clock::now());
    })?;
    let queued = base::clock::now();
    wanted.event(api, EventType::Normal, events::PULLING, format!("Pulling image {image:?}"));
    let line = runtime.pulls.acquire().await;
    let started = base::clock::now();
    let outcome = pull_with(runtime, &credentials, name, sandbox).await;
    drop(line);
    match outcome {
        Ok((reference, credential)) => {
            state.forget(name);
            if let Some(intent) = intent {
                intent.succeed(&reference, credential).await;
            }
            let found = runtime.cri.image(&reference).await.ok().flatten();
            let found =
                found.unwrap_or_else(|| cri::Image { id: reference, ..cri::Image::default() });
            let message = format!(
                "Successfully pulled image {image:?} in {} ({} including waiting). Image size: {} \
                 bytes.",
                seconds(started.elapsed()),
                seconds(queued.elapsed()),
                found.size
            );
            metrics::record_pull(found.size, queued.elapsed());
            wanted.event(api, EventType::Normal, events::PULLED, message);
            Ok(found)
        }
        Err(error) => {
            let message = format!("Failed to pull image {image:?}: {error}");
            wanted.event(api, EventType::Warning, events::FAILED, message);
            let why = pull_failure(image, error.to_string());
            let text = format!("{}: {}", why.reason, why.message);
            state.record_failure(name, text, base::clock::now());
            Err(why)
        }
    }
}

/// Records that a pull begins.
async fn begin(runtime: &RuntimeHandles, image: &str) -> Result<Option<PullIntent>, WaitingReason> {
    let Some(access) = &runtime.image_access else { return Ok(None) };
    access.begin_pull(image).await.map(Some).map_err(|error| WaitingReason {
        reason: "ErrImagePull",
        message: format!(
            "Failed to record image pull intent for container image {image:?}: failed to record \
             image pull intent: {error}"
        ),
    })
}

/// The different errors of the attempts to pull an image.
#[derive(Debug, thiserror::Error)]
#[error("{}", aggregate(.0))]
struct PullErrors(Vec<String>);

/// Error names that the CRI defines.
const REGISTRY_UNAVAILABLE: &str = "RegistryUnavailable";
const SIGNATURE_FAILED: &str = "SignatureValidationFailed";

/// Reason and message of a failed pull.
fn pull_failure(image: &str, error: String) -> WaitingReason {
    for (reason, why) in [
        (REGISTRY_UNAVAILABLE, "the registry is unavailable"),
        (SIGNATURE_FAILED, "the signature validation failed"),
    ] {
        if let Some(rest) = error.strip_prefix(reason) {
            let message = format!("image pull failed for {image} because {why}{rest}");
            return WaitingReason { reason, message };
        }
    }
    WaitingReason { reason: "ErrImagePull", message: error }
}

/// Text of a pull error; the code is omitted if the runtime does not know it.
fn pull_text(error: &RuntimeError) -> String {
    if error.code == tonic::Code::Unknown { error.message.clone() } else { error.grpc_text() }
}

/// Formats a duration as Go does, to the millisecond: `1.204s`, `87ms`.
fn seconds(duration: Duration) -> String {
    if duration < Duration::from_secs(1) {
        return format!("{}ms", duration.as_millis());
    }
    let text = format!("{:.3}", duration.as_secs_f64());
    format!("{}s", text.trim_end_matches('0').trim_end_matches('.'))
}

/// The credentials of the pod and of providers for an image.
async fn lookup(
    runtime: &RuntimeHandles,
    api: &ApiHandles,
    wanted: RequiredImage<'_>,
) -> Vec<TrackedCredential> {
    let (client, tokens, secrets) = (&api.client, &api.tokens, &api.objects);
    runtime.credentials.lookup(client, tokens, secrets, wanted.pod, wanted.image).await
}

/// Tries each credential for the image, then that of the registries file, then none. Returns the
/// reference of the image and the credential that was accepted; `None` for one of the node, or none
/// at all.
///
/// # Errors
/// The errors of all attempts.
async fn pull_with<'a>(
    runtime: &RuntimeHandles,
    credentials: &'a [TrackedCredential],
    name: &str,
    sandbox: &cri::PodSandboxConfig,
) -> Result<(String, Option<&'a TrackedCredential>), PullErrors> {
    let of_node = runtime.registries.load().credentials(name);
    let spec = cri::ImageSpec { image: name.to_owned(), ..cri::ImageSpec::default() };
    let of_pod = credentials.iter().map(|credential| (Some(credential.auth()), Some(credential)));
    let of_node = of_node.into_iter().map(|auth| (Some(auth), None));
    let mut errors: Vec<String> = Vec::new();
    for (auth, credential) in of_pod.chain(of_node).chain([(None, None)]) {
        match runtime.cri.pull_image(spec.clone(), auth, sandbox.clone()).await {
            Ok(reference) => return Ok((reference, credential)),
            Err(error) => {
                let text = pull_text(&error);
                if !errors.contains(&text) {
                    errors.push(text);
                }
            }
        }
    }
    Err(PullErrors(errors))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pull_failures_have_the_reasons_and_messages_of_the_kubelet() {
        let of = |error: &str| {
            let why = pull_failure("r.io/a", error.to_owned());
            (why.reason, why.message)
        };
        let plain = "rpc error: code = NotFound desc = failed to resolve";
        assert_eq!(of(plain), ("ErrImagePull", plain.to_owned()));
        let down = "image pull failed for r.io/a because the registry is unavailable: 503";
        assert_eq!(of("RegistryUnavailable: 503"), ("RegistryUnavailable", down.to_owned()));
        let bad = "image pull failed for r.io/a because the signature validation failed";
        let reason = "SignatureValidationFailed";
        assert_eq!(of(reason), (reason, bad.to_owned()));
        let error = |code| RuntimeError { operation: "pull_image", code, message: "x".to_owned() };
        assert_eq!(pull_text(&error(tonic::Code::Unknown)), "x");
        let found = pull_text(&error(tonic::Code::NotFound));
        assert_eq!(found, "rpc error: code = NotFound desc = x");
    }

    #[test]
    fn missing_pull_secrets_are_named() {
        let pod = crate::pods::pod::tests::pod(serde_json::json!({
            "containers": [{"name": "a"}],
            "imagePullSecrets": [{"name": "one"}, {"name": ""}, {"name": "two"}, {"name": "three"}],
        }));
        let message = "Unable to retrieve some image pull secrets (one, three); attempting to \
            pull the image may not succeed.";
        assert_eq!(missing_secrets(&pod, |name| name == "two").as_deref(), Some(message));
        assert_eq!(missing_secrets(&pod, |_| true), None);
    }
}
