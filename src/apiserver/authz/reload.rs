//! Creates the configured authorizers, and reloads the file of `authorization-config` when it
//! changes (`pkg/kubeapiserver/authorizer/reload.go`).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use base::Tasks;
use parking_lot::Mutex;
use sorting::CompactSort as _;

use super::chain::{Chain, Member};
use super::config::{AuthorizationConfig, Configuration, FILE_FLAG, FileError, Kind};
use super::webhook::{Webhook, WebhookCheckError};
use super::{Attributes, Authorizer, Decision, UserRules, load};
use crate::authz::always::{AlwaysAllow, AlwaysDeny};
use crate::authz::metrics::AuthorizationMetrics;
use crate::request::user::User;
use component_config::FileWatcher;
use webhook::kubeconfig::WebhookEndpoint;

/// The CA certificates of a webhook are unusable.
#[derive(Debug, thiserror::Error)]
#[error("authorization webhook: {0}; correct the file and start again")]
pub struct CheckError(#[source] WebhookCheckError);

/// A changed file does not satisfy the restrictions on reloads. The messages are those of
/// upstream's `reload.go`.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum RestrictionError {
    #[error("missing required types: [{}]", .0.join(" "))]
    MissingTypes(Vec<&'static str>),
    #[error("authorizer type {0} is not allowed if it was not enabled at initial server startup")]
    NotEnabledAtStart(&'static str),
}

/// A changed file does not take effect.
#[derive(Debug, thiserror::Error)]
enum ReloadError {
    #[error(transparent)]
    Read(#[from] std::io::Error),
    #[error(transparent)]
    Panicked(#[from] tokio::task::JoinError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Restricted(#[from] RestrictionError),
    #[error(transparent)]
    Webhook(#[from] WebhookCheckError),
}

/// The dependencies of authorizers, which persist over reloads.
struct AuthorizerFactory {
    node: Arc<dyn Authorizer>,
    rbac: Arc<dyn Authorizer>,
    metrics: Arc<AuthorizationMetrics>,
    tasks: Tasks,
}

/// A chain and the webhooks in it.
struct BuiltChain {
    chain: Chain,
    webhooks: Vec<Arc<Webhook>>,
}

impl BuiltChain {
    async fn check(&self) -> Result<(), WebhookCheckError> {
        for webhook in &self.webhooks {
            webhook.check().await?;
        }
        Ok(())
    }
}

impl AuthorizerFactory {
    fn build(
        &self,
        configuration: &Configuration,
        endpoints: &[Option<WebhookEndpoint>],
    ) -> BuiltChain {
        let mut webhooks = Vec::new();
        let mut members = Vec::with_capacity(configuration.0.len());
        for (at, entry) in configuration.0.iter().enumerate() {
            let authorizer: Arc<dyn Authorizer> = match &entry.kind {
                Kind::AlwaysAllow => Arc::new(AlwaysAllow),
                Kind::AlwaysDeny => Arc::new(AlwaysDeny),
                Kind::Node => Arc::clone(&self.node),
                Kind::Rbac => Arc::clone(&self.rbac),
                Kind::Webhook(hook) => {
                    // Every webhook was parsed together with its endpoint.
                    let endpoint = endpoints.get(at).and_then(Option::clone);
                    let Some(endpoint) = endpoint else { continue };
                    let (metrics, tasks) = (&self.metrics, &self.tasks);
                    let webhook = Webhook::new(&entry.name, hook, endpoint, metrics, tasks);
                    let webhook = Arc::new(webhook);
                    webhooks.push(Arc::clone(&webhook));
                    webhook
                }
            };
            let tally = self.metrics.tally(entry.kind.name(), &entry.name);
            members.push(Member::new(&entry.name, authorizer, tally));
        }
        BuiltChain { chain: Chain::of(members, &self.metrics), webhooks }
    }
}

/// The authorizers of a configuration.
pub struct Authorization {
    authorizer: Arc<dyn Authorizer>,
    webhooks: Vec<Arc<Webhook>>,
    reloaded: Option<Arc<ReloadableAuthorizer>>,
}

impl Authorization {
    /// Creates them, with the server's own authorizers for Node and RBAC.
    pub(crate) fn new(
        plan: AuthorizationConfig,
        node: Arc<dyn Authorizer>,
        rbac: Arc<dyn Authorizer>,
        tasks: &Tasks,
    ) -> Self {
        let factory =
            AuthorizerFactory { node, rbac, metrics: Arc::default(), tasks: tasks.clone() };
        let BuiltChain { chain, webhooks } = factory.build(&plan.configuration, &plan.endpoints);
        let Some((file, text)) = plan.file else {
            return Self { authorizer: Arc::new(chain), webhooks, reloaded: None };
        };
        factory.metrics.record_active(&text);
        let reloaded = Arc::new(ReloadableAuthorizer {
            current: ArcSwap::from_pointee(chain),
            factory,
            file,
            required: kinds(&plan.configuration),
            last: Mutex::new(Arc::new((text, plan.configuration))),
        });
        Self {
            authorizer: Arc::clone(&reloaded) as Arc<dyn Authorizer>,
            webhooks,
            reloaded: Some(reloaded),
        }
    }

    /// The chain of authorizers.
    pub(crate) fn authorizer(&self) -> &Arc<dyn Authorizer> {
        &self.authorizer
    }

    /// Checks the TLS configuration of webhooks.
    ///
    /// # Errors
    /// If the CA certificates of a kubeconfig are unusable.
    pub async fn check(&self) -> Result<(), CheckError> {
        for webhook in &self.webhooks {
            webhook.check().await.map_err(CheckError)?;
        }
        Ok(())
    }

    /// Reloads the file whenever it changes, until shutdown.
    pub(crate) fn follow(&self, tasks: &Tasks) {
        let Some(reloaded) = self.reloaded.clone() else { return };
        let shutdown = tasks.shutdown().clone();
        tasks.spawn(base::Kind::Request, "authorization configuration", async move {
            tokio::select! {
                () = reloaded.watch() => {}
                () = shutdown.requested() => {}
            }
            Ok::<(), std::convert::Infallible>(())
        });
    }
}

/// The types that a changed file must keep and may contain: all but webhooks.
fn kinds(configuration: &Configuration) -> Vec<&'static str> {
    let kinds = configuration.0.iter().filter(|entry| !matches!(entry.kind, Kind::Webhook(_)));
    let mut kinds: Vec<&'static str> = kinds.map(|entry| entry.kind.name()).collect();
    kinds.compact_sort();
    kinds
}

/// Checks a changed configuration against the restrictions on reloads.
///
/// # Errors
/// If a type is missing, or was not enabled at the start.
fn check_restrictions(
    configuration: &Configuration,
    required: &[&'static str],
) -> Result<(), RestrictionError> {
    let now = kinds(configuration);
    let missing: Vec<&'static str> =
        required.iter().filter(|kind| !now.contains(kind)).copied().collect();
    if !missing.is_empty() {
        return Err(RestrictionError::MissingTypes(missing));
    }
    let is_new = |kind: &&&str| matches!(**kind, "Node" | "RBAC") && !required.contains(*kind);
    match now.iter().find(is_new) {
        Some(kind) => Err(RestrictionError::NotEnabledAtStart(kind)),
        None => Ok(()),
    }
}

/// The result of reading the file again.
enum Read {
    Same,
    /// Different text, same configuration.
    Reworded(Vec<u8>, Configuration),
    Changed(Vec<u8>, Configuration, Vec<Option<WebhookEndpoint>>),
    /// The text, if it could be read, and the error.
    Failed(Option<Vec<u8>>, ReloadError),
}

fn read(file: &Path, last: &(Vec<u8>, Configuration), required: &[&'static str]) -> Read {
    let text = match base::fs::read(file) {
        Ok(text) => text,
        Err(error) => return Read::Failed(None, error.into()),
    };
    if text == last.0 {
        return Read::Same;
    }
    let parse = || {
        let configuration = load::configuration(&text).map_err(FileError::from)?;
        if configuration != last.1 {
            check_restrictions(&configuration, required)?;
        }
        Ok((configuration.endpoints().map_err(FileError::from)?, configuration))
    };
    match parse() {
        Ok((_, configuration)) if configuration == last.1 => Read::Reworded(text, configuration),
        Ok((endpoints, configuration)) => Read::Changed(text, configuration, endpoints),
        Err(error) => Read::Failed(Some(text), error),
    }
}

/// A chain that is replaced when its file changes. An invalid file is logged and the former chain
/// stays in effect.
struct ReloadableAuthorizer {
    current: ArcSwap<Chain>,
    factory: AuthorizerFactory,
    file: PathBuf,
    required: Vec<&'static str>,
    /// The text that was last read, and the active configuration.
    last: Mutex<Arc<(Vec<u8>, Configuration)>>,
}

impl ReloadableAuthorizer {
    /// Runs until it is dropped.
    async fn watch(&self) {
        let mut changes = FileWatcher::new(&self.file).await;
        loop {
            // Read once first: the file may have changed since the start.
            self.reload().await;
            changes.next().await;
        }
    }

    async fn reload(&self) {
        let (file, required) = (self.file.clone(), self.required.clone());
        let last = Arc::clone(&self.last.lock());
        let known = Arc::clone(&last);
        let read = base::tasks::blocking(move || read(&file, &known, &required)).await;
        let read = read.unwrap_or_else(|e| Read::Failed(None, e.into()));
        let (text, outcome) = match read {
            Read::Same => return,
            Read::Reworded(text, configuration) => {
                *self.last.lock() = Arc::new((text, configuration));
                return;
            }
            Read::Failed(text, error) => (text.map(|text| (text, last.1.clone())), Err(error)),
            Read::Changed(text, configuration, endpoints) => {
                let built = self.factory.build(&configuration, &endpoints);
                match built.check().await {
                    Ok(()) => (Some((text, configuration)), Ok(built.chain)),
                    Err(error) => (Some((text, last.1.clone())), Err(error.into())),
                }
            }
        };
        if let Some(read) = text {
            if outcome.is_ok() {
                self.factory.metrics.record_active(&read.0);
            }
            *self.last.lock() = Arc::new(read);
        }
        let file = self.file.display();
        self.factory.metrics.reloaded(outcome.is_ok());
        match outcome {
            Ok(chain) => {
                self.current.store(Arc::new(chain));
                tracing::info!(%file, "reloaded the authorization configuration");
            }
            Err(error) => tracing::error!(
                %file, %error,
                "{FILE_FLAG}: the changed file is invalid; the former configuration stays in effect"
            ),
        }
    }
}

#[async_trait]
impl Authorizer for ReloadableAuthorizer {
    async fn authorize(&self, user: &User, attributes: &Attributes<'_>) -> Decision {
        let chain = self.current.load_full();
        chain.authorize(user, attributes).await
    }

    fn rules(&self, user: &User, namespace: &str) -> UserRules {
        self.current.load().rules(user, namespace)
    }

    fn render(&self, out: &mut String) {
        self.current.load().render(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authz::config::AuthorizerConfig;

    fn of(kinds: &[Kind]) -> Configuration {
        Configuration(kinds.iter().cloned().map(AuthorizerConfig::plain).collect())
    }

    /// Messages of upstream's `reload.go` and `LoadAndValidateData`.
    #[test]
    fn a_reload_cannot_add_node_or_rbac_nor_drop_types() {
        let required = kinds(&of(&[Kind::Rbac, Kind::AlwaysDeny]));
        assert_eq!(check_restrictions(&of(&[Kind::AlwaysDeny, Kind::Rbac]), &required), Ok(()));
        assert_eq!(
            check_restrictions(&of(&[Kind::AlwaysDeny, Kind::Rbac, Kind::AlwaysAllow]), &required),
            Ok(())
        );
        assert_eq!(
            check_restrictions(&of(&[Kind::AlwaysAllow]), &required).unwrap_err().to_string(),
            "missing required types: [AlwaysDeny RBAC]"
        );
        assert_eq!(
            check_restrictions(&of(&[Kind::AlwaysDeny, Kind::Rbac, Kind::Node]), &required)
                .unwrap_err()
                .to_string(),
            "authorizer type Node is not allowed if it was not enabled at initial server startup"
        );
    }
}
