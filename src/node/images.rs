//! Makes sure that a container's image is there: policy, credentials, back-off, events.

use std::collections::HashMap;
use std::time::Duration;

use api::k8s::api::core::v1 as core;
use client::events::EventType;
use proto::runtime::v1 as cri;
use tokio::time::Instant;

use crate::image_name;
use crate::node::Node;
use crate::objects::{Found, Source};
use crate::pod::{Member, Pod};
use crate::status::Waiting;

/// Back-off between failed pulls of one image, as that of failing containers.
const BACKOFF_INITIAL: Duration = Duration::from_secs(10);
const BACKOFF_MAX: Duration = Duration::from_secs(300);

/// Failed pulls of one pod.
#[derive(Debug, Default)]
pub(crate) struct PullState {
    failed: HashMap<String, Failure>,
}

#[derive(Debug)]
struct Failure {
    delay: Duration,
    at: Instant,
    message: String,
}

impl PullState {
    /// When the next pull may be tried, if one waits.
    pub(crate) fn next_try(&self) -> Option<Instant> {
        self.failed.values().map(|f| f.at + f.delay).min()
    }
}

/// An image that a pod needs, and who of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pod: &'a Pod,
    /// As people write it.
    image: &'a str,
    /// `Always`, `IfNotPresent` or `Never`.
    policy: Option<&'a str>,
    /// The container that runs it; `None` for a volume, which is the whole pod's.
    member: Option<&'a Member>,
}

impl<'a> Wanted<'a> {
    /// What a container runs.
    pub(crate) fn by(pod: &'a Pod, member: &'a Member) -> Self {
        let policy = member.container.image_pull_policy.as_deref();
        Self { pod, image: member.image(), policy, member: Some(member) }
    }

    /// What a volume shows.
    fn as_volume(pod: &'a Pod, source: &'a core::ImageVolumeSource) -> Self {
        let image = source.reference.as_deref().unwrap_or_default();
        Self { pod, image, policy: source.pull_policy.as_deref(), member: None }
    }

    fn event(&self, node: &Node, kind: EventType, reason: &str, message: impl Into<String>) {
        match self.member {
            Some(member) => node.container_event(self.pod, member, kind, reason, message),
            None => node.pod_event(self.pod, kind, reason, message),
        }
    }
}

/// The images that volumes of this container show, by the volumes' names (KEP 4639).
///
/// # Errors
/// The waiting state that the container shows.
pub(crate) async fn of_volumes(
    node: &Node,
    pod: &Pod,
    member: &Member,
    sandbox: &cri::PodSandboxConfig,
    state: &mut PullState,
) -> Result<HashMap<String, cri::ImageSpec>, Waiting> {
    let mut out = HashMap::new();
    for volume in pod.spec().volumes.iter().flatten() {
        let Some(source) = &volume.image else { continue };
        let mut mounts = member.container.volume_mounts.iter().flatten();
        if !mounts.any(|mount| mount.name == volume.name) {
            continue;
        }
        let wanted = Wanted::as_volume(pod, source);
        let found = ensure(node, wanted, sandbox, state).await.inspect_err(|why| {
            let message = format!("Error: {}", why.message);
            node.container_event(pod, member, EventType::Warning, "Failed", message);
        })?;
        let spec = cri::ImageSpec {
            image: found.id,
            user_specified_image: wanted.image.to_owned(),
            ..cri::ImageSpec::default()
        };
        out.insert(volume.name.clone(), spec);
    }
    Ok(out)
}

/// The image, pulled when the policy wants it.
///
/// # Errors
/// The waiting state that the container shows.
pub(crate) async fn ensure(
    node: &Node,
    wanted: Wanted<'_>,
    sandbox: &cri::PodSandboxConfig,
    state: &mut PullState,
) -> Result<cri::Image, Waiting> {
    let image = wanted.image;
    if !image_name::is_valid(image) {
        let message = format!(
            "Failed to apply default image tag {image:?}: couldn't parse image name {image:?}: invalid reference format"
        );
        wanted.event(node, EventType::Warning, "InspectFailed", message.clone());
        return Err(Waiting { reason: "InvalidImageName", message });
    }
    let name = image_name::normalize(image);
    let policy = wanted.policy.filter(|p| !p.is_empty());
    let policy =
        policy.unwrap_or(if image_name::is_latest(image) { "Always" } else { "IfNotPresent" });
    let present = node.runtime.image(&name).await.map_err(|error| {
        let message = format!("Failed to inspect image {image:?}: {error}");
        wanted.event(node, EventType::Warning, "InspectFailed", message.clone());
        Waiting { reason: "ImageInspectError", message }
    })?;
    match (policy, present) {
        ("Always", _) => {}
        (_, Some(found)) => {
            let message = format!(
                "Container image {image:?} already present on machine and can be accessed by the pod"
            );
            wanted.event(node, EventType::Normal, "Pulled", message);
            return Ok(found);
        }
        ("Never", None) => {
            let message =
                format!("Container image {image:?} is not present with pull policy of Never");
            wanted.event(node, EventType::Warning, "ErrImageNeverPull", message.clone());
            return Err(Waiting { reason: "ErrImageNeverPull", message });
        }
        _ => {}
    }
    pull(node, wanted, &name, sandbox, state).await
}

async fn pull(
    node: &Node,
    wanted: Wanted<'_>,
    name: &str,
    sandbox: &cri::PodSandboxConfig,
    state: &mut PullState,
) -> Result<cri::Image, Waiting> {
    let image = wanted.image;
    if let Some(failure) = state.failed.get(name).filter(|f| f.at.elapsed() < f.delay) {
        let short = format!("Back-off pulling image {image:?}");
        wanted.event(node, EventType::Normal, "BackOff", short.clone());
        let message = format!("{short}: {}", failure.message);
        return Err(Waiting { reason: "ImagePullBackOff", message });
    }
    let queued = base::clock::now();
    wanted.event(node, EventType::Normal, "Pulling", format!("Pulling image {image:?}"));
    let line = node.pulls.acquire().await;
    let started = base::clock::now();
    let outcome = pull_with(node, wanted.pod, name, sandbox).await;
    drop(line);
    match outcome {
        Ok(reference) => {
            state.failed.remove(name);
            let found = node.runtime.image(&reference).await.ok().flatten();
            let found =
                found.unwrap_or_else(|| cri::Image { id: reference, ..cri::Image::default() });
            let message = format!(
                "Successfully pulled image {image:?} in {} ({} including waiting). Image size: {} bytes.",
                seconds(started.elapsed()),
                seconds(queued.elapsed()),
                found.size
            );
            wanted.event(node, EventType::Normal, "Pulled", message);
            Ok(found)
        }
        Err(message) => {
            wanted.event(
                node,
                EventType::Warning,
                "Failed",
                format!("Failed to pull image {image:?}: {message}"),
            );
            wanted.event(node, EventType::Warning, "Failed", "Error: ErrImagePull");
            let delay =
                state.failed.get(name).map_or(BACKOFF_INITIAL, |f| (f.delay * 2).min(BACKOFF_MAX));
            let failure = Failure {
                delay,
                at: base::clock::now(),
                message: format!("ErrImagePull: {message}"),
            };
            state.failed.insert(name.to_owned(), failure);
            Err(Waiting { reason: "ErrImagePull", message })
        }
    }
}

/// A duration as Go prints it, to the millisecond: `1.204s`, `87ms`.
fn seconds(duration: Duration) -> String {
    if duration < Duration::from_secs(1) {
        return format!("{}ms", duration.as_millis());
    }
    let text = format!("{:.3}", duration.as_secs_f64());
    format!("{}s", text.trim_end_matches('0').trim_end_matches('.'))
}

/// Tries every credential that fits the image, the pod's before the node's, then none.
async fn pull_with(
    node: &Node,
    pod: &Pod,
    name: &str,
    sandbox: &cri::PodSandboxConfig,
) -> Result<String, String> {
    let mut last = String::new();
    let of_node = node.registries.load().credentials(name);
    for auth in credentials(node, pod, name).into_iter().chain(of_node).map(Some).chain([None]) {
        let spec = cri::ImageSpec { image: name.to_owned(), ..cri::ImageSpec::default() };
        match node.runtime.pull_image(spec, auth, sandbox.clone()).await {
            Ok(reference) => return Ok(reference),
            Err(error) => last = error.message,
        }
    }
    Err(last)
}

/// Credentials of the pod's pull secrets for the image's registry; the longest matching address first.
fn credentials(node: &Node, pod: &Pod, name: &str) -> Vec<cri::AuthConfig> {
    let mut out: Vec<(usize, cri::AuthConfig)> = Vec::new();
    for secret in pod.spec().image_pull_secrets.iter().flatten() {
        let reference = (Source::Secret, pod.namespace().to_owned(), secret.name.clone());
        let Found::Present(object) = node.objects.get(&reference) else { continue };
        let data = crate::objects::data(Source::Secret, &object);
        for (key, value) in data {
            let Ok(json) = serde_json::from_slice::<serde_json::Value>(&value) else { continue };
            let auths = match key.as_str() {
                ".dockerconfigjson" => json.get("auths").cloned().unwrap_or_default(),
                ".dockercfg" => json,
                _ => continue,
            };
            for (address, entry) in auths.as_object().into_iter().flatten() {
                if let Some(length) = fits(address, name) {
                    out.push((length, auth(entry)));
                }
            }
        }
    }
    out.sort_by_key(|(length, _)| std::cmp::Reverse(*length));
    out.into_iter().map(|(_, auth)| auth).collect()
}

/// Whether a registry address of a pull secret is that of the image (`docker.io/library/a:1`), and how closely.
fn fits(address: &str, name: &str) -> Option<usize> {
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
    fn pull_secrets_fit_their_registry_only() {
        assert!(fits("https://index.docker.io/v1/", "docker.io/library/a:1").is_some());
        assert!(fits("r.io", "r.io/a:1").is_some() && fits("r.io/team", "r.io/team/a").is_some());
        assert!(fits("*.r.io", "x.r.io/a").is_some() && fits("*.r.io", "r.io/a").is_none());
        assert!(
            fits("r.io", "r.io.evil/a").is_none() && fits("r.io/team", "r.io/teamster/a").is_none()
        );
    }
}
