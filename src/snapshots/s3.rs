//! An S3 bucket as the second location of snapshots, besides the folder.
//!
//! Requests are signed in their query (Signature Version 4, by `rusty-s3`). Objects are uploaded
//! and downloaded in one piece; the CRC32C of an upload is part of the request, so that the bucket
//! refuses damaged data.

mod error;
mod http;
pub(crate) mod secret;
pub(crate) mod settings;

use std::fmt;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ::http::Method;
use base::tasks::blocking;
use rusty_s3::actions::{DeleteObject, GetObject, ListObjectsV2, PutObject};
use rusty_s3::{Credentials, S3Action, UrlStyle};
use serde::{Deserialize, Serialize};

use super::folder::{Snapshot, excess, is_valid_name, oldest_first, timestamp};
use client::proxy::{EnvironmentProxies, ProxyRules};
use error::PAGES_MAX;
pub(crate) use error::{Error, RequestError};
use http::{Client, Received, Transfer};

/// Attempts per request, and the delay before the second one.
const ATTEMPTS: u32 = 3;
const BACKOFF: Duration = Duration::from_millis(500);
/// Validity of a signature: covers clock skew and the duration of an attempt.
const SIGNED_FOR: Duration = Duration::from_secs(900);

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
    /// `--etcd-s3-proxy`: a URL, `none`, or empty for the proxies of the environment.
    pub(crate) proxy: String,
    /// The proxies of the environment.
    pub(crate) proxies: EnvironmentProxies,
}

/// Where the settings of the bucket come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum BucketConfig {
    /// Flags.
    Settings(Box<Settings>),
    /// The Secret of `--etcd-s3-config-secret`, which is read for each operation.
    Secret(SecretReference),
}

/// A Secret in `kube-system` with the settings of the bucket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SecretReference {
    /// Its name.
    pub(crate) name: String,
    /// Number of scheduled snapshots to keep if the Secret does not say; 0 keeps all.
    pub(crate) retention: usize,
    /// The proxies of the environment.
    pub(crate) proxies: EnvironmentProxies,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.location(""), self.endpoint)
    }
}

impl Settings {
    /// The object's URL, as in k3s.
    fn location(&self, name: &str) -> String {
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
    /// Opens the bucket, without connecting to it.
    ///
    /// # Errors
    /// The settings are invalid.
    pub(crate) async fn open(settings: Settings) -> Result<Self, Error> {
        let url = settings.endpoint.parse();
        let url = url.map_err(|source| {
            let endpoint = settings.endpoint.clone();
            Error::Endpoint { endpoint, source }
        })?;
        let style = if settings.by_host { UrlStyle::VirtualHost } else { UrlStyle::Path };
        let (name, region) = (settings.bucket.clone(), settings.region.clone());
        let bucket = rusty_s3::Bucket::new(url, style, name, region);
        let bucket = bucket.map_err(|source| {
            let (endpoint, bucket) = (settings.endpoint.clone(), settings.bucket.clone());
            Error::Bucket { endpoint, bucket, source }
        })?;
        let (key, secret) = (settings.access_key.as_str(), settings.secret_key.as_str());
        let credentials = match settings.session_token.as_str() {
            "" => Credentials::new(key, secret),
            token => Credentials::new_with_token(key, secret, token),
        };
        let tls = bucket.base_url().scheme() == "https";
        let proxies = ProxyRules::new(&settings.proxy, &settings.proxies).map_err(Error::Proxy)?;
        let client = Client::new(tls, &settings.ca, settings.unverified, proxies).await?;
        Ok(Self { settings, bucket, credentials, client })
    }

    /// Sends a request until it succeeds; transient errors are retried.
    async fn request<'a>(
        &self,
        name: &str,
        method: Method,
        action: &impl S3Action<'a>,
        headers: &[(&'static str, String)],
        mut transfer: Transfer<'_>,
    ) -> Result<Received, Error> {
        let mut backoff = base::Backoff::new(BACKOFF, BACKOFF.saturating_mul(8));
        loop {
            // Signed for each attempt, because the time is part of the signature.
            let url = action.sign(SIGNED_FOR);
            let sent = self.client.exchange(method.clone(), &url, headers, transfer.reborrow());
            let outcome = tokio::time::timeout(self.settings.timeout, sent).await;
            let source = match outcome {
                Ok(Ok(received)) => return Ok(received),
                Ok(Err(error)) => error,
                Err(_) => RequestError::Timeout { seconds: self.settings.timeout.as_secs() },
            };
            if !source.is_transient() || backoff.failures() + 1 >= ATTEMPTS {
                return Err(Error::Request { location: self.settings.location(name), source });
            }
            tracing::debug!(error = %source, "snapshots: retrying a request to the bucket");
            base::clock::sleep(backoff.next_delay()).await;
        }
    }

    /// Uploads a file atomically.
    ///
    /// # Errors
    /// The file cannot be read, or the bucket does not accept it.
    pub(crate) async fn put(&self, path: &Path, name: &str) -> Result<Snapshot, Error> {
        let file = path.to_owned();
        let (size, checksum) = blocking(move || http::checksum(&file))
            .await?
            .map_err(|source| Error::File { path: path.to_owned(), source })?;
        let key = self.settings.key(name);
        let headers = [("x-amz-checksum-crc32c", checksum)];
        let mut action = PutObject::new(&self.bucket, Some(&self.credentials), &key);
        for (header, value) in &headers {
            action.headers_mut().insert(*header, value.clone());
        }
        self.request(name, Method::PUT, &action, &headers, Transfer::Upload { path, size }).await?;
        Ok(self.snapshot(name, size, None))
    }

    fn snapshot(&self, name: &str, size: u64, modified: Option<i64>) -> Snapshot {
        Snapshot {
            name: name.to_owned(),
            location: self.settings.location(name),
            size,
            created: timestamp(name).or(modified).unwrap_or(0),
        }
    }

    /// All snapshots in the folder of the bucket, oldest first.
    ///
    /// # Errors
    /// The bucket does not answer, or has too many objects.
    pub(crate) async fn list(&self) -> Result<Vec<Snapshot>, Error> {
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
            let answer = self.request("", Method::GET, &action, &[], Transfer::Memory).await?;
            let page = ListObjectsV2::parse_response(&answer.text).map_err(|e| {
                let location = self.settings.location("");
                Error::MalformedList { location, reason: e.to_string() }
            })?;
            for object in page.contents {
                let Some(name) = object.key.strip_prefix(&prefix) else { continue };
                if is_valid_name(name) {
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
        Err(Error::TooManyObjects { location: self.settings.location("") })
    }

    /// Deletes snapshots; returns the names of existing ones.
    ///
    /// # Errors
    /// The bucket rejects a request; earlier snapshots are deleted then.
    pub(crate) async fn delete(&self, names: &[String]) -> Result<Vec<String>, Error> {
        let existing = self.list().await?;
        let mut deleted = Vec::new();
        for name in names {
            if existing.iter().all(|snapshot| snapshot.name != *name) || deleted.contains(name) {
                continue;
            }
            let key = self.settings.key(name);
            let action = DeleteObject::new(&self.bucket, Some(&self.credentials), &key);
            self.request(name, Method::DELETE, &action, &[], Transfer::Memory).await?;
            deleted.push(name.clone());
        }
        Ok(deleted)
    }

    /// Deletes the oldest snapshots of this name and node beyond `keep`; returns their names.
    ///
    /// # Errors
    /// The bucket rejects a request.
    pub(crate) async fn prune(
        &self,
        name: &str,
        node: &str,
        keep: usize,
    ) -> Result<Vec<String>, Error> {
        let excess = excess(&self.list().await?, &format!("{name}-{node}-"), keep);
        if excess.is_empty() { Ok(excess) } else { self.delete(&excess).await }
    }

    /// The `spec.s3` of the objects of its snapshots, with the fields of k3s.
    pub(crate) fn description(&self) -> serde_json::Value {
        let settings = &self.settings;
        let (scheme, host) = settings.endpoint.split_once("://").unwrap_or_default();
        let fields = [
            ("endpoint", serde_json::Value::from(host)),
            ("skipSSLVerify", settings.unverified.into()),
            ("bucket", settings.bucket.as_str().into()),
            ("region", settings.region.as_str().into()),
            ("prefix", settings.folder.as_str().into()),
            ("insecure", (scheme == "http").into()),
        ];
        let is_set = |value: &serde_json::Value| *value != false && *value != "";
        let set = fields.into_iter().filter(|(_, value)| is_set(value));
        set.map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// Number of scheduled snapshots to keep.
    pub(crate) fn retention(&self) -> usize {
        self.settings.retention
    }

    /// Downloads a snapshot into `folder`; the file gets its final name when it is complete.
    ///
    /// # Errors
    /// The name is invalid, the bucket rejects the request, or the file cannot be written; no file
    /// is left then.
    pub(crate) async fn get(&self, name: &str, folder: &Path) -> Result<PathBuf, Error> {
        if !is_valid_name(name) {
            return Err(Error::NotAName { name: name.to_owned() });
        }
        let temporary = folder.join(format!(".{name}.download"));
        let path = temporary.clone();
        let create =
            move || File::options().write(true).create(true).truncate(true).mode(0o600).open(path);
        let failed = |source| Error::File { path: temporary.clone(), source };
        let file = blocking(create).await?.map_err(failed)?;
        let key = self.settings.key(name);
        let action = GetObject::new(&self.bucket, Some(&self.credentials), &key);
        let transfer = Transfer::Download(Arc::new(file));
        let received = self.request(name, Method::GET, &action, &[], transfer).await;
        let (from, to) = (temporary.clone(), folder.join(name));
        let (is_complete, target) = (received.is_ok(), to.clone());
        let finish = move || match is_complete {
            true => std::fs::rename(&from, &target),
            false => std::fs::remove_file(&from),
        };
        let finished = blocking(finish).await?;
        received?;
        finished.map_err(failed)?;
        Ok(to)
    }
}

#[cfg(test)]
mod tests;
