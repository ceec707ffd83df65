//! Ownership of node names: a Secret per name with the hash of the machine's password, as in k3s.

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

use super::name_taken;

/// Namespace of the Secrets.
const NAMESPACE: &str = "kube-system";
/// Type of the Secrets.
const TYPE: &str = "kube-lite.io/node-password";
/// The only key in a Secret.
const KEY: &str = "hash";
/// Attempts of a claim that conflicts with concurrent ones.
const TRIES_MAX: usize = 5;
/// Deleted Nodes in the queue. A name that does not fit is free again once its claim expires.
const DELETED_MAX: usize = 1024;

fn status_of(error: Error) -> Status {
    match error {
        Error::Api(status) => *status,
        other => Status::internal(&other.to_string()),
    }
}

fn if_found<T>(found: Result<T, Error>) -> Result<Option<T>, Status> {
    match found {
        Ok(object) => Ok(Some(object)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(status_of(error)),
    }
}

fn password_hash(secret: &SecretObject) -> Option<String> {
    String::from_utf8(secret.data.as_ref()?.get(KEY)?.0.clone()).ok()
}

fn age(secret: &SecretObject) -> Duration {
    let Some(created) = &secret.metadata.creation_timestamp else { return Duration::MAX };
    let created = u64::try_from(created.0.as_second()).unwrap_or_default();
    base::clock::unix_time().saturating_sub(Duration::from_secs(created))
}

/// Claims a name for the machine with this password.
///
/// # Errors
/// 403 if another machine has the name; otherwise errors of the API.
pub(crate) async fn claim(client: &Client, node: &str, password: &Secret) -> Result<(), Status> {
    let name = secret_name(node);
    for _ in 0..TRIES_MAX {
        let existing = if_found(client.get::<SecretObject>(NAMESPACE, &name).await)?;
        let node_exists = if_found(client.get::<Node>("", node).await)?.is_some();
        let hash = existing.as_ref().map(|secret| password_hash(secret).unwrap_or_default());
        let known =
            NameRecord { stored: hash.as_deref().zip(existing.as_ref().map(age)), node_exists };
        match password::claim(known, password) {
            Claim::Own => return Ok(()),
            Claim::Refuse => {
                return Err(name_taken(
                    node,
                    "another machine has joined with it and another node password",
                ));
            }
            Claim::Take => {}
        }
        if let Some(old) = &existing {
            let options = DeleteOptions {
                resource_version: old.metadata.resource_version.clone(),
                ..DeleteOptions::default()
            };
            match client.delete::<SecretObject>(NAMESPACE, &name, &options).await {
                Err(error) if !error.is_not_found() && !error.is_conflict() => {
                    return Err(status_of(error));
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
            Err(error) => return Err(status_of(error)),
        }
    }
    Err(Status::failure(
        503,
        "ServiceUnavailable",
        format!("many machines claim the name {node} at once"),
    ))
}

/// Whether a machine has claimed this name, or a Node has it.
///
/// # Errors
/// Errors of the API.
pub(crate) async fn is_taken(client: &Client, name: &str) -> Result<bool, Status> {
    let secret = client.get::<SecretObject>(NAMESPACE, &secret_name(name)).await;
    if if_found(secret)?.is_some() {
        return Ok(true);
    }
    Ok(if_found(client.get::<Node>("", name).await)?.is_some())
}

/// Releases a name, whether a machine has claimed it or not.
///
/// # Errors
/// Errors of the API.
pub(crate) async fn release(client: &Client, node: &str) -> Result<(), Status> {
    let options = DeleteOptions::default();
    let freed = client.delete::<SecretObject>(NAMESPACE, &secret_name(node), &options).await;
    if_found(freed).map(drop)
}

/// Releases the names of deleted Nodes.
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
                Ok(()) => tracing::info!(node, "joins: released the node name"),
                Err(error) if error.is_not_found() => {}
                Err(error) => tracing::warn!(node, %error, "joins: cannot release the node name, it expires in five minutes"),
            }
        }
    });
}
