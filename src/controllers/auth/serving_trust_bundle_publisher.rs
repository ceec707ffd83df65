//! Publishes the CA bundle of the API server as a ClusterTrustBundle, which pods mount by its
//! signer, `kubernetes.io/kube-apiserver-serving`.

use api::Gvr;
use base::clock;
use client::{Action, Client, DeleteOptions, Error, Informer, Scope};
use serde_json::{Value, json};

use crate::auth::metrics;
use crate::framework::context::Context;
use crate::framework::edit;
use crate::framework::keyed::{Keyed, settled};

/// Service account of the controller.
const ACCOUNT: &str = "kube-apiserver-serving-clustertrustbundle-publisher";
/// Name of the controller.
const CONTROLLER: &str = "kube-apiserver-serving-clustertrustbundle-publisher-controller";
/// The signer of the serving certificates of API servers.
const SIGNER: &str = "kubernetes.io/kube-apiserver-serving";

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let client = context.client(ACCOUNT);
    let gvr = Gvr::new("certificates.k8s.io", "v1", "clustertrustbundles");
    let scope = Scope::all(gvr.clone()).fields(format!("spec.signerName={SIGNER}"));
    let bundles: Informer<()> = context.informers.scoped(scope);
    let wanted = context.config.root_ca.clone();
    let mut keyed = Keyed::new();
    keyed.watches(&bundles, |_| vec![Default::default()]);
    // Without any bundle there is no event.
    keyed.queue.add(Default::default());
    keyed.run(&context.tasks, CONTROLLER, 1, move |_| {
        let (client, gvr, bundles, wanted) =
            (client.clone(), gvr.clone(), bundles.clone(), wanted.clone());
        async move {
            let began = clock::now();
            let result = sync(&client, &gvr, &bundles, &wanted).await;
            metrics::bundle_synced(began, &result);
            result.map(|()| Action::Done)
        }
    });
}

/// Publishes the content.
async fn sync(
    client: &Client,
    gvr: &Gvr,
    bundles: &Informer<()>,
    content: &str,
) -> Result<(), Error> {
    let current = bundles.cache().list("");
    let current: Result<Vec<Value>, Error> = current.iter().map(|o| edit::value(o)).collect();
    for step in steps(content, &current?) {
        perform(client, gvr, step).await?;
    }
    Ok(())
}

/// A write.
#[derive(Debug, PartialEq)]
enum Step {
    Create(Value),
    Update(Value),
    Delete(String),
}

/// The name of the bundle of the signer with this content.
fn bundle_name(content: &str) -> String {
    let hash = base::pki::hex_sha256(content.as_bytes());
    format!("{}:{}", SIGNER.replace('/', ":"), hash.get(..24).unwrap_or(&hash))
}

/// The writes after which there is one bundle of the signer, with this content. Others are deleted
/// last, so that there is always one.
fn steps(content: &str, current: &[Value]) -> Vec<Step> {
    let name = bundle_name(content);
    let name_of = |bundle: &Value| api::value::str_in(bundle, &["metadata", "name"]).to_owned();
    let mut steps = Vec::new();
    match current.iter().find(|bundle| name_of(bundle) == name) {
        None => steps.push(Step::Create(json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "ClusterTrustBundle",
            "metadata": {"name": name},
            "spec": {"signerName": SIGNER, "trustBundle": content},
        }))),
        Some(found) if api::value::str_in(found, &["spec", "trustBundle"]) != content => {
            let mut found = found.clone();
            found["spec"]["trustBundle"] = content.into();
            steps.push(Step::Update(found));
        }
        Some(_) => {}
    }
    let others = current.iter().map(name_of).filter(|other| *other != name);
    steps.extend(others.map(Step::Delete));
    steps
}

async fn perform(client: &Client, gvr: &Gvr, step: Step) -> Result<(), Error> {
    match step {
        Step::Create(bundle) => match client.post_value(gvr, "", "", "", &bundle).await {
            // The informer shows it soon.
            Err(error) if error.is_already_exists() => Ok(()),
            other => other.map(drop),
        },
        Step::Update(bundle) => settled(edit::put(client, gvr, "", &bundle).await),
        Step::Delete(name) => {
            settled(client.delete_gvr(gvr, "", &name, &DeleteOptions::default()).await)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle(name: &str, content: &str) -> Value {
        json!({"metadata": {"name": name, "resourceVersion": "7"},
            "spec": {"signerName": SIGNER, "trustBundle": content}})
    }

    #[test]
    fn one_bundle_of_the_signer_has_the_current_content() {
        let name = bundle_name("pem");
        assert_eq!(name, "kubernetes.io:kube-apiserver-serving:f0aeace912cf19dc1c6fffd4");
        let created = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "ClusterTrustBundle",
            "metadata": {"name": name}, "spec": {"signerName": SIGNER, "trustBundle": "pem"}});
        let former = "kubernetes.io:kube-apiserver-serving:former";
        for (current, want) in [
            (vec![], vec![Step::Create(created.clone())]),
            (vec![bundle(&name, "pem")], vec![]),
            (vec![bundle(&name, "changed")], vec![Step::Update(bundle(&name, "pem"))]),
            (
                vec![bundle(former, "former")],
                vec![Step::Create(created), Step::Delete(former.to_owned())],
            ),
            (
                vec![bundle(former, "former"), bundle(&name, "pem")],
                vec![Step::Delete(former.to_owned())],
            ),
        ] {
            assert_eq!(steps("pem", &current), want, "{current:?}");
        }
    }
}
