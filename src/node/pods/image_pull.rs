//! Ensures that a container's image is present: pull policy, credentials, back-off, events.

use std::collections::HashMap;
use std::time::Duration;

use api::k8s::api::core::v1 as core;
use client::events::EventType;
use proto::runtime::v1 as cri;
use sorting::CompactSort as _;
use tokio::time::Instant;

use crate::context::{ApiHandles, RuntimeHandles};
use crate::events;
use crate::pods::objects::{CachedObject, ObjectKind, ReferencedObjects};
use crate::pods::pod::{Pod, PodContainer};
use crate::runtime::RuntimeError;
use crate::runtime::images::name;
use crate::status::pod::WaitingReason;

/// Back-off between failed pulls of an image, as between restarts of failing containers.
const BACKOFF_INITIAL: Duration = Duration::from_secs(10);
const BACKOFF_MAX: Duration = Duration::from_secs(300);

/// How long the reason of a failed pull is shown before that of the back-off. The kubelet shows it
/// until the next sync of the pod.
const FAILURE_SHOWN: Duration = Duration::from_secs(1);

/// Failed pulls of one pod, by image name.
#[derive(Debug, Default)]
pub(crate) struct PullState {
    failed: HashMap<String, PullFailure>,
}

#[derive(Debug)]
struct PullFailure {
    delay: Duration,
    at: Instant,
    /// Reason and message of the failure, which the back-off shows.
    message: String,
    /// A container waits for this image in the current round of starts.
    waiting: bool,
    /// The back-off was shown since the pull failed.
    backing_off: bool,
}

impl PullState {
    /// Begins a round of starts: an image that no start of it needs has no next try.
    pub(crate) fn begin_round(&mut self) {
        self.failed.values_mut().for_each(|f| f.waiting = false);
    }

    /// When a container that waits for an image is due: to show the back-off, or to pull.
    pub(crate) fn next_try(&self) -> Option<Instant> {
        let waiting = self.failed.values().filter(|f| f.waiting);
        waiting.map(|f| f.at + if f.backing_off { f.delay } else { FAILURE_SHOWN }).min()
    }

    /// Returns the message of the failure if a pull of `name` is in back-off.
    fn back_off(&mut self, name: &str, now: Instant) -> Option<&str> {
        let failure = self.failed.get_mut(name)?;
        if now.saturating_duration_since(failure.at) >= failure.delay {
            return None;
        }
        // Another container with the image in the same round keeps the failure's reason.
        failure.backing_off |= !failure.waiting;
        failure.waiting = true;
        Some(&failure.message)
    }

    fn record_failure(&mut self, name: &str, message: String, now: Instant) {
        let before = self.failed.get(name).map(|f| (f.delay * 2).min(BACKOFF_MAX));
        let failure = PullFailure {
            delay: before.unwrap_or(BACKOFF_INITIAL),
            at: now,
            message,
            waiting: true,
            backing_off: false,
        };
        self.failed.insert(name.to_owned(), failure);
    }

    fn forget(&mut self, name: &str) {
        self.failed.remove(name);
    }
}

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
        return Err(WaitingReason { reason: "InvalidImageName", message });
    }
    let name = name::normalize(image);
    let policy = wanted.policy.filter(|p| !p.is_empty());
    let policy = policy.unwrap_or(if name::is_latest(image) { "Always" } else { "IfNotPresent" });
    let present = runtime.cri.image(&name).await.map_err(|error| {
        let message = format!("Failed to inspect image {image:?}: {error}");
        wanted.event(api, EventType::Warning, events::INSPECT_FAILED, message.clone());
        WaitingReason { reason: "ImageInspectError", message }
    })?;
    match (policy, present) {
        ("Always", _) => {}
        (_, Some(found)) => {
            state.forget(&name);
            let message = format!(
                "Container image {image:?} already present on machine and can be accessed by the \
                 pod"
            );
            wanted.event(api, EventType::Normal, events::PULLED, message);
            return Ok(found);
        }
        ("Never", None) => {
            let message =
                format!("Container image {image:?} is not present with pull policy of Never");
            wanted.event(api, EventType::Warning, events::ERR_IMAGE_NEVER_PULL, message.clone());
            return Err(WaitingReason { reason: events::ERR_IMAGE_NEVER_PULL, message });
        }
        _ => {}
    }
    pull(runtime, api, wanted, &name, sandbox, state).await
}

async fn pull(
    runtime: &RuntimeHandles,
    api: &ApiHandles,
    wanted: RequiredImage<'_>,
    name: &str,
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
    let queued = base::clock::now();
    wanted.event(api, EventType::Normal, events::PULLING, format!("Pulling image {image:?}"));
    let line = runtime.pulls.acquire().await;
    let started = base::clock::now();
    let outcome = pull_with(runtime, api, wanted.pod, name, sandbox).await;
    drop(line);
    match outcome {
        Ok(reference) => {
            state.forget(name);
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
            wanted.event(api, EventType::Normal, events::PULLED, message);
            Ok(found)
        }
        Err(error) => {
            let error = pull_text(&error);
            let message = format!("Failed to pull image {image:?}: {error}");
            wanted.event(api, EventType::Warning, events::FAILED, message);
            let why = pull_failure(image, error);
            let text = format!("{}: {}", why.reason, why.message);
            state.record_failure(name, text, base::clock::now());
            Err(why)
        }
    }
}

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

/// Tries each credential for the image, the pod's before the node's, then none.
async fn pull_with(
    runtime: &RuntimeHandles,
    api: &ApiHandles,
    pod: &Pod,
    name: &str,
    sandbox: &cri::PodSandboxConfig,
) -> Result<String, RuntimeError> {
    let of_node = runtime.registries.load().credentials(name);
    let spec = cri::ImageSpec { image: name.to_owned(), ..cri::ImageSpec::default() };
    for auth in credentials(&api.objects, pod, name).into_iter().chain(of_node) {
        let pulled = runtime.cri.pull_image(spec.clone(), Some(auth), sandbox.clone()).await;
        if pulled.is_ok() {
            return pulled;
        }
    }
    runtime.cri.pull_image(spec, None, sandbox.clone()).await
}

/// Credentials of the pod's pull secrets for the image's registry, longest matching address first.
fn credentials(objects: &ReferencedObjects, pod: &Pod, name: &str) -> Vec<cri::AuthConfig> {
    let mut out: Vec<(usize, cri::AuthConfig)> = Vec::new();
    for secret in pod.spec().image_pull_secrets.iter().flatten() {
        let reference = (ObjectKind::Secret, pod.namespace().to_owned(), secret.name.clone());
        let CachedObject::Present(object) = objects.get(&reference) else { continue };
        let data = crate::pods::objects::data(ObjectKind::Secret, &object);
        for (key, value) in data {
            let Ok(json) = serde_json::from_slice::<serde_json::Value>(&value) else { continue };
            let auths = match key.as_str() {
                ".dockerconfigjson" => json.get("auths").cloned().unwrap_or_default(),
                ".dockercfg" => json,
                _ => continue,
            };
            for (address, entry) in auths.as_object().into_iter().flatten() {
                if let Some(length) = match_length(address, name) {
                    out.push((length, auth(entry)));
                }
            }
        }
    }
    out.compact_sort_by_key(|(length, _)| std::cmp::Reverse(*length));
    out.into_iter().map(|(_, auth)| auth).collect()
}

/// Returns the length of a pull secret's registry address if it matches the image
/// (`docker.io/library/a:1`).
fn match_length(address: &str, name: &str) -> Option<usize> {
    let address =
        address.trim_start_matches("https://").trim_start_matches("http://").trim_end_matches('/');
    let address = address.trim_end_matches("/v1").trim_end_matches("/v2").trim_end_matches('/');
    let address = if matches!(address, "index.docker.io" | "registry-1.docker.io") {
        "docker.io"
    } else {
        address
    };
    let rest = match address.strip_prefix("*.") {
        Some(domain) => {
            let (host, path) = name.split_once('/')?;
            let (_, parent) = host.split_once('.')?;
            let (wanted, below) = domain.split_once('/').unwrap_or((domain, ""));
            if parent != wanted {
                return None;
            }
            path.strip_prefix(below)?
        }
        None => name.strip_prefix(address)?,
    };
    (rest.is_empty() || rest.starts_with(['/', ':', '@']) || address.starts_with("*."))
        .then_some(address.len())
}

fn auth(entry: &serde_json::Value) -> cri::AuthConfig {
    use base64::Engine;
    let text = |key: &str| {
        entry.get(key).and_then(serde_json::Value::as_str).unwrap_or_default().to_owned()
    };
    let (mut username, mut password) = (text("username"), text("password"));
    if username.is_empty() {
        let decoded =
            base64::engine::general_purpose::STANDARD.decode(text("auth")).unwrap_or_default();
        if let Some((user, secret)) = String::from_utf8_lossy(&decoded).split_once(':') {
            (username, password) = (user.to_owned(), secret.trim_end_matches('\0').to_owned());
        }
    }
    cri::AuthConfig {
        username,
        password,
        identity_token: text("identitytoken"),
        ..cri::AuthConfig::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pull_secrets_match_their_registry_only() {
        assert!(match_length("https://index.docker.io/v1/", "docker.io/library/a:1").is_some());
        assert!(
            match_length("r.io", "r.io/a:1").is_some()
                && match_length("r.io/team", "r.io/team/a").is_some()
        );
        assert!(
            match_length("*.r.io", "x.r.io/a").is_some()
                && match_length("*.r.io", "r.io/a").is_none()
        );
        assert!(
            match_length("r.io", "r.io.evil/a").is_none()
                && match_length("r.io/team", "r.io/teamster/a").is_none()
        );
    }

    #[test]
    fn a_failed_pull_is_shown_then_its_back_off_then_the_next_pull() {
        let (mut state, start) = (PullState::default(), base::clock::now());
        let after = |seconds: u64| start + Duration::from_secs(seconds);
        assert_eq!(state.back_off("a", start), None);
        state.record_failure("a", "ErrImagePull: no".to_owned(), start);
        assert_eq!(state.next_try(), Some(start + FAILURE_SHOWN));
        assert_eq!(state.back_off("a", start), Some("ErrImagePull: no"), "a second container");
        assert_eq!(state.next_try(), Some(start + FAILURE_SHOWN));
        state.begin_round();
        assert_eq!(state.back_off("a", after(1)), Some("ErrImagePull: no"));
        assert_eq!(state.next_try(), Some(after(10)));
        state.begin_round();
        assert_eq!(state.back_off("a", after(10)), None, "it is pulled again");
        state.record_failure("a", "ErrImagePull: no".to_owned(), after(11));
        state.begin_round();
        assert_eq!(state.back_off("a", after(30)), Some("ErrImagePull: no"));
        assert_eq!(state.next_try(), Some(after(31)), "the delay doubles");
    }

    #[test]
    fn an_image_that_no_container_waits_for_has_no_next_try() {
        let (mut state, start) = (PullState::default(), base::clock::now());
        // The image of a container was changed while its pull was in back-off.
        state.record_failure("old", String::new(), start);
        state.begin_round();
        assert_eq!(state.next_try(), None);
        // The image was imported.
        state.record_failure("new", String::new(), start);
        state.forget("new");
        assert_eq!(state.next_try(), None);
    }

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
