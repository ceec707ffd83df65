//! What is scaled: its resource by discovery, its scale.

use bytes::Bytes;
use client::{Client, Error};
use http::Method;
use serde_json::{Value, json};

/// Attempts to write a scale after conflicts (client-go's `retry.DefaultRetry`).
const ATTEMPTS: usize = 5;

/// Where objects of a kind are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ResourcePath {
    /// `/apis/apps/v1`.
    pub(super) root: String,
    /// `deployments`.
    pub(super) resource: String,
}

/// The scale of a target, and where it is written.
#[derive(Debug, Clone)]
pub(super) struct Scale {
    path: String,
    object: Value,
}

async fn get(client: &Client, path: &str) -> Result<Value, Error> {
    let body = client.request(Method::GET, path, "application/json", Bytes::new()).await?;
    Ok(serde_json::from_slice(&body)?)
}

/// Nothing is served there. Where a whole group or version is missing, the answer is a text and no
/// Status, and has no reason.
pub(super) fn not_served(error: &Error) -> bool {
    error.status().is_some_and(|status| status.code == 404)
}

/// The version that a group's server prefers.
pub(super) async fn version(client: &Client, group: &str) -> Result<String, String> {
    let about = get(client, &format!("/apis/{group}")).await.map_err(|e| e.to_string())?;
    let version = about["preferredVersion"]["version"].as_str().map(str::to_owned);
    version.ok_or_else(|| format!("the group {group} names no version"))
}

fn named(resources: &Value, kind: &str) -> Option<String> {
    let all = resources["resources"].as_array()?;
    let found = all
        .iter()
        .find(|r| r["kind"] == *kind && r["name"].as_str().is_some_and(|name| !name.contains('/')));
    found?["name"].as_str().map(str::to_owned)
}

/// Where objects of a kind are: in the version that is named, or, when that is not served, in the
/// one that the group's server prefers.
///
/// # Errors
/// In upstream's words.
pub(super) async fn find(
    client: &Client,
    version_named: &str,
    kind: &str,
) -> Result<ResourcePath, String> {
    if version_named.matches('/').count() > 1 {
        return Err(format!("unexpected GroupVersion string: {version_named}"));
    }
    let group = version_named.split_once('/').map_or("", |(group, _)| group);
    let mut root = match version_named {
        "" => "/api/v1".to_owned(),
        core if !core.contains('/') => format!("/api/{core}"),
        other => format!("/apis/{other}"),
    };
    for again in [true, false] {
        match get(client, &root).await {
            Ok(all) => {
                if let Some(resource) = named(&all, kind) {
                    return Ok(ResourcePath { root, resource });
                }
            }
            Err(error) if not_served(&error) => {}
            Err(error) => return Err(error.to_string()),
        }
        if !again || group.is_empty() {
            break;
        }
        match version(client, group).await {
            Ok(preferred) => root = format!("/apis/{group}/{preferred}"),
            Err(_) => break,
        }
    }
    Err(format!("no matches for kind \"{kind}\" in group \"{group}\""))
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

    /// Replicas that are wanted.
    pub(super) fn wanted(&self) -> i32 {
        self.number("/spec/replicas")
    }

    /// Replicas that there are.
    pub(super) fn there(&self) -> i32 {
        self.number("/status/replicas")
    }

    /// Selects the pods, in its text form.
    pub(super) fn selector(&self) -> &str {
        self.object.pointer("/status/selector").and_then(Value::as_str).unwrap_or_default()
    }

    /// Writes another number of replicas; read again and written again when somebody was faster.
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
    fn a_version_that_is_missing_is_told_by_a_text() {
        let failed = |code, reason: &str| -> Error {
            api::Status::failure(code, reason, "404 page not found".to_owned()).into()
        };
        assert!(not_served(&failed(404, "")), "as the router answers");
        assert!(not_served(&failed(404, "NotFound")));
        assert!(!not_served(&failed(503, "")));
        assert!(!not_served(&Error::Transport("refused".to_owned())));
    }

    #[test]
    fn a_kind_is_a_resource_and_not_one_of_its_parts() {
        let all = json!({"resources": [
            {"name": "deployments/scale", "kind": "Scale"},
            {"name": "deployments/status", "kind": "Deployment"},
            {"name": "deployments", "kind": "Deployment"}]});
        assert_eq!(named(&all, "Deployment").as_deref(), Some("deployments"));
        assert_eq!(named(&all, "Scale"), None);
    }
}
