//! Secrets of type `kubernetes.io/service-account-token`: filled with token, CA and namespace, gone
//! with their account.

use std::sync::Arc;

use api::k8s::ByteString;
use api::k8s::api::core::v1::{Secret, ServiceAccount};
use client::{Action, Change, Client, DeleteOptions, Error, Informer};

use crate::framework::context::Context;
use crate::framework::keyed::{Key, Keyed, settled};
use crate::framework::signing::{SignToken, SigningError};

const TYPE: &str = "kubernetes.io/service-account-token";
const NAME: &str = "kubernetes.io/service-account.name";
const UID: &str = "kubernetes.io/service-account.uid";
/// Between account and Secret in the key of a reference to be removed; part of no name.
const REFERENCE: char = '/';

/// Starts the controller. As upstream it acts as the controller manager itself.
pub(crate) fn start(context: &Context) {
    let client = context.client("kube-controller-manager");
    let (accounts, secrets) =
        (context.informers.of::<ServiceAccount>(), context.informers.of::<Secret>());
    let mut keyed = Keyed::new();
    keyed.watches(&secrets, secret_keys);
    let of_account = secrets.clone();
    keyed.watches(&accounts, move |change| match change {
        Change::Deleted(gone) => {
            let key = &gone.key;
            let tokens = of_account.list(&key.namespace).into_iter();
            let tokens = tokens.filter(|s| account_of(s).is_some_and(|a| a == &*key.name));
            tokens.filter_map(|s| Some((key.namespace.to_string(), s.metadata.name?))).collect()
        }
        Change::Added(_) | Change::Updated { .. } => Vec::new(),
    });
    let tokens = Arc::new(Tokens {
        client,
        accounts,
        secrets,
        root_ca: context.config.root_ca.clone().into_bytes(),
        sign: context.config.sign_token.clone(),
    });
    keyed.run(&context.tasks, "serviceaccount-token-controller", 1, move |key| {
        let tokens = Arc::clone(&tokens);
        async move { tokens.reconcile(key).await }
    });
}

/// A token Secret wakes itself; a deleted one wakes the account that may still name it.
fn secret_keys(change: &Change) -> Vec<Key> {
    let object = change.object();
    let Some(secret) = client::informer::decode::<Secret>(object) else { return Vec::new() };
    let Some(account) = account_of(&secret) else { return Vec::new() };
    let (namespace, name) = (object.key.namespace.to_string(), object.key.name.to_string());
    match change {
        Change::Deleted(_) => vec![(namespace, format!("{account}{REFERENCE}{name}"))],
        Change::Added(_) | Change::Updated { .. } => vec![(namespace, name)],
    }
}

/// The account that a token Secret is for.
fn account_of(secret: &Secret) -> Option<&str> {
    let name = secret.metadata.annotations.as_ref()?.get(NAME)?;
    (secret.type_.as_deref() == Some(TYPE) && !name.is_empty()).then_some(name)
}

fn uid_of(secret: &Secret) -> &str {
    let annotations = secret.metadata.annotations.as_ref();
    annotations.and_then(|a| a.get(UID)).map_or("", String::as_str)
}

struct Tokens {
    client: Client,
    accounts: Informer<ServiceAccount>,
    secrets: Informer<Secret>,
    root_ca: Vec<u8>,
    sign: SignToken,
}

impl Tokens {
    async fn reconcile(&self, (namespace, name): Key) -> Result<Action, Error> {
        if let Some((account, secret)) = name.split_once(REFERENCE) {
            return self.drop_reference(&namespace, account, secret).await;
        }
        let Some(secret) = self.secrets.get(&namespace, &name) else { return Ok(Action::Done) };
        let Some(account) = account_of(&secret) else { return Ok(Action::Done) };
        match self.account(&namespace, account, uid_of(&secret)).await? {
            None => {
                let options =
                    DeleteOptions { uid: secret.metadata.uid.clone(), ..DeleteOptions::default() };
                settled(self.client.delete::<Secret>(&namespace, &name, &options).await)?;
            }
            Some(account) => {
                let sign = |uid: &str, of: &str| self.sign.sign(&namespace, of, uid, &name);
                let filled = fill(&secret, &account, &self.root_ca, sign);
                match filled {
                    Ok(Some(secret)) => settled(self.client.update(&secret).await)?,
                    Ok(None) => {}
                    Err(error) => {
                        tracing::error!(namespace, name, %error, "no token could be signed");
                    }
                }
            }
        }
        Ok(Action::Done)
    }

    /// The account; read from the server when the cache lacks it, because a Secret is often created
    /// right after its account.
    async fn account(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
    ) -> Result<Option<ServiceAccount>, Error> {
        let fits = |account: &ServiceAccount| {
            uid.is_empty() || account.metadata.uid.as_deref() == Some(uid)
        };
        if let Some(account) = self.accounts.get(namespace, name).filter(fits) {
            return Ok(Some(account));
        }
        match self.client.get::<ServiceAccount>(namespace, name).await {
            Ok(account) => Ok(Some(account).filter(fits)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Takes a deleted Secret out of its account's list.
    async fn drop_reference(
        &self,
        namespace: &str,
        account: &str,
        secret: &str,
    ) -> Result<Action, Error> {
        if self.secrets.get(namespace, secret).is_some() {
            return Ok(Action::Done);
        }
        let Some(mut account) = self.accounts.get(namespace, account) else {
            return Ok(Action::Done);
        };
        let Some(list) = account.secrets.as_mut() else { return Ok(Action::Done) };
        let before = list.len();
        list.retain(|reference| reference.name.as_deref() != Some(secret));
        if list.len() != before {
            // A conflict is retried with back-off: nothing else would wake this key.
            match self.client.update(&account).await {
                Err(error) if error.is_not_found() => {}
                other => drop(other?),
            }
        }
        Ok(Action::Done)
    }
}

/// The Secret with everything that belongs into it; `None` when nothing is missing.
fn fill(
    secret: &Secret,
    account: &ServiceAccount,
    root_ca: &[u8],
    sign: impl Fn(&str, &str) -> Result<String, SigningError>,
) -> Result<Option<Secret>, SigningError> {
    let has = |key: &str| secret.data.as_ref().and_then(|d| d.get(key)).map(|b| b.0.as_slice());
    let ca = !root_ca.is_empty() && has("ca.crt") != Some(root_ca);
    let namespace = has("namespace").is_none_or(<[u8]>::is_empty);
    let token = has("token").is_none_or(<[u8]>::is_empty);
    if !ca && !namespace && !token {
        return Ok(None);
    }
    let name = account.metadata.name.clone().unwrap_or_default();
    let uid = account.metadata.uid.clone().unwrap_or_default();
    let mut secret = secret.clone();
    let data = secret.data.get_or_insert_default();
    if ca {
        data.insert("ca.crt".into(), ByteString(root_ca.to_vec()));
    }
    if namespace {
        let text = secret.metadata.namespace.clone().unwrap_or_default();
        data.insert("namespace".into(), ByteString(text.into_bytes()));
    }
    if token {
        data.insert("token".into(), ByteString(sign(&uid, &name)?.into_bytes()));
    }
    let annotations = secret.metadata.annotations.get_or_insert_default();
    annotations.insert(NAME.into(), name);
    annotations.insert(UID.into(), uid);
    Ok(Some(secret))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_missing_is_filled_in_and_what_is_there_stays() {
        let account: ServiceAccount = serde_json::from_value(
            json!({"metadata": {"name": "bot", "namespace": "shop", "uid": "u1"}}),
        )
        .unwrap();
        let secret: Secret = serde_json::from_value(json!({
            "metadata": {"name": "t", "namespace": "shop", "annotations": {NAME: "bot"}},
            "type": TYPE,
            "data": {"extra": "eA=="},
        }))
        .unwrap();
        assert_eq!((account_of(&secret), uid_of(&secret)), (Some("bot"), ""));
        let sign = |uid: &str, name: &str| Ok(format!("{name}-{uid}"));
        let filled = fill(&secret, &account, b"CA", sign).unwrap().unwrap();
        let value = serde_json::to_value(&filled).unwrap();
        assert_eq!(
            value["data"],
            json!({"ca.crt": "Q0E=", "extra": "eA==", "namespace": "c2hvcA==", "token": "Ym90LXUx"})
        );
        assert_eq!(value["metadata"]["annotations"], json!({NAME: "bot", UID: "u1"}));
        assert_eq!(fill(&filled, &account, b"CA", sign).unwrap(), None);
        // Another CA is published, the token stays.
        let other =
            fill(&filled, &account, b"CB", |_, _| Err(SigningError::new("not called"))).unwrap();
        assert_eq!(other.unwrap().data.unwrap()["ca.crt"].0, b"CB");
        let plain = Secret { type_: Some("Opaque".into()), ..filled };
        assert_eq!(account_of(&plain), None);
    }
}
