//! The Secrets that Ingresses name in `auth-secret`, each followed by its name: the node authorizer
//! allows no more.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use api::k8s::api::core::v1::Secret;
use api::k8s::api::networking::v1::Ingress;
use base::Tasks;
use client::{Client, Informer, Informers, Scope, gvr_of};
use sorting::CollectOrdered as _;

use crate::objects::annotations;
use crate::objects::ingress::Classes;

/// Secrets that are followed.
const SECRETS_MAX: usize = 256;
/// How long routes wait for the first read of a new Secret; without it, requests get 503.
const FIRST_READ: Duration = Duration::from_secs(2);

/// Namespace and name of a Secret.
pub(crate) type Name = (String, String);

/// The Secrets that Ingresses of the served classes name.
pub(crate) fn wanted(ingresses: &[Ingress], classes: &Classes) -> BTreeSet<Name> {
    let names = ingresses.iter().filter(|ingress| classes.contain(ingress)).filter_map(|ingress| {
        let namespace = ingress.metadata.namespace.as_deref()?;
        let (settings, _) = annotations::read(ingress.metadata.annotations.as_ref());
        let name = settings.auth.secret(namespace).filter(|_| settings.auth.is_on())?;
        Some((namespace.to_owned(), name.to_owned()))
    });
    names.take(SECRETS_MAX).collect_set()
}

/// Secrets by name, with the tasks that follow each.
#[derive(Default)]
pub(crate) struct AuthSecrets(BTreeMap<Name, (Tasks, Informer<Secret>)>);

impl std::fmt::Debug for AuthSecrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AuthSecrets({})", self.0.len())
    }
}

impl AuthSecrets {
    /// The Secret, once it was read.
    pub(crate) fn get(&self, namespace: &str, name: &str) -> Option<Secret> {
        let (_, informer) = self.0.get(&(namespace.to_owned(), name.to_owned()))?;
        informer.get(namespace, name)
    }

    /// Follows exactly these Secrets; `note` is called at each change.
    pub(crate) async fn follow(
        &mut self,
        wanted: &BTreeSet<Name>,
        (client, tasks): (&Client, &Tasks),
        note: impl Fn() + Clone + Send + Sync + 'static,
    ) {
        self.0.retain(|name, (own, _)| {
            let keep = wanted.contains(name);
            if !keep {
                own.shutdown().request();
            }
            keep
        });
        let mut new = Vec::new();
        for name in wanted {
            if self.0.contains_key(name) {
                continue;
            }
            let own = tasks.child();
            let mut scope = Scope::all(gvr_of::<Secret>());
            scope.namespace.clone_from(&name.0);
            let scope = scope.fields(format!("metadata.name={}", name.1));
            let informer = Informers::new(client.clone(), own.clone()).scoped::<Secret>(scope);
            let note = note.clone();
            informer.on_change(move |_| note());
            new.push(informer.clone());
            self.0.insert(name.clone(), (own, informer));
        }
        let all = async {
            for informer in &new {
                informer.synced().await;
            }
        };
        if tokio::time::timeout(FIRST_READ, all).await.is_err() {
            tracing::debug!("ingress: Secrets of users are not read yet");
        }
    }
}
