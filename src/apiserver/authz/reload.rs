//! Creates the configured authorizers, and reloads the file of `authorization-config` when it
//! changes (`pkg/kubeapiserver/authorizer/reload.go`).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use base::Tasks;
use parking_lot::Mutex;

use super::chain::{Chain, Member};
use super::config::{Configuration, FILE_FLAG, Kind, Plan};
use super::webhook::Webhook;
use super::{Attributes, Authorizer, Decision, Known, load};
use crate::authz::always::{AlwaysAllow, AlwaysDeny};
use crate::authz::metrics::Counts;
use crate::file_watcher::FileWatcher;
use crate::request::user::User;
use crate::webhook::kubeconfig::Place;

/// The dependencies of authorizers, which persist over reloads.
struct AuthorizerFactory {
    node: Arc<dyn Authorizer>,
    rbac: Arc<dyn Authorizer>,
    counts: Arc<Counts>,
    tasks: Tasks,
}

/// A chain and the webhooks in it.
struct BuiltChain {
    chain: Chain,
    webhooks: Vec<Arc<Webhook>>,
}

impl BuiltChain {
    async fn check(&self) -> Result<(), String> {
        for webhook in &self.webhooks {
            webhook.check().await?;
        }
        Ok(())
    }
}

impl AuthorizerFactory {
    fn make(&self, configuration: &Configuration, places: &[Option<Place>]) -> BuiltChain {
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
                    let Some(place) = places.get(at).and_then(Option::clone) else { continue };
                    let made = Webhook::new(&entry.name, hook, place, &self.counts, &self.tasks);
                    let made = Arc::new(made);
                    webhooks.push(Arc::clone(&made));
                    made
                }
            };
            let tally = self.counts.tally(entry.kind.name(), &entry.name);
            members.push(Member::new(&entry.name, authorizer, tally));
        }
        BuiltChain { chain: Chain::of(members, &self.counts), webhooks }
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
        plan: Plan,
        node: Arc<dyn Authorizer>,
        rbac: Arc<dyn Authorizer>,
        tasks: &Tasks,
    ) -> Self {
        let making = AuthorizerFactory { node, rbac, counts: Arc::default(), tasks: tasks.clone() };
        let BuiltChain { chain, webhooks } = making.make(&plan.configuration, &plan.places);
        let Some((file, text)) = plan.file else {
            return Self { authorizer: Arc::new(chain), webhooks, reloaded: None };
        };
        making.counts.holds(&text);
        let reloaded = Arc::new(ReloadableAuthorizer {
            current: ArcSwap::from_pointee(chain),
            making,
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
    /// The kubeconfig and why its certificates are unusable.
    pub async fn check(&self) -> Result<(), String> {
        for webhook in &self.webhooks {
            let why =
                |why| format!("authorization webhook: {why}; correct the file and start again");
            webhook.check().await.map_err(why)?;
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
    kinds.sort_unstable();
    kinds
}

/// Checks a changed configuration against the restrictions on reloads.
///
/// # Errors
/// Upstream's messages.
fn allowed(configuration: &Configuration, required: &[&'static str]) -> Result<(), String> {
    let now = kinds(configuration);
    let missing: Vec<&str> = required.iter().filter(|kind| !now.contains(kind)).copied().collect();
    if !missing.is_empty() {
        return Err(format!("missing required types: [{}]", missing.join(" ")));
    }
    let started = |kind: &&&str| matches!(**kind, "Node" | "RBAC") && !required.contains(*kind);
    match now.iter().find(started) {
        Some(kind) => Err(format!(
            "authorizer type {kind} is not allowed if it was not enabled at initial server startup"
        )),
        None => Ok(()),
    }
}

/// The result of reading the file again.
enum Read {
    Same,
    /// Different text, same configuration.
    Reworded(Vec<u8>, Configuration),
    Changed(Vec<u8>, Configuration, Vec<Option<Place>>),
    Wrong(Option<Vec<u8>>, String),
}

fn read(file: &Path, last: &(Vec<u8>, Configuration), required: &[&'static str]) -> Read {
    let text = match base::fs::read(file) {
        Ok(text) => text,
        Err(error) => return Read::Wrong(None, error.to_string()),
    };
    if text == last.0 {
        return Read::Same;
    }
    let made = load::configuration(&text).and_then(|configuration| {
        if configuration != last.1 {
            allowed(&configuration, required)?;
        }
        Ok((configuration.places()?, configuration))
    });
    match made {
        Ok((_, configuration)) if configuration == last.1 => Read::Reworded(text, configuration),
        Ok((places, configuration)) => Read::Changed(text, configuration, places),
        Err(why) => Read::Wrong(Some(text), why),
    }
}

/// A chain that is replaced when its file changes. An invalid file is logged and the former chain
/// stays in effect.
struct ReloadableAuthorizer {
    current: ArcSwap<Chain>,
    making: AuthorizerFactory,
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
        let read = read.unwrap_or_else(|e| Read::Wrong(None, e.to_string()));
        let (text, outcome) = match read {
            Read::Same => return,
            Read::Reworded(text, configuration) => {
                *self.last.lock() = Arc::new((text, configuration));
                return;
            }
            Read::Wrong(text, why) => (text.map(|text| (text, last.1.clone())), Err(why)),
            Read::Changed(text, configuration, places) => {
                let made = self.making.make(&configuration, &places);
                match made.check().await {
                    Ok(()) => (Some((text, configuration)), Ok(made.chain)),
                    Err(why) => (Some((text, last.1.clone())), Err(why)),
                }
            }
        };
        if let Some(read) = text {
            if outcome.is_ok() {
                self.making.counts.holds(&read.0);
            }
            *self.last.lock() = Arc::new(read);
        }
        let file = self.file.display();
        self.making.counts.reloaded(outcome.is_ok());
        match outcome {
            Ok(chain) => {
                self.current.store(Arc::new(chain));
                tracing::info!(%file, "the authorization configuration changed and holds");
            }
            Err(error) => tracing::error!(
                %file, error, "{FILE_FLAG}: the file changed and is not good, what it said before holds"
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

    fn rules(&self, user: &User, namespace: &str) -> Known {
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
    fn what_was_not_there_at_the_start_does_not_come() {
        let required = kinds(&of(&[Kind::Rbac, Kind::AlwaysDeny]));
        assert_eq!(allowed(&of(&[Kind::AlwaysDeny, Kind::Rbac]), &required), Ok(()));
        assert_eq!(
            allowed(&of(&[Kind::AlwaysDeny, Kind::Rbac, Kind::AlwaysAllow]), &required),
            Ok(())
        );
        assert_eq!(
            allowed(&of(&[Kind::AlwaysAllow]), &required).unwrap_err(),
            "missing required types: [AlwaysDeny RBAC]"
        );
        assert_eq!(
            allowed(&of(&[Kind::AlwaysDeny, Kind::Rbac, Kind::Node]), &required).unwrap_err(),
            "authorizer type Node is not allowed if it was not enabled at initial server startup"
        );
    }
}
