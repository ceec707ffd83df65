//! An S3 bucket as the second location of snapshots, besides the folder.
//!
//! Requests are signed in their query (Signature Version 4, by `rusty-s3`). Objects are uploaded
//! and downloaded in one piece; the CRC32C of an upload is part of the request, so that the bucket
//! refuses damaged data.

mod http;
pub(crate) mod settings;

use std::fmt;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ::http::Method;
use base::tasks::blocking;
use rusty_s3::actions::{DeleteObject, GetObject, ListObjectsV2, PutObject};
use rusty_s3::{Credentials, S3Action, UrlStyle};
use serde::{Deserialize, Serialize};

use super::Snapshot;
use super::folder::{oldest_first, stamp, too_many};
use http::{Client, Fault, Received, To};

/// Attempts per request, and the delay before the second one.
const ATTEMPTS: u32 = 3;
const BACKOFF: Duration = Duration::from_millis(500);
/// Validity of a signature: covers clock skew and the duration of an attempt.
const SIGNED_FOR: Duration = Duration::from_secs(900);
/// Maximum number of list pages of a thousand objects each.
const PAGES_MAX: usize = 100;

/// Location and options of a bucket. The command sends it to the server over the socket, which only
/// root can access.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Settings {
    /// URL of the service, `http` or `https`.
    pub(crate) endpoint: String,
    /// Whether the bucket's name is part of the host instead of the path.
    pub(crate) by_host: bool,
    pub(crate) bucket: String,
    pub(crate) region: String,
    /// Prefix before a slash and the name; empty for none.
    pub(crate) folder: String,
    pub(crate) access_key: String,
    pub(crate) secret_key: String,
    pub(crate) session_token: String,
    /// CA certificates in PEM; empty for the system's.
    pub(crate) ca: String,
    /// Whether TLS certificates are not verified.
    pub(crate) unverified: bool,
    /// Timeout of a request.
    pub(crate) timeout: Duration,
    /// Number of scheduled snapshots to keep; 0 keeps all.
    pub(crate) retention: usize,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.place(""), self.endpoint)
    }
}

impl Settings {
    /// The object's URL, as in k3s.
    fn place(&self, name: &str) -> String {
        format!("s3://{}/{}", self.bucket, self.key(name))
    }

    fn key(&self, name: &str) -> String {
        match self.folder.as_str() {
            "" => name.to_owned(),
            folder => format!("{folder}/{name}"),
        }
    }
}

/// A bucket.
pub(crate) struct Bucket {
    settings: Settings,
    bucket: rusty_s3::Bucket,
    credentials: Credentials,
    client: Client,
}

impl Bucket {
    /// Does not connect yet.
    ///
    /// # Errors
    /// The invalid setting.
    pub(crate) async fn open(settings: Settings) -> Result<Self, String> {
        let endpoint =
            settings.endpoint.parse().map_err(|e| format!("{}: {e}", settings.endpoint))?;
        let style = if settings.by_host { UrlStyle::VirtualHost } else { UrlStyle::Path };
        let (name, region) = (settings.bucket.clone(), settings.region.clone());
        let bucket = rusty_s3::Bucket::new(endpoint, style, name, region)
            .map_err(|e| format!("{} with bucket {}: {e}", settings.endpoint, settings.bucket))?;
        let (key, secret) = (settings.access_key.as_str(), settings.secret_key.as_str());
        let credentials = match settings.session_token.as_str() {
            "" => Credentials::new(key, secret),
            token => Credentials::new_with_token(key, secret, token),
        };
        let tls = bucket.base_url().scheme() == "https";
        let client = Client::new(tls, &settings.ca, settings.unverified).await?;
        Ok(Self { settings, bucket, credentials, client })
    }

    fn told(&self, name: &str, error: impl fmt::Display) -> String {
        format!("{}: {error}", self.settings.place(name))
    }

    /// Sends a request until it succeeds; transient errors are retried.
    async fn ask<'a>(
        &self,
        name: &str,
        method: Method,
        action: &impl S3Action<'a>,
        headers: &[(&'static str, String)],
        mut to: To<'_>,
    ) -> Result<Received, String> {
        let mut backoff = base::Backoff::new(BACKOFF, BACKOFF.saturating_mul(8));
        loop {
            // Signed for each attempt, because the time is part of the signature.
            let url = action.sign(SIGNED_FOR);
            let sent = self.client.exchange(method.clone(), &url, headers, to.again());
            let outcome = tokio::time::timeout(self.settings.timeout, sent).await;
            let fault = match outcome {
                Ok(Ok(received)) => return Ok(received),
                Ok(Err(fault)) => fault,
                Err(_) => {
                    let seconds = self.settings.timeout.as_secs();
                    Fault { text: format!("no answer within {seconds} s"), passing: true }
                }
            };
            if !fault.passing || backoff.failures() + 1 >= ATTEMPTS {
                return Err(self.told(name, fault.text));
            }
            tracing::debug!(error = fault.text, "the bucket is asked again");
            base::clock::sleep(backoff.next_delay()).await;
        }
    }

    /// Uploads a file atomically.
    ///
    /// # Errors
    /// An error message.
    pub(crate) async fn put(&self, path: &Path, name: &str) -> Result<Snapshot, String> {
        let file = path.to_owned();
        let looked = blocking(move || http::look(&file)).await.map_err(|e| e.to_string())?;
        let (size, checksum) = looked.map_err(|e| format!("{}: {e}", path.display()))?;
        let key = self.settings.key(name);
        let headers = [("x-amz-checksum-crc32c", checksum)];
        let mut action = PutObject::new(&self.bucket, Some(&self.credentials), &key);
        for (header, value) in &headers {
            action.headers_mut().insert(*header, value.clone());
        }
        self.ask(name, Method::PUT, &action, &headers, To::Upload { path, size }).await?;
        Ok(self.snapshot(name, size, None))
    }

    fn snapshot(&self, name: &str, size: u64, modified: Option<i64>) -> Snapshot {
        Snapshot {
            name: name.to_owned(),
            location: self.settings.place(name),
            size,
            created: stamp(name).or(modified).unwrap_or(0),
        }
    }

    /// All snapshots in the folder of the bucket, oldest first.
    ///
    /// # Errors
    /// An error message.
    pub(crate) async fn list(&self) -> Result<Vec<Snapshot>, String> {
        let prefix = self.settings.key("");
        let mut snapshots = Vec::new();
        let mut token: Option<String> = None;
        for _ in 0..PAGES_MAX {
            let mut action = ListObjectsV2::new(&self.bucket, Some(&self.credentials));
            action.with_prefix(prefix.as_str());
            action.with_delimiter("/");
            if let Some(token) = &token {
                action.with_continuation_token(token.as_str());
            }
            let answer = self.ask("", Method::GET, &action, &[], To::Memory).await?;
            let page = ListObjectsV2::parse_response(&answer.text)
                .map_err(|e| self.told("", format!("the list cannot be read: {e}")))?;
            for object in page.contents {
                let Some(name) = object.key.strip_prefix(&prefix) else { continue };
                if crate::commands::etcd_snapshot::named("name", name).is_ok() {
                    let modified = object.last_modified.and_then(|at| at.parse().ok());
                    let modified = modified.map(|at: jiff::Timestamp| at.as_second());
                    snapshots.push(self.snapshot(name, object.size.unwrap_or(0), modified));
                }
            }
            token = page.next_continuation_token;
            if token.is_none() {
                return Ok(oldest_first(snapshots));
            }
        }
        Err(self.told("", format!("holds more than {PAGES_MAX},000 objects")))
    }

    /// Deletes snapshots; returns the names of those that existed.
    ///
    /// # Errors
    /// An error message; earlier snapshots are deleted then.
    pub(crate) async fn delete(&self, names: &[String]) -> Result<Vec<String>, String> {
        let there = self.list().await?;
        let mut deleted = Vec::new();
        for name in names {
            if there.iter().all(|snapshot| snapshot.name != *name) || deleted.contains(name) {
                continue;
            }
            let key = self.settings.key(name);
            let action = DeleteObject::new(&self.bucket, Some(&self.credentials), &key);
            self.ask(name, Method::DELETE, &action, &[], To::Memory).await?;
            deleted.push(name.clone());
        }
        Ok(deleted)
    }

    /// Deletes the oldest snapshots of this name and node beyond `keep`; returns their names.
    ///
    /// # Errors
    /// An error message.
    pub(crate) async fn prune(
        &self,
        name: &str,
        node: &str,
        keep: usize,
    ) -> Result<Vec<String>, String> {
        let excess = too_many(&self.list().await?, &format!("{name}-{node}-"), keep);
        if excess.is_empty() { Ok(excess) } else { self.delete(&excess).await }
    }

    /// Number of scheduled snapshots to keep.
    pub(crate) fn retention(&self) -> usize {
        self.settings.retention
    }

    /// Downloads a snapshot into `folder`; the file gets its final name when it is complete.
    ///
    /// # Errors
    /// An error message; no file is left then.
    pub(crate) async fn get(
        &self,
        name: &str,
        folder: &Path,
    ) -> Result<std::path::PathBuf, String> {
        crate::commands::etcd_snapshot::named("cluster-reset-restore-path", name).map_err(
            |_| {
                format!(
                    "{name}: with --etcd-s3 a snapshot of the bucket is named; for a file add \
                --etcd-s3=false"
                )
            },
        )?;
        let temporary = folder.join(format!(".{name}.download"));
        let path = temporary.clone();
        let made = move || {
            std::os::unix::fs::OpenOptionsExt::mode(
                File::options().write(true).create(true).truncate(true),
                0o600,
            )
            .open(path)
        };
        let told = |e: &dyn fmt::Display| format!("{}: {e}", temporary.display());
        let file = blocking(made).await.map_err(|e| told(&e))?.map_err(|e| told(&e))?;
        let key = self.settings.key(name);
        let action = GetObject::new(&self.bucket, Some(&self.credentials), &key);
        let got = self.ask(name, Method::GET, &action, &[], To::File(Arc::new(file))).await;
        let (from, to) = (temporary.clone(), folder.join(name));
        let (ok, target) = (got.is_ok(), to.clone());
        let ended = move || match ok {
            true => std::fs::rename(&from, &target),
            false => std::fs::remove_file(&from),
        };
        let ended = blocking(ended).await.map_err(|e| told(&e))?;
        got?;
        ended.map_err(|e| told(&e))?;
        Ok(to)
    }
}

#[cfg(test)]
mod tests;
