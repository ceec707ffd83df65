//! The files of volumes whose content comes from the API: configMap, secret, downwardAPI,
//! projected.

use std::collections::BTreeMap;

use api::k8s::api::core::v1 as core;
use tokio::time::Instant;

use super::atomic::{VolumeFile, VolumeFiles};
use super::error::SetUpError;
use crate::context::Node;
use crate::credentials::pod_certificates::{Credentials, IssuedCredentials};
use crate::pods::cri_config::downward::{FieldContext, field, resource};
use crate::pods::objects::OBJECTS_WAIT;
use crate::pods::objects::{CachedObject, ObjectKind, ReferencedObjects, data};
use crate::pods::pod::Pod;

/// The content of a volume.
#[derive(Debug, Default)]
pub(super) struct VolumeContent {
    pub(super) files: VolumeFiles,
    pub(super) plugin: &'static str,
    /// Secrets are never written to disk.
    pub(super) in_memory: bool,
    pub(super) refresh_at: Option<Instant>,
}

impl VolumeContent {
    /// Schedules an update of the volume.
    fn refresh_by(&mut self, at: Instant) {
        self.refresh_at = Some(self.refresh_at.map_or(at, |known| known.min(at)));
    }
}

fn mode(item: Option<i32>, default: Option<i32>) -> u32 {
    item.or(default).and_then(|m| u32::try_from(m).ok()).unwrap_or(0o644) & 0o7777
}

/// Renders the content of a volume; `None` for another kind of volume.
pub(super) async fn render(
    node: &Node,
    pod: &Pod,
    volume: &core::Volume,
    ips: &[String],
    certificates: &IssuedCredentials,
) -> Result<Option<VolumeContent>, SetUpError> {
    let allocatable = node.caches.allocatable.load();
    let node_ips = node.identity.config.node_ips();
    let fields = FieldContext { pod_ips: ips, node_ips: &node_ips, allocatable: &allocatable };
    let mut out = VolumeContent::default();
    if let Some(source) = &volume.config_map {
        out.plugin = "kubernetes.io~configmap";
        let optional = source.optional == Some(true);
        keys(
            &node.api.objects,
            pod,
            ObjectKind::ConfigMap,
            &source.name,
            source.items.as_deref(),
            optional,
            source.default_mode,
            &mut out,
        )?;
    } else if let Some(source) = &volume.secret {
        out.plugin = "kubernetes.io~secret";
        out.in_memory = true;
        let name = source.secret_name.as_deref().unwrap_or_default();
        let optional = source.optional == Some(true);
        keys(
            &node.api.objects,
            pod,
            ObjectKind::Secret,
            name,
            source.items.as_deref(),
            optional,
            source.default_mode,
            &mut out,
        )?;
    } else if let Some(source) = &volume.downward_api {
        out.plugin = "kubernetes.io~downward-api";
        out.in_memory = true;
        downward(pod, source.items.as_deref(), source.default_mode, &fields, &mut out)?;
    } else if volume.projected.is_some() {
        out.plugin = "kubernetes.io~projected";
        out.in_memory = true;
        projected(node, pod, volume, certificates, &fields, &mut out).await?;
    } else {
        return Ok(None);
    }
    Ok(Some(out))
}

#[expect(
    clippy::too_many_arguments,
    reason = "one place for two kinds of objects in two kinds of volumes"
)]
fn keys(
    objects: &ReferencedObjects,
    pod: &Pod,
    source: ObjectKind,
    name: &str,
    items: Option<&[core::KeyToPath]>,
    optional: bool,
    default_mode: Option<i32>,
    out: &mut VolumeContent,
) -> Result<(), SetUpError> {
    let kind = if source == ObjectKind::ConfigMap { "configmap" } else { "secret" };
    let reference = (source, pod.namespace().to_owned(), name.to_owned());
    let found = match objects.get(&reference) {
        CachedObject::Present(object) => data(source, &object),
        CachedObject::Missing if optional => BTreeMap::new(),
        CachedObject::Missing => {
            return Err(SetUpError::NotFound { kind, name: name.to_owned() });
        }
        CachedObject::Unknown(error) if error.is_empty() => {
            let namespace = pod.namespace().to_owned();
            return Err(SetUpError::NotRead { kind, namespace, name: name.to_owned() });
        }
        CachedObject::Unknown(error) => return Err(SetUpError::Read(error)),
    };
    select(found, kind, items, optional, default_mode, &mut out.files)
}

/// Selects all keys, or those of `items` with their paths.
fn select(
    mut found: BTreeMap<String, Vec<u8>>,
    kind: &'static str,
    items: Option<&[core::KeyToPath]>,
    optional: bool,
    default_mode: Option<i32>,
    files: &mut VolumeFiles,
) -> Result<(), SetUpError> {
    let Some(items) = items.filter(|i| !i.is_empty()) else {
        for (key, data) in found {
            files.insert(key, VolumeFile { data, mode: mode(None, default_mode), user: None });
        }
        return Ok(());
    };
    for item in items {
        match found.get_mut(&item.key) {
            Some(data) => {
                let file = VolumeFile {
                    data: data.clone(),
                    mode: mode(item.mode, default_mode),
                    user: None,
                };
                files.insert(item.path.clone(), file);
            }
            None if optional => {}
            None => return Err(SetUpError::NoKey { kind, key: item.key.clone() }),
        }
    }
    Ok(())
}

fn downward(
    pod: &Pod,
    items: Option<&[core::DownwardAPIVolumeFile]>,
    default_mode: Option<i32>,
    fields: &FieldContext<'_>,
    out: &mut VolumeContent,
) -> Result<(), SetUpError> {
    for item in items.into_iter().flatten() {
        let text = if let Some(reference) = &item.field_ref {
            field(pod, &reference.field_path, fields)
        } else if let Some(selector) = &item.resource_field_ref {
            resource(pod, None, selector, fields)
        } else {
            continue;
        };
        let data = text?.into_bytes();
        out.files.insert(
            item.path.clone(),
            VolumeFile { data, mode: mode(item.mode, default_mode), user: None },
        );
    }
    Ok(())
}

/// Returns owner and mode of tokens, trust anchors and certificates. They are readable for the user
/// that all containers run as, and for the `fsGroup` of the pod, whose permission is added when the
/// files are written.
fn access(pod: &Pod, default: Option<i32>) -> (Option<u32>, u32) {
    let grouped = pod.spec().security_context.as_ref().is_some_and(|s| s.fs_group.is_some());
    let user = only_user(pod);
    (user, if grouped || user.is_some() { 0o600 } else { mode(None, default) })
}

/// Returns the user if all containers run as the same; only this user can then read tokens.
fn only_user(pod: &Pod) -> Option<u32> {
    let of_pod = pod.spec().security_context.as_ref().and_then(|s| s.run_as_user);
    let mut users = pod
        .containers
        .iter()
        .map(|m| m.container.security_context.as_ref().and_then(|s| s.run_as_user).or(of_pod));
    let first = users.next()??;
    users.all(|u| u == Some(first)).then_some(()).and_then(|()| u32::try_from(first).ok())
}

async fn projected(
    node: &Node,
    pod: &Pod,
    volume: &core::Volume,
    certificates: &IssuedCredentials,
    fields: &FieldContext<'_>,
    out: &mut VolumeContent,
) -> Result<(), SetUpError> {
    let sources = volume.projected.iter().flat_map(|p| p.sources.iter().flatten());
    let default = volume.projected.as_ref().and_then(|p| p.default_mode);
    let (user, own_mode) = access(pod, default);
    for (at, source) in sources.enumerate() {
        if let Some(s) = &source.config_map {
            let optional = s.optional == Some(true);
            keys(
                &node.api.objects,
                pod,
                ObjectKind::ConfigMap,
                &s.name,
                s.items.as_deref(),
                optional,
                default,
                out,
            )?;
        } else if let Some(s) = &source.secret {
            let optional = s.optional == Some(true);
            keys(
                &node.api.objects,
                pod,
                ObjectKind::Secret,
                &s.name,
                s.items.as_deref(),
                optional,
                default,
                out,
            )?;
        } else if let Some(s) = &source.downward_api {
            downward(pod, s.items.as_deref(), default, fields, out)?;
        } else if let Some(s) = &source.service_account_token {
            let seconds = s.expiration_seconds.unwrap_or(3600);
            let audience = s.audience.as_deref().unwrap_or_default();
            let token =
                node.api.tokens.get(pod, audience, seconds).await.map_err(SetUpError::Token)?;
            out.refresh_by(token.refresh_at);
            let data = token.text.into_bytes();
            out.files.insert(s.path.clone(), VolumeFile { data, mode: own_mode, user });
        } else if let Some(s) = &source.cluster_trust_bundle {
            let data = node.api.trust_bundles.anchors(s, OBJECTS_WAIT).await?;
            out.files.insert(s.path.clone(), VolumeFile { data, mode: own_mode, user });
        } else if let Some(s) = &source.pod_certificate {
            let found = certificates.get(&(volume.name.clone(), at)).cloned();
            let found = found.ok_or(SetUpError::NoCredentials)?;
            let (Credentials { key, chain }, due) = found.map_err(SetUpError::Certificate)?;
            due.into_iter().for_each(|at| out.refresh_by(at));
            for (path, data) in [
                (&s.credential_bundle_path, format!("{key}{chain}")),
                (&s.key_path, key.to_string()),
                (&s.certificate_chain_path, chain.to_string()),
            ] {
                if let Some(path) = path.as_ref().filter(|p| !p.is_empty()) {
                    let data = data.into_bytes();
                    out.files.insert(path.clone(), VolumeFile { data, mode: own_mode, user });
                }
            }
        } else {
            return Err(SetUpError::ProjectedKindNotSupported);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The cases of `TestCollectDataWithServiceAccountToken` and of the specs of `[sig-auth]
    /// ServiceAccounts`.
    #[test]
    fn tokens_are_readable_for_the_only_user_and_the_group_of_the_pod() {
        let of = |context: Value, containers: Value| {
            let spec = json!({"containers": containers, "securityContext": context});
            access(&crate::pods::pod::tests::pod(spec), Some(0o644))
        };
        let one = json!([{"name": "a"}]);
        assert_eq!(of(json!({}), one.clone()), (None, 0o644));
        assert_eq!(of(json!({"runAsUser": 1000}), one.clone()), (Some(1000), 0o600));
        assert_eq!(of(json!({"fsGroup": 10000}), one.clone()), (None, 0o600));
        let both = json!({"runAsUser": 1000, "fsGroup": 10000});
        assert_eq!(of(both.clone(), one), (Some(1000), 0o600));
        let two = |user: i64| {
            json!([{"name": "a", "securityContext": {"runAsUser": user}},
            {"name": "b"}])
        };
        assert_eq!(of(both.clone(), two(1000)), (Some(1000), 0o600));
        assert_eq!(of(both, two(2000)), (None, 0o600), "two users share it by the group");
        assert_eq!(of(json!({}), two(1000)), (None, 0o644), "the user of the image is not known");
    }
}
