//! One credential provider: whether it is responsible for an image, its cache, and its calls.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared, WeakShared};
use parking_lot::Mutex;

use super::cache::{CacheKey, CredentialCache, GLOBAL, KeyTooLong, registry_of};
use super::docker_config::DockerConfig;
use super::exec::{ExecPlugin, PluginError};
use super::keyring::{CredentialSource, ObjectCoordinates, matches_image};
use super::protocol::{CacheKeyType, PluginRequest, PluginResponse};
use super::provider_config::{CredentialProviders, ProviderConfig, TokenAttributes};
use super::provider_validation::CACHE_PER_TOKEN;
use super::service_account::{PodAccount, annotations_for};
use crate::digest::sha256;

type CallResult = Result<Arc<PluginResponse>, Arc<PluginError>>;
type Call = BoxFuture<'static, CallResult>;

/// Why a provider contributes nothing; the texts are those of upstream.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProviderError {
    #[error("failed to get service account: {0}")]
    Account(#[source] client::Error),
    #[error("failed to get service account token: {0}")]
    Token(#[source] client::Error),
    #[error("error generating service account cache key: {0}")]
    Key(#[from] KeyTooLong),
    #[error("failed to get credential from external registry credential provider: {0}")]
    Call(Arc<PluginError>),
    #[error(
        "credential provider plugin returned the service account token as the password which is \
         not allowed when service account cache type is not set to 'Token'"
    )]
    EchoedToken,
    #[error("credential provider plugin did not return a valid cacheKeyType: {0}")]
    CacheKeyType(String),
}

/// Credentials and whose they are.
#[derive(Debug)]
pub(super) struct Provided {
    pub(super) logins: Arc<DockerConfig>,
    pub(super) source: CredentialSource,
}

/// What a call is made with.
#[derive(Debug, Default)]
struct CallContext {
    account: Option<ObjectCoordinates>,
    annotations: BTreeMap<String, String>,
    token: String,
    token_hash: String,
    /// Empty without an account.
    account_key: CacheKey,
}

/// A provider.
pub(super) struct Provider {
    config: ProviderConfig,
    plugin: Arc<ExecPlugin>,
    cache: Mutex<CredentialCache>,
    /// Calls that run, by their key: equal ones are merged.
    calls: Mutex<HashMap<CacheKey, WeakShared<Call>>>,
}

impl std::fmt::Debug for Provider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Provider({})", self.config.name)
    }
}

impl Provider {
    /// The providers of a configuration.
    pub(super) fn all(settings: &CredentialProviders) -> Vec<Self> {
        settings.providers.iter().map(|config| Self::new(config.clone(), settings)).collect()
    }

    fn new(config: ProviderConfig, settings: &CredentialProviders) -> Self {
        let env = config.env.iter().map(|v| (v.name.clone(), v.value.clone()));
        let plugin = Arc::new(ExecPlugin {
            name: config.name.clone(),
            version: config.api_version.clone(),
            program: settings.bin_dir.join(&config.name),
            args: config.args.clone(),
            env: env.collect(),
        });
        let cache = Mutex::new(CredentialCache::new(base::clock::now()));
        Self { config, plugin, cache, calls: Mutex::default() }
    }

    /// The name of its program.
    pub(super) fn name(&self) -> &str {
        &self.config.name
    }

    /// Whether it is responsible for the image.
    pub(super) fn is_responsible(&self, image: &str) -> bool {
        self.config.match_images.iter().any(|pattern| matches_image(pattern, image))
    }

    /// Returns the credentials for an image, from the cache or the plugin; `None` if the pod's
    /// service account does not meet the requirements of the provider.
    pub(super) async fn provide(
        &self,
        image: &str,
        pod: &dyn PodAccount,
    ) -> Result<Option<Provided>, ProviderError> {
        let Some(context) = self.context(image, pod).await? else { return Ok(None) };
        let account = context.account.clone();
        let source = account.map_or(CredentialSource::Node, CredentialSource::ServiceAccount);
        let now = base::clock::now();
        let cached = self.cache.lock().get(image, &context.account_key, now)?;
        let logins = match cached {
            Some(logins) => logins,
            None => self.request(image, &context).await?,
        };
        Ok(Some(Provided { logins, source }))
    }

    fn is_cached_per_account(&self) -> bool {
        let attributes = self.config.token_attributes.as_ref();
        attributes.is_some_and(|attributes| attributes.cache_type != CACHE_PER_TOKEN)
    }

    /// Reads what the plugin needs to know about the service account.
    async fn context(
        &self,
        image: &str,
        pod: &dyn PodAccount,
    ) -> Result<Option<CallContext>, ProviderError> {
        let Some(attributes) = &self.config.token_attributes else {
            return Ok(Some(CallContext::default()));
        };
        if pod.name().is_empty() {
            let is_required = attributes.require_service_account.unwrap_or_default();
            return Ok((!is_required).then(CallContext::default));
        }
        let data = pod.read().await.map_err(ProviderError::Account)?;
        let annotations = match annotations_for(attributes, &data) {
            Ok(annotations) => annotations,
            // Annotations may be how workloads opt in.
            Err(error) => {
                tracing::debug!(provider = self.name(), image, %error, "provider not called");
                return Ok(None);
            }
        };
        let audience = &attributes.service_account_token_audience;
        let token = pod.token(&data.uid, audience).await.map_err(ProviderError::Token)?;
        let account = ObjectCoordinates {
            uid: data.uid,
            namespace: pod.namespace().to_owned(),
            name: pod.name().to_owned(),
        };
        account_context(attributes, account, annotations, token).map(Some)
    }

    /// Calls the plugin and caches its response.
    async fn request(
        &self,
        image: &str,
        context: &CallContext,
    ) -> Result<Arc<DockerConfig>, ProviderError> {
        let response = self.call(image, context).await?;
        let is_echo = |password: &str| !context.token.is_empty() && password == context.token;
        let mut passwords = response.logins.values().map(|login| login.password.as_str());
        if self.is_cached_per_account() && passwords.any(is_echo) {
            return Err(ProviderError::EchoedToken);
        }
        let base = match &response.key_type {
            CacheKeyType::Image => image,
            CacheKeyType::Registry => registry_of(image),
            CacheKeyType::Global => GLOBAL,
            CacheKeyType::Invalid(text) => return Err(ProviderError::CacheKeyType(text.clone())),
        };
        let logins = Arc::new(response.logins.clone());
        let lifetime = response.lifetime.unwrap_or(self.config.default_lifetime());
        let now = base::clock::now();
        if let Some(expires) = now.checked_add(lifetime).filter(|_| !lifetime.is_zero()) {
            let key = CacheKey::of_credentials(base, &context.account_key)?;
            self.cache.lock().insert(key, Arc::clone(&logins), expires, now);
        }
        Ok(logins)
    }

    /// Calls the plugin, or waits for an equal call that runs. A call ends when no caller waits
    /// for it.
    async fn call(
        &self,
        image: &str,
        context: &CallContext,
    ) -> Result<Arc<PluginResponse>, ProviderError> {
        let key = CacheKey::of_call(image, &context.token_hash, &context.annotations)?;
        let call = self.join(key, image, context);
        let outcome = call.clone().await;
        drop(call);
        self.calls.lock().retain(|_, call| call.upgrade().is_some());
        outcome.map_err(ProviderError::Call)
    }

    fn join(&self, key: CacheKey, image: &str, context: &CallContext) -> Shared<Call> {
        let mut calls = self.calls.lock();
        if let Some(call) = calls.get(&key).and_then(WeakShared::upgrade) {
            return call;
        }
        let plugin = Arc::clone(&self.plugin);
        let request = PluginRequest {
            image: image.to_owned(),
            token: context.token.clone(),
            annotations: context.annotations.clone(),
        };
        let call: Call =
            async move { plugin.call(&request).await.map(Arc::new).map_err(Arc::new) }.boxed();
        let call = call.shared();
        if let Some(weak) = call.downgrade() {
            calls.insert(key, weak);
        }
        call
    }
}

fn account_context(
    attributes: &TokenAttributes,
    account: ObjectCoordinates,
    annotations: BTreeMap<String, String>,
    token: String,
) -> Result<CallContext, ProviderError> {
    let token_hash = if token.is_empty() { String::new() } else { sha256(token.as_bytes()) };
    let per_token = (attributes.cache_type == CACHE_PER_TOKEN).then_some(token_hash.as_str());
    let account_key = CacheKey::of_account(&account, &annotations, per_token)?;
    Ok(CallContext { account: Some(account), annotations, token, token_hash, account_key })
}
