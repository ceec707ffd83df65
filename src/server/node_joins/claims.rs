//! Whose a node name is: kept as a hash of the machine's password in a Secret beside the Node.

use std::time::Duration;

use api::Status;
use api::k8s::ByteString;
use api::k8s::api::core::v1::{Node, Secret as SecretObject};
use api::k8s::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use base::{Kind, Tasks};
use client::{Change, Client, DeleteOptions, Error, Informers};
use cluster::password::{self, Claim, NameRecord, secret_name};
use cluster::token::Secret;
use tokio::sync::mpsc;

use super::taken;

/// Where the Secrets are.
const NAMESPACE: &str = "kube-system";
/// Their type.
const TYPE: &str = "kube-lite.io/node-password";
/// Their one key.
const KEY: &str = "hash";
/// Two machines at once: the second looks again.
const TRIES_MAX: usize = 5;
/// Deletions of Nodes waiting for their Secrets' deletion; beyond, the grace of a claim decides.
const DELETED_MAX: usize = 1024;

fn refused(error: Error) -> Status {
    match error {
        Error::Api(status) => *status,
        other => Status::internal(&other.to_string()),
    }
}

fn absent<T>(found: Result<T, Error>) -> Result<Option<T>, Status> {
    match found {
        Ok(object) => Ok(Some(object)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(refused(error)),
    }
}

fn stored(secret: &SecretObject) -> Option<String> {
    String::from_utf8(secret.data.as_ref()?.get(KEY)?.0.clone()).ok()
}

fn age(secret: &SecretObject) -> Duration {
    let Some(made) = &secret.metadata.creation_timestamp else { return Duration::MAX };
    let made = u64::try_from(made.0.as_second()).unwrap_or_default();
    base::clock::unix_time().saturating_sub(Duration::from_secs(made))
}

/// Claims a name for the machine with this password.
///
/// # Errors
/// 403 when it is another machine's; what the API says when it cannot be found out.
pub(crate) async fn claim(client: &Client, node: &str, password: &Secret) -> Result<(), Status> {
    let name = secret_name(node);
    for _ in 0..TRIES_MAX {
        let there = absent(client.get::<SecretObject>(NAMESPACE, &name).await)?;
        let node_exists = absent(client.get::<Node>("", node).await)?.is_some();
        let hash = there.as_ref().map(|secret| stored(secret).unwrap_or_default());
        let known =
            NameRecord { stored: hash.as_deref().zip(there.as_ref().map(age)), node_exists };
        match password::claim(known, password) {
            Claim::Own => return Ok(()),
            Claim::Refuse => {
                return Err(taken(
                    node,
                    "another machine has joined with it and another node password",
                ));
            }
            Claim::Take => {}
        }
        if let Some(old) = &there {
            let options = DeleteOptions {
                resource_version: old.metadata.resource_version.clone(),
                ..DeleteOptions::default()
            };
            match client.delete::<SecretObject>(NAMESPACE, &name, &options).await {
                Err(error) if !error.is_not_found() && !error.is_conflict() => {
                    return Err(refused(error));
                }
                _ => {}
            }
        }
        let secret = SecretObject {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                namespace: Some(NAMESPACE.to_owned()),
                ..ObjectMeta::default()
            },
            type_: Some(TYPE.to_owned()),
            data: Some(
                [(KEY.to_owned(), ByteString(password::hash(password).into_bytes()))].into(),
            ),
            ..SecretObject::default()
        };
        match client.create(NAMESPACE, &secret).await {
            Ok(_) => return Ok(()),
            Err(error) if error.is_already_exists() => {}
            Err(error) => return Err(refused(error)),
        }
    }
    Err(Status::failure(
        503,
        "ServiceUnavailable",
        format!("many machines claim the name {node} at once"),
    ))
}

/// Frees a name whatever machine claimed it; one that nobody has claimed is fine.
///
/// # Errors
/// What the API says.
pub(crate) async fn free(client: &Client, node: &str) -> Result<(), Status> {
    let options = DeleteOptions::default();
    let freed = client.delete::<SecretObject>(NAMESPACE, &secret_name(node), &options).await;
    absent(freed).map(drop)
}

/// Frees the names of Nodes that are deleted.
pub(super) fn follow(client: &Client, informers: &Informers, tasks: &Tasks) {
    let (sender, mut deleted) = mpsc::channel::<String>(DELETED_MAX);
    informers.of::<Node>().on_change(move |change| {
        if let Change::Deleted(node) = change {
            let _ = sender.try_send(node.key.name.to_string());
        }
    });
    let (client, shutdown) = (client.clone(), tasks.shutdown().clone());
    tasks.spawn(Kind::Critical, "node-names", async move {
        loop {
            let node = tokio::select! {
                node = deleted.recv() => node,
                () = shutdown.requested() => None,
            };
            let Some(node) = node else { return Ok::<(), std::convert::Infallible>(()) };
            let options = DeleteOptions::default();
            let freed =
                client.delete::<SecretObject>(NAMESPACE, &secret_name(&node), &options).await;
            match freed {
                Ok(()) => tracing::info!(node, "the name is free again"),
                Err(error) if error.is_not_found() => {}
                Err(error) => tracing::warn!(node, %error, "the name is not free for five minutes"),
            }
        }
    });
}
