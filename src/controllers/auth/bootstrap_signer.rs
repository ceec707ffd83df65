//! Signs the ConfigMap `kube-public/cluster-info` with the bootstrap tokens of the cluster, so that
//! a machine that only has a token can verify the kubeconfig in it (`kubeadm join`).
//!
//! As upstream, the controller runs only where `--controllers` names it.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::k8s::api::core::v1::{ConfigMap, Secret};
use api::k8s::jiff::Timestamp;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use client::{Action, Client, Error, Informer};
use ring::hmac;

use super::bootstrap_token_cleaner::{NAMESPACE, PREFIX, TYPE, TokenLifetime, lifetime};
use crate::framework::context::Context;
use crate::framework::keyed::{Key, Keyed, settled};

/// Name of the controller.
pub(crate) const CONTROLLER: &str = "bootstrap-signer-controller";
/// The ConfigMap.
const CLUSTER_INFO: (&str, &str) = ("kube-public", "cluster-info");
/// The key with the signed content.
const CONTENT: &str = "kubeconfig";
/// The keys of the signatures, before the ID of the token.
const SIGNATURE: &str = "jws-kubeconfig-";

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let client = context.client("bootstrap-signer");
    let (maps, secrets) = (context.informers.of::<ConfigMap>(), context.informers.of::<Secret>());
    let mut keyed = Keyed::new();
    let (namespace, name) = CLUSTER_INFO;
    let wakes = move |is_concerned: bool| -> Vec<Key> {
        is_concerned.then(|| (namespace.to_owned(), name.to_owned())).into_iter().collect()
    };
    keyed.watches(&maps, move |change| {
        let key = &change.object().key;
        wakes(&*key.namespace == namespace && &*key.name == name)
    });
    keyed.watches(&secrets, move |change| {
        let key = &change.object().key;
        wakes(&*key.namespace == NAMESPACE && key.name.starts_with(PREFIX))
    });
    let state = Arc::new((client, maps, secrets));
    keyed.run(&context.tasks, CONTROLLER, 1, move |_| {
        let state = Arc::clone(&state);
        async move { reconcile(&state.0, &state.1, &state.2).await }
    });
}

async fn reconcile(
    client: &Client,
    maps: &Informer<ConfigMap>,
    secrets: &Informer<Secret>,
) -> Result<Action, Error> {
    let Some(map) = maps.get(CLUSTER_INFO.0, CLUSTER_INFO.1) else { return Ok(Action::Done) };
    if let Some(signed) = signed(&map, &secrets.list(NAMESPACE), Timestamp::now()) {
        settled(client.update(&signed).await)?;
    }
    Ok(Action::Done)
}

/// The ConfigMap with the signatures of the valid tokens and no others; `None` when it has them
/// already, or has no content.
fn signed(map: &ConfigMap, secrets: &[Secret], now: Timestamp) -> Option<ConfigMap> {
    let data = map.data.as_ref()?;
    let content = data.get(CONTENT)?;
    let mut new: BTreeMap<String, String> =
        data.iter().filter(|(key, _)| !key.starts_with(SIGNATURE)).map(own).collect();
    for secret in secrets {
        if let Some((id, token)) = signing_token(secret, now) {
            new.insert(format!("{SIGNATURE}{id}"), detached_signature(content, &id, &token));
        }
    }
    (new != *data).then(|| ConfigMap { data: Some(new), ..map.clone() })
}

fn own((key, value): (&String, &String)) -> (String, String) {
    (key.clone(), value.clone())
}

/// ID and secret of a token that may sign now.
fn signing_token(secret: &Secret, now: Timestamp) -> Option<(String, String)> {
    let field = |key: &str| {
        let value = secret.data.as_ref()?.get(key)?;
        std::str::from_utf8(&value.0).ok().filter(|text| !text.is_empty())
    };
    let id = secret.metadata.name.as_deref()?.strip_prefix(PREFIX)?;
    let has_form =
        id.len() == 6 && id.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let is_valid = has_form
        && secret.type_.as_deref() == Some(TYPE)
        && field("token-id") == Some(id)
        && field("usage-bootstrap-signing") == Some("true")
        && lifetime(secret, now) != TokenLifetime::Over;
    let token = field("token-secret").filter(|_| is_valid)?;
    Some((id.to_owned(), token.to_owned()))
}

/// A JWS with HS256 whose payload is left out (RFC 7515, appendix F), under the secret of a token.
fn detached_signature(content: &str, id: &str, token: &str) -> String {
    let header = URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"HS256","kid":"{id}"}}"#));
    let input = format!("{header}.{}", URL_SAFE_NO_PAD.encode(content));
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, token.as_bytes()), input.as_bytes());
    format!("{header}..{}", URL_SAFE_NO_PAD.encode(tag))
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::engine::general_purpose::STANDARD;
    use serde_json::{Value, json};

    const SIGNED: &str =
        "eyJhbGciOiJIUzI1NiIsImtpZCI6ImFiYzEyMyJ9..QSxpUG7Q542CirTI2ECPSZjvBOJURUW5a7XqFpNI958";

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    /// The Secret of the token `abc123`, with changed fields.
    fn token(changes: &[(&str, &str)]) -> Secret {
        let mut fields: BTreeMap<&str, &str> = [
            ("token-id", "abc123"),
            ("token-secret", "tokenSecret"),
            ("usage-bootstrap-signing", "true"),
        ]
        .into();
        fields.extend(changes.iter().copied());
        let name = fields.remove("name").unwrap_or("bootstrap-token-abc123");
        let kind = fields.remove("type").unwrap_or(TYPE);
        let data: BTreeMap<&str, String> =
            fields.into_iter().map(|(key, value)| (key, STANDARD.encode(value))).collect();
        serde_json::from_value(json!({"metadata": {"name": name, "namespace": NAMESPACE},
            "type": kind, "data": data}))
        .unwrap()
    }

    fn cluster_info(data: Value) -> ConfigMap {
        serde_json::from_value(json!({"metadata": {"name": "cluster-info"}, "data": data})).unwrap()
    }

    #[test]
    fn signatures_are_those_of_upstream() {
        let content = "Hello from the other side. I must have called a thousand times.";
        for (content, token, tail) in [
            (content, "my voice is my passcode", "VShe2taLd-YTrmWuRkcL_8QTNDHYxQIEBsAYYiIj1_8"),
            ("", "my voice is my passcode", "7Ui1ALizW4jXphVUB7xUqC9vLYLL9RZeOFfVLoB7Tgk"),
            (content, "", "UfkqvDGiIFxrMnFseDj9LYJOLNrvjW8aHhF71mvvAs8"),
        ] {
            let want = format!("eyJhbGciOiJIUzI1NiIsImtpZCI6Impvc2h1YSJ9..{tail}");
            assert_eq!(detached_signature(content, "joshua", token), want);
        }
    }

    #[test]
    fn cluster_info_gets_the_signatures_of_the_valid_tokens() {
        let unsigned = cluster_info(json!({"kubeconfig": "payload"}));
        let current =
            cluster_info(json!({"kubeconfig": "payload", "jws-kubeconfig-abc123": SIGNED}));
        let old = cluster_info(json!({"kubeconfig": "payload", "jws-kubeconfig-abc123": "old"}));
        for (map, secrets, want) in [
            (&unsigned, &[token(&[])][..], Some(&current)),
            (&current, &[token(&[])], None),
            (&old, &[token(&[])], Some(&current)),
            (&old, &[], Some(&unsigned)),
            (&unsigned, &[], None),
            (&cluster_info(json!({"other": "x"})), &[token(&[])], None),
        ] {
            assert_eq!(signed(map, secrets, now()).as_ref(), want);
        }
    }

    #[test]
    fn only_valid_tokens_sign() {
        assert_eq!(
            signing_token(&token(&[]), now()),
            Some(("abc123".to_owned(), "tokenSecret".to_owned()))
        );
        assert!(signing_token(&token(&[("expiration", "2026-01-01T00:00:01Z")]), now()).is_some());
        for change in [
            ("name", "bootstrap-token-abc124"),
            ("name", "bootstrap-token-ABC123"),
            ("name", "abc123"),
            ("type", "Opaque"),
            ("token-id", ""),
            ("token-secret", ""),
            ("usage-bootstrap-signing", "false"),
            ("usage-bootstrap-signing", ""),
            ("expiration", "2025-12-31T23:59:59Z"),
            ("expiration", "tomorrow"),
        ] {
            assert_eq!(signing_token(&token(&[change]), now()), None, "{change:?}");
        }
    }
}
