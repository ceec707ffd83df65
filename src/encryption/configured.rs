//! Encryption configured by a file: `encryption-provider-config`, optionally reloaded when it
//! changes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::Gvr;
use arc_swap::ArcSwap;
use async_trait::async_trait;
use base::Tasks;
use base::tasks::Kind;
use bytes::Bytes;
use parking_lot::Mutex;

use super::config::{Configuration, ContentError, NamedKeyError, Table, configuration};
use super::errors::{PluginError, PluginsError, ProviderError};
use super::kms::Kms;
use super::providers::{self, Provider};
use super::{Keys, is_encrypted};
use crate::metrics::EncryptionMetrics;
use crate::transformer::{Opened, TransformError, Transformer};
use component_config::FileWatcher;
use component_config::flags;

const FILE_FLAG: &str = "encryption-provider-config";
const RELOAD_FLAG: &str = "encryption-provider-config-automatic-reload";
/// The time for the plugins of a changed file to become healthy (`minKMSPluginCloseGracePeriod`).
const HEALTHY_TIMEOUT: Duration = Duration::from_secs(10);
/// The interval between attempts after a failed load (`EncryptionConfigFileChangePollDuration`).
const RETRY_INTERVAL: Duration = Duration::from_secs(60);
/// The initial and maximum delay between health checks of the plugins of a changed file.
const WAIT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// The parsed and validated file.
#[derive(Clone)]
pub struct EncryptionConfig {
    /// The path of the file.
    pub file: PathBuf,
    /// Whether the file is reloaded when it changes.
    reload: bool,
    /// The hash of the file, as metrics show it: `sha256:<hex>`.
    hash: String,
    configuration: Configuration,
}

impl std::fmt::Debug for EncryptionConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EncryptionConfig")
            .field("file", &self.file)
            .field("hash", &self.hash)
            .finish()
    }
}

/// The flags or the file are invalid.
#[derive(Debug, thiserror::Error)]
pub enum EncryptionConfigError {
    /// The value of a flag is not a boolean.
    #[error("{flag}={value}: must be true or false")]
    Boolean {
        /// The name of the flag.
        flag: String,
        /// Its value.
        value: String,
    },
    /// Reloading needs a file.
    #[error(
        "--encryption-provider-config-automatic-reload must be set with --encryption-provider-config"
    )]
    ReloadWithoutFile,
    /// The file is invalid.
    #[error(transparent)]
    File(#[from] FileError),
}

/// The file of the flag `encryption-provider-config` is invalid.
#[derive(Debug, thiserror::Error)]
#[error("encryption-provider-config={}: {source}; correct the file and start again", .file.display())]
pub struct FileError {
    file: PathBuf,
    source: LoadError,
}

/// The file cannot be loaded.
#[derive(Debug, thiserror::Error)]
enum LoadError {
    #[error(
        "error while parsing file: error while loading file: error reading encryption provider \
         configuration file {}: {source}",
        quoted(.file)
    )]
    Read { file: PathBuf, source: std::io::Error },
    #[error(
        "error while parsing file: error while loading file: encryption provider configuration \
         file {} is empty",
        quoted(.0)
    )]
    Empty(PathBuf),
    #[error(
        "error while parsing file: error decoding encryption provider configuration file {}: \
         {source}",
        quoted(.file)
    )]
    Content { file: PathBuf, source: ContentError },
}

fn quoted(file: &Path) -> String {
    api::field::go_quote(&file.display().to_string())
}

/// The providers of a configuration cannot be created.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct StartError(#[from] NamedKeyError);

/// A changed file does not take effect.
#[derive(Debug, thiserror::Error)]
enum ReloadError {
    #[error(transparent)]
    Panicked(#[from] tokio::task::JoinError),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Key(#[from] NamedKeyError),
    #[error("health check for new transformers failed: {0}")]
    NotHealthy(#[source] PluginsError),
}

/// Reads, hashes and validates the file.
fn load(file: &Path, reload: bool) -> Result<(String, Configuration), LoadError> {
    let path = || file.to_owned();
    let text = base::fs::read(file).map_err(|source| LoadError::Read { file: path(), source })?;
    if text.is_empty() {
        return Err(LoadError::Empty(path()));
    }
    let configuration = configuration(&text, reload)
        .map_err(|source| LoadError::Content { file: path(), source })?;
    Ok((base::server_identity::hash_of(&text), configuration))
}

impl EncryptionConfig {
    /// Whether this is an encryption flag.
    pub fn is_flag(name: &str) -> bool {
        [FILE_FLAG, RELOAD_FLAG].contains(&name)
    }

    /// Parses flags in the form `NAME=VALUE`, for all of which [`EncryptionConfig::is_flag`] must
    /// be true, and the file. `None` if they name no file.
    ///
    /// # Errors
    /// If a flag or the file is invalid.
    pub fn read(arguments: &[String]) -> Result<Option<Self>, EncryptionConfigError> {
        let (mut file, mut reload) = (None, false);
        for argument in arguments {
            match flags::parts(argument) {
                (FILE_FLAG, value) => file = value.filter(|v| !v.is_empty()).map(PathBuf::from),
                (_, None | Some("true" | "1" | "t" | "T" | "TRUE" | "True")) => reload = true,
                (_, Some("false" | "0" | "f" | "F" | "FALSE" | "False")) => reload = false,
                (name, Some(other)) => {
                    let (flag, value) = (name.to_owned(), other.to_owned());
                    return Err(EncryptionConfigError::Boolean { flag, value });
                }
            }
        }
        let Some(file) = file else {
            return match reload {
                true => Err(EncryptionConfigError::ReloadWithoutFile),
                false => Ok(None),
            };
        };
        let (hash, configuration) =
            load(&file, reload).map_err(|source| FileError { file: file.clone(), source })?;
        Ok(Some(Self { file, reload, hash, configuration }))
    }
}

/// The active configuration.
struct Current {
    /// The providers per group and resource.
    table: Table,
    plugins: Vec<Arc<Kms>>,
}

impl Current {
    /// Checks the health of all plugins.
    async fn check(&self) -> Result<(), PluginsError> {
        let mut errors = Vec::new();
        for (position, kms) in self.plugins.iter().enumerate() {
            if let Err(source) = kms.check().await {
                errors.push(PluginError { position, source });
            }
        }
        if errors.is_empty() { Ok(()) } else { Err(PluginsError(errors)) }
    }
}

/// Encrypts resources with the providers of the file. Values that this server encrypted with its
/// own keys, before the file was configured, stay readable.
pub struct Configured {
    current: ArcSwap<Current>,
    own: Arc<Keys>,
    metrics: Arc<EncryptionMetrics>,
    file: PathBuf,
    reload: bool,
    /// The hash of the file whose configuration is active.
    last_hash: Mutex<String>,
    tasks: Tasks,
}

impl Configured {
    /// Creates the providers of `config`, and checks the plugins before anything is read. As in
    /// upstream, an unhealthy plugin is not an error: it is checked again, and its values can be
    /// neither read nor written until it is healthy.
    ///
    /// # Errors
    /// If a provider cannot be created.
    pub async fn start(
        config: EncryptionConfig,
        own: Arc<Keys>,
        tasks: &Tasks,
    ) -> Result<Arc<Self>, StartError> {
        let metrics = Arc::<EncryptionMetrics>::default();
        metrics.loaded(&config.hash);
        let (table, plugins) = config.configuration.build(&metrics, tasks)?;
        let current = Current { table, plugins };
        if let Err(error) = current.check().await {
            tracing::warn!(%error, "a KMS plugin is not healthy");
        }
        current.plugins.iter().for_each(|kms| kms.follow_plugin(tasks));
        let this = Arc::new(Self {
            current: ArcSwap::from_pointee(current),
            own,
            metrics,
            file: config.file,
            reload: config.reload,
            last_hash: Mutex::new(config.hash),
            tasks: tasks.clone(),
        });
        if config.reload {
            let (following, shutdown) = (Arc::clone(&this), tasks.shutdown().clone());
            tasks.spawn(Kind::Request, "encryption configuration", async move {
                tokio::select! {
                    () = following.watch() => {}
                    () = shutdown.requested() => {}
                }
                Ok::<(), std::convert::Infallible>(())
            });
        }
        Ok(this)
    }

    /// Reloads the file when it changes, until the future is dropped.
    async fn watch(&self) {
        let mut changes = FileWatcher::new(&self.file).await;
        loop {
            // The first pass does not wait: the file may have changed since the start.
            let reloaded = self.reload().await;
            let has_failed = reloaded.is_err();
            match reloaded {
                Ok(None) => {}
                Ok(Some(hash)) => {
                    self.metrics.reloaded(Some(&hash));
                    tracing::info!(
                        file = %self.file.display(), "reloaded the encryption configuration"
                    );
                }
                Err(error) => {
                    self.metrics.reloaded(None);
                    tracing::error!(
                        file = %self.file.display(), %error,
                        "error processing encryption config file; \
                         the former configuration stays in effect"
                    );
                }
            }
            tokio::select! {
                () = changes.next() => {}
                // Retry, because a plugin does not notify when it becomes healthy.
                () = base::clock::sleep(RETRY_INTERVAL), if has_failed => {}
            }
        }
    }

    /// Loads the file; returns its hash if a changed configuration took effect.
    async fn reload(&self) -> Result<Option<String>, ReloadError> {
        let file = self.file.clone();
        let (hash, configuration) = base::tasks::blocking(move || load(&file, true)).await??;
        if *self.last_hash.lock() == hash {
            return Ok(None);
        }
        let (table, plugins) = configuration.build(&self.metrics, &self.tasks)?;
        let current = Current { table, plugins };
        let mut wait = base::Backoff::new(WAIT.0, WAIT.1);
        let until = base::clock::now() + HEALTHY_TIMEOUT;
        while let Err(error) = current.check().await {
            if base::clock::now() >= until || !wait.wait(self.tasks.shutdown()).await {
                return Err(ReloadError::NotHealthy(error));
            }
        }
        current.plugins.iter().for_each(|kms| kms.follow_plugin(&self.tasks));
        self.current.store(Arc::new(current));
        *self.last_hash.lock() = hash.clone();
        Ok(Some(hash))
    }

    /// The providers of a resource: those for its name, else for `*.<group>`, else for `*.*`.
    fn providers(&self, resource: &Gvr) -> Option<Arc<[Provider]>> {
        let current = self.current.load();
        // Events are stored in the core group, also if the request names `events.k8s.io`.
        let group = match &*resource.group {
            "events.k8s.io" => "",
            group => group,
        };
        let find = |group: &str, resource: &str| current.table.get(group)?.get(resource).cloned();
        find(group, &resource.resource).or_else(|| find(group, "*")).or_else(|| find("*", "*"))
    }
}

impl std::fmt::Debug for Configured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Configured").field("file", &self.file).finish_non_exhaustive()
    }
}

fn qualified(resource: &Gvr) -> String {
    api::status::qualified(&resource.group, &resource.resource)
}

#[async_trait]
impl Transformer for Configured {
    fn covers(&self, resource: &Gvr) -> bool {
        self.providers(resource).is_some() || self.own.covers(resource)
    }

    fn seal(&self, resource: &Gvr, key: &str, plain: &Bytes) -> Result<Bytes, TransformError> {
        match self.providers(resource) {
            Some(list) => providers::seal(&list, &qualified(resource), key, plain, &self.metrics)
                .map_err(TransformError::new),
            None => Ok(plain.clone()),
        }
    }

    fn open(&self, resource: &Gvr, key: &str, stored: &Bytes) -> Result<Opened, TransformError> {
        let opened = match self.providers(resource) {
            Some(list) => providers::open(&list, &qualified(resource), key, stored, &self.metrics),
            None if is_encrypted(stored) => Err(ProviderError::IdentityReadsEncrypted),
            None => Ok(Opened { plain: stored.clone(), stale: false }),
        };
        // Try the keys of this server. Such a value is stale: its next write uses the providers of
        // the file.
        opened.or_else(|error| {
            let error = TransformError::new(error);
            if !self.own.covers(resource) || !is_encrypted(stored) {
                return Err(error);
            }
            let opened = self.own.open(resource, key, stored).map_err(|_| error)?;
            Ok(Opened { stale: true, ..opened })
        })
    }

    async fn fetch(&self, resource: &Gvr, stored: &[&Bytes]) {
        let Some(list) = self.providers(resource) else { return };
        for provider in list.iter() {
            if let Provider::Kms(kms) = provider {
                kms.fetch(stored).await;
            }
        }
    }

    fn has_health(&self) -> bool {
        self.reload || !self.current.load().plugins.is_empty()
    }

    async fn check(&self) -> Result<(), TransformError> {
        let current = self.current.load_full();
        current.check().await.map_err(TransformError::new)
    }

    fn render(&self, out: &mut String) {
        self.metrics.render(out);
    }
}
