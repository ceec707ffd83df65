//! The target of an autoscaler: its resource, found by discovery, and its scale subresource.

use bytes::Bytes;
use client::{Client, Error};
use http::Method;
use serde_json::{Value, json};

/// Attempts to write a scale after conflicts (client-go's `retry.DefaultRetry`).
const ATTEMPTS: usize = 5;

/// Path of the objects of a kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ResourcePath {
    /// `/apis/apps/v1`.
    pub(super) root: String,
    /// `deployments`.
    pub(super) resource: String,
}

/// The scale of a target, and its path.
#[derive(Debug, Clone)]
pub(super) struct Scale {
    path: String,
    object: Value,
}

/// Why the resource of a kind cannot be determined.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum DiscoveryError {
    /// Discovery failed.
    #[error(transparent)]
    Client(#[from] Error),
    #[error("the group {0} names no version")]
    NoVersion(String),
    #[error("unexpected GroupVersion string: {0}")]
    InvalidGroupVersion(String),
    /// Neither the requested nor the preferred version serves the kind.
    #[error("no matches for kind \"{kind}\" in group \"{group}\"")]
    NoMatch { kind: String, group: String },
}

async fn get(client: &Client, path: &str) -> Result<Value, Error> {
    let body = client.request(Method::GET, path, "application/json", Bytes::new()).await?;
    Ok(serde_json::from_slice(&body)?)
}

/// Whether the path is not served. The response about a missing group or version is a text instead
/// of a Status and has no reason.
pub(super) fn is_not_served(error: &Error) -> bool {
    error.status().is_some_and(|status| status.code == 404)
}

/// The version that a group's server prefers.
pub(super) async fn version(client: &Client, group: &str) -> Result<String, DiscoveryError> {
    let about = get(client, &format!("/apis/{group}")).await?;
    let version = about["preferredVersion"]["version"].as_str().map(str::to_owned);
    version.ok_or_else(|| DiscoveryError::NoVersion(group.to_owned()))
}

fn resource_of_kind(resources: &Value, kind: &str) -> Option<String> {
    let all = resources["resources"].as_array()?;
    let found = all
        .iter()
        .find(|r| r["kind"] == *kind && r["name"].as_str().is_some_and(|name| !name.contains('/')));
    found?["name"].as_str().map(str::to_owned)
}

/// Returns the resource of a kind: in the given version or, if that is not served, in the version
/// that the group's server prefers.
///
/// # Errors
///
/// Discovery failed, or no version serves the kind.
pub(super) async fn find(
    client: &Client,
    group_version: &str,
    kind: &str,
) -> Result<ResourcePath, DiscoveryError> {
    if group_version.matches('/').count() > 1 {
        return Err(DiscoveryError::InvalidGroupVersion(group_version.to_owned()));
    }
    let group = group_version.split_once('/').map_or("", |(group, _)| group);
    let mut root = match group_version {
        "" => "/api/v1".to_owned(),
        core if !core.contains('/') => format!("/api/{core}"),
        other => format!("/apis/{other}"),
    };
    for is_first in [true, false] {
        match get(client, &root).await {
            Ok(all) => {
                if let Some(resource) = resource_of_kind(&all, kind) {
                    return Ok(ResourcePath { root, resource });
                }
            }
            Err(error) if is_not_served(&error) => {}
            Err(error) => return Err(error.into()),
        }
        if !is_first || group.is_empty() {
            break;
        }
        match version(client, group).await {
            Ok(preferred) => root = format!("/apis/{group}/{preferred}"),
            Err(_) => break,
        }
    }
    Err(DiscoveryError::NoMatch { kind: kind.to_owned(), group: group.to_owned() })
}

impl Scale {
    /// Reads the scale of an object.
    pub(super) async fn read(
        client: &Client,
        found: &ResourcePath,
        namespace: &str,
        name: &str,
    ) -> Result<Self, Error> {
        let path = format!("{}/namespaces/{namespace}/{}/{name}/scale", found.root, found.resource);
        Ok(Self { object: get(client, &path).await?, path })
    }

    fn number(&self, pointer: &str) -> i32 {
        let number = self.object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0);
        i32::try_from(number).unwrap_or(i32::MAX)
    }

    /// The desired number of replicas.
    pub(super) fn desired_replicas(&self) -> i32 {
        self.number("/spec/replicas")
    }

    /// The current number of replicas.
    pub(super) fn current_replicas(&self) -> i32 {
        self.number("/status/replicas")
    }

    /// The selector of the pods, as text.
    pub(super) fn selector(&self) -> &str {
        self.object.pointer("/status/selector").and_then(Value::as_str).unwrap_or_default()
    }

    /// Writes the desired number of replicas; after a conflict, reads the scale and tries again.
    pub(super) async fn write(&mut self, client: &Client, replicas: i32) -> Result<(), Error> {
        let mut last = Ok(());
        for _ in 0..ATTEMPTS {
            let Some(scale) = self.object.as_object_mut() else {
                return Err(Error::Decode(format!("{} is no object", self.path)));
            };
            scale.insert("spec".to_owned(), json!({"replicas": replicas}));
            let body = serde_json::to_vec(&self.object)?.into();
            match client.request(Method::PUT, &self.path, "application/json", body).await {
                Ok(_) => return Ok(()),
                Err(error) if error.is_conflict() => last = Err(error),
                Err(error) => return Err(error),
            }
            self.object = get(client, &self.path).await?;
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_404_without_reason_is_not_served() {
        let failed = |code, reason: &str| -> Error {
            api::Status::failure(code, reason, "404 page not found".to_owned()).into()
        };
        assert!(is_not_served(&failed(404, "")), "as the router answers");
        assert!(is_not_served(&failed(404, "NotFound")));
        assert!(!is_not_served(&failed(503, "")));
        assert!(!is_not_served(&Error::Transport("refused".to_owned())));
    }

    #[test]
    fn the_resource_of_a_kind_is_not_a_subresource() {
        let all = json!({"resources": [
            {"name": "deployments/scale", "kind": "Scale"},
            {"name": "deployments/status", "kind": "Deployment"},
            {"name": "deployments", "kind": "Deployment"}]});
        assert_eq!(resource_of_kind(&all, "Deployment").as_deref(), Some("deployments"));
        assert_eq!(resource_of_kind(&all, "Scale"), None);
    }
}
