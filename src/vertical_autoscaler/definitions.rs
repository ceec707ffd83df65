//! Whether the kinds of the group are served: their CustomResourceDefinitions may come late, and
//! may be deleted.

use api::Gvr;
use client::{Informer, Informers, Scope};
use tokio::sync::watch;

use crate::types::GROUP;

/// The definitions that must be established.
const DEFINITIONS: [&str; 2] = ["verticalpodautoscalers", "verticalpodautoscalercheckpoints"];

/// The definitions of the kinds; cheap to clone.
#[derive(Clone)]
pub(crate) struct Definitions {
    cache: Informer<()>,
    /// A definition of the group changed.
    changed: watch::Receiver<()>,
}

impl Definitions {
    /// Follows the definitions.
    pub(crate) fn follow(informers: &Informers) -> Self {
        let gvr = Gvr::new("apiextensions.k8s.io", "v1", "customresourcedefinitions");
        let cache = informers.scoped::<()>(Scope::all(gvr));
        let (change, changed) = watch::channel(());
        cache.on_change(move |definition| {
            if definition.object().key.name.ends_with(GROUP) {
                change.send_replace(());
            }
        });
        Self { cache, changed }
    }

    /// Whether all kinds are served.
    pub(crate) fn are_served(&self) -> bool {
        DEFINITIONS.iter().all(|resource| {
            let object = self.cache.cache().get("", &format!("{resource}.{GROUP}"));
            let value = object.and_then(|object| object.value().ok());
            value.is_some_and(|value| api::value::is_condition_true(&value, "Established"))
        })
    }

    /// Resolves once all kinds are served.
    pub(crate) async fn served(&self) {
        self.until(true).await;
    }

    /// Resolves once a kind is not served.
    pub(crate) async fn unserved(&self) {
        self.until(false).await;
    }

    async fn until(&self, served: bool) {
        let mut changed = self.changed.clone();
        while self.are_served() != served {
            if changed.changed().await.is_err() {
                // The cache has ended, as the process does.
                std::future::pending::<()>().await;
            }
        }
    }
}
