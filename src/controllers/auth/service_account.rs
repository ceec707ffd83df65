//! ServiceAccounts: every active namespace has its `default` account.

use api::k8s::api::core::v1::{Namespace, ServiceAccount};
use api::k8s::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use client::{Action, Change};

use crate::framework::context::Context;
use crate::framework::keyed::Keyed;

const NAME: &str = "default";

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let client = context.client("service-account-controller");
    let (namespaces, accounts) =
        (context.informers.of::<Namespace>(), context.informers.of::<ServiceAccount>());
    let mut keyed = Keyed::new();
    keyed
        .watches(&namespaces, |change| vec![(change.object().key.name.to_string(), String::new())]);
    keyed.watches(&accounts, |change| match change {
        Change::Deleted(object) if &*object.key.name == NAME => {
            vec![(object.key.namespace.to_string(), String::new())]
        }
        Change::Deleted(_) | Change::Added(_) | Change::Updated { .. } => Vec::new(),
    });
    keyed.run(&context.tasks, "serviceaccount-controller", 2, move |(namespace, _)| {
        let (client, namespaces, accounts) = (client.clone(), namespaces.clone(), accounts.clone());
        async move {
            let active = namespaces
                .get("", &namespace)
                .is_some_and(|n| n.metadata.deletion_timestamp.is_none());
            if !active || accounts.cache().get(&namespace, NAME).is_some() {
                return Ok::<_, client::Error>(Action::Done);
            }
            let account = ServiceAccount {
                metadata: ObjectMeta {
                    name: Some(NAME.into()),
                    namespace: Some(namespace.clone()),
                    ..ObjectMeta::default()
                },
                ..ServiceAccount::default()
            };
            match client.create(&namespace, &account).await {
                Err(error) if error.is_already_exists() || error.is_namespace_terminating() => {}
                other => drop(other?),
            }
            Ok(Action::Done)
        }
    });
}
