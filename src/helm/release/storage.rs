//! The Secrets of releases: `sh.helm.release.v1.NAME.vREVISION` (`pkg/storage/driver` of Helm).

use std::io::{Read as _, Write as _};

use api::Gvr;
use client::{Client, DeleteOptions, ListOptions, Patch};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde_json::{Map, Value, json};
use sorting::CompactSort as _;

use super::Release;

/// The largest decompressed record in bytes.
const RECORD_MAX: u64 = 64 << 20;
const TYPE: &str = "helm.sh/release.v1";

/// A record cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// A request failed.
    #[error("release record {name}: {cause}")]
    Api {
        /// Name of the Secret.
        name: String,
        /// Cause.
        cause: client::Error,
    },
    /// The content is damaged.
    #[error("release record {name} cannot be decoded: {reason}")]
    Decode {
        /// Name of the Secret.
        name: String,
        /// Why.
        reason: String,
    },
}

/// The records of one namespace.
#[derive(Debug, Clone)]
pub struct Storage {
    client: Client,
    namespace: String,
}

fn secrets() -> Gvr {
    Gvr::new("", "v1", "secrets")
}

fn secret_name(release: &Release) -> String {
    format!("sh.helm.release.v1.{}.v{}", release.name, release.version)
}

impl Storage {
    /// The records of a namespace.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { client, namespace: namespace.to_owned() }
    }

    /// All revisions of a release, oldest first. A record that cannot be decoded is an error.
    ///
    /// # Errors
    /// The Secrets cannot be listed or decoded.
    pub async fn history(&self, name: &str) -> Result<Vec<Release>, StorageError> {
        let labels = format!("name={name},owner=helm");
        let options = ListOptions { labels: &labels, fields: "" };
        let listed = self.client.list_values(&secrets(), &self.namespace, &options).await;
        let listed = listed.map_err(|cause| StorageError::Api { name: name.to_owned(), cause })?;
        let decoded = base::tasks::blocking(move || {
            let records = listed.iter().filter(|secret| api::value::str_at(secret, "type") == TYPE);
            records.map(decode).collect::<Result<Vec<Release>, StorageError>>()
        });
        let mut releases = decoded
            .await
            .map_err(|e| StorageError::Decode { name: name.to_owned(), reason: e.to_string() })??;
        releases.compact_sort_by_key(|release| release.version);
        Ok(releases)
    }

    /// Adds a revision.
    ///
    /// # Errors
    /// It exists, or the request fails.
    pub async fn create(&self, release: &Release) -> Result<(), StorageError> {
        let secret = self.secret(release, "createdAt").await?;
        let created = self.client.post_value(&secrets(), &self.namespace, "", "", &secret).await;
        created.map(drop).map_err(|cause| StorageError::Api { name: secret_name(release), cause })
    }

    /// Replaces the record of a revision.
    ///
    /// # Errors
    /// It does not exist, or the request fails.
    pub async fn update(&self, release: &Release) -> Result<(), StorageError> {
        let name = secret_name(release);
        let secret = self.secret(release, "modifiedAt").await?;
        let patch =
            json!({"metadata": {"labels": secret["metadata"]["labels"]}, "data": secret["data"]});
        let patch = Patch::Merge(&patch);
        let patched = self.client.patch_value(&secrets(), &self.namespace, &name, "", &patch).await;
        patched.map(drop).map_err(|cause| StorageError::Api { name, cause })
    }

    /// Removes revisions.
    ///
    /// # Errors
    /// A request fails.
    pub async fn purge(&self, releases: &[Release]) -> Result<(), StorageError> {
        for release in releases {
            let name = secret_name(release);
            let options = DeleteOptions::default();
            match self.client.delete_gvr(&secrets(), &self.namespace, &name, &options).await {
                Err(cause) if !cause.is_not_found() => {
                    return Err(StorageError::Api { name, cause });
                }
                _ => {}
            }
        }
        Ok(())
    }

    async fn secret(&self, release: &Release, time: &str) -> Result<Value, StorageError> {
        let name = secret_name(release);
        let failed = |reason: String| StorageError::Decode { name: name.clone(), reason };
        let copy = release.clone();
        let encoded = base::tasks::blocking(move || encode(&copy)).await;
        let encoded =
            encoded.map_err(|e| failed(e.to_string()))?.map_err(|e| failed(e.to_string()))?;
        let now = jiff::Timestamp::now().as_second().to_string();
        let labels = json!({
            "name": release.name,
            "owner": "helm",
            "status": release.info.status,
            "version": release.version.to_string(),
            time: now,
        });
        Ok(json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "namespace": self.namespace, "labels": labels},
            "type": TYPE,
            "data": {"release": base64::Engine::encode(&base64::prelude::BASE64_STANDARD, encoded)},
        }))
    }
}

/// JSON, compressed, as base64 (`encodeRelease`).
fn encode(release: &Release) -> std::io::Result<String> {
    let text = serde_json::to_vec(release)?;
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    gzip.write_all(&text)?;
    Ok(base64::Engine::encode(&base64::prelude::BASE64_STANDARD, gzip.finish()?))
}

fn decode(secret: &Value) -> Result<Release, StorageError> {
    let name = api::value::str_in(secret, &["metadata", "name"]);
    let failed = |reason: String| StorageError::Decode { name: name.to_owned(), reason };
    let unbase = |text: &[u8]| {
        base64::Engine::decode(&base64::prelude::BASE64_STANDARD, text)
            .map_err(|e| failed(e.to_string()))
    };
    let data = api::value::str_in(secret, &["data", "release"]);
    let mut text = unbase(&unbase(data.as_bytes())?)?;
    if text.starts_with(&[0x1f, 0x8b, 0x08]) {
        let mut plain = Vec::new();
        let mut reader = GzDecoder::new(text.as_slice()).take(RECORD_MAX);
        reader.read_to_end(&mut plain).map_err(|e| failed(e.to_string()))?;
        text = plain;
    }
    let mut fields: Map<String, Value> =
        serde_json::from_slice(&text).map_err(|e| failed(e.to_string()))?;
    // Go writes absent lists and maps as null.
    fields.retain(|_, value| !value.is_null());
    let release: Release =
        serde_json::from_value(Value::Object(fields)).map_err(|e| failed(e.to_string()))?;
    Ok(release)
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    #[test]
    fn records_survive_encoding_with_fields_of_later_helm_versions() {
        let mut release = Release { name: "a".into(), version: 3, ..Release::default() };
        release.set_status(Status::PendingUpgrade, "Preparing upgrade");
        release.other.insert("later".into(), json!({"x": 1}));
        let data = encode(&release).unwrap();
        let data = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, data);
        let read = decode(&json!({"metadata": {"name": "n"}, "data": {"release": data}})).unwrap();
        assert_eq!((read.version, read.info.status), (3, Status::PendingUpgrade));
        assert_eq!(read.other["later"], json!({"x": 1}));
        let bad = decode(&json!({"metadata": {"name": "n"}, "data": {"release": "eA=="}}));
        assert!(bad.unwrap_err().to_string().starts_with("release record n cannot be decoded"));
    }
}
