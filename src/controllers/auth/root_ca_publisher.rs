//! Publishes the CA bundle of the API server as ConfigMap `kube-root-ca.crt` in every namespace.

use api::k8s::api::core::v1::{ConfigMap, Namespace};
use api::k8s::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use base::clock;
use client::{Action, Client, Error, Informer};

use crate::auth::metrics;
use crate::framework::context::Context;
use crate::framework::keyed::{Keyed, settled};

const NAME: &str = "kube-root-ca.crt";
/// The annotation with which upstream's publisher describes the object.
const DESCRIPTION: (&str, &str) = (
    "kubernetes.io/description",
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal \
     endpoints such as the internal service IP or kubernetes.default.svc. No other usage is \
     guaranteed across distributions of Kubernetes clusters.",
);

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let client = context.client("root-ca-cert-publisher");
    let (namespaces, maps) =
        (context.informers.of::<Namespace>(), context.informers.of::<ConfigMap>());
    let mut keyed = Keyed::new();
    keyed
        .watches(&namespaces, |change| vec![(change.object().key.name.to_string(), String::new())]);
    keyed.watches(&maps, |change| {
        let key = &change.object().key;
        if &*key.name == NAME {
            vec![(key.namespace.to_string(), String::new())]
        } else {
            Vec::new()
        }
    });
    let bundle = context.config.root_ca.clone();
    keyed.run(
        &context.tasks,
        "root-ca-certificate-publisher-controller",
        2,
        move |(namespace, _)| {
            let (client, namespaces, maps, bundle) =
                (client.clone(), namespaces.clone(), maps.clone(), bundle.clone());
            async move {
                let began = clock::now();
                let result = sync(&client, &namespaces, &maps, &namespace, bundle).await;
                metrics::root_ca_synced(began, &result);
                result
            }
        },
    );
}

/// Publishes the bundle in a namespace.
async fn sync(
    client: &Client,
    namespaces: &Informer<Namespace>,
    maps: &Informer<ConfigMap>,
    namespace: &str,
    bundle: String,
) -> Result<Action, Error> {
    if namespaces.get("", namespace).is_none_or(|n| n.metadata.deletion_timestamp.is_some()) {
        return Ok(Action::Done);
    }
    let data = [("ca.crt".to_owned(), bundle)].into();
    let annotations = [(DESCRIPTION.0.to_owned(), DESCRIPTION.1.to_owned())].into();
    match maps.get(namespace, NAME) {
        None => {
            let metadata = ObjectMeta {
                name: Some(NAME.into()),
                annotations: Some(annotations),
                ..ObjectMeta::default()
            };
            let map = ConfigMap { metadata, data: Some(data), ..ConfigMap::default() };
            match client.create(namespace, &map).await {
                Err(error)
                    if error.is_already_exists()
                        || error.is_namespace_terminating()
                        || error.is_not_found() => {}
                other => drop(other?),
            }
        }
        Some(map) if map.data.as_ref() != Some(&data) => {
            let mut map = map;
            map.data = Some(data);
            map.metadata.annotations.get_or_insert_default().extend(annotations);
            settled(client.update(&map).await)?;
        }
        Some(_) => {}
    }
    Ok(Action::Done)
}
