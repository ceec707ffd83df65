//! What credential providers receive of the service account of a pod (KEP 4412).

use std::collections::BTreeMap;

use api::k8s::api::core::v1::ServiceAccount;
use async_trait::async_trait;
use client::Client;

use super::provider_config::TokenAttributes;
use crate::credentials::tokens::Tokens;
use crate::pods::pod::Pod;

/// Lifetime of the tokens, in seconds: the default of the API.
const TOKEN_LIFETIME: i64 = 3600;

/// The part of a service account that matters here.
#[derive(Debug, Clone, Default)]
pub(super) struct AccountData {
    pub(super) uid: String,
    pub(super) annotations: BTreeMap<String, String>,
}

/// The service account of a pod.
#[async_trait]
pub(super) trait PodAccount: Send + Sync {
    /// The namespace of the pod.
    fn namespace(&self) -> &str;
    /// The name of its service account; empty for none.
    fn name(&self) -> &str;
    /// Reads the service account.
    async fn read(&self) -> Result<AccountData, client::Error>;
    /// Requests a token of the account with this uid, bound to the pod.
    async fn token(&self, uid: &str, audience: &str) -> Result<String, client::Error>;
}

/// The service account of a pod at the API server.
pub(super) struct ApiAccount<'a> {
    pub(super) client: &'a Client,
    pub(super) tokens: &'a Tokens,
    pub(super) pod: &'a Pod,
}

#[async_trait]
impl PodAccount for ApiAccount<'_> {
    fn namespace(&self) -> &str {
        self.pod.namespace()
    }

    fn name(&self) -> &str {
        self.pod.spec().service_account_name.as_deref().unwrap_or_default()
    }

    async fn read(&self) -> Result<AccountData, client::Error> {
        let account: ServiceAccount = self.client.get(self.namespace(), self.name()).await?;
        Ok(AccountData {
            uid: account.metadata.uid.unwrap_or_default(),
            annotations: account.metadata.annotations.unwrap_or_default(),
        })
    }

    async fn token(&self, uid: &str, audience: &str) -> Result<String, client::Error> {
        let token = self.tokens.of_account(self.pod, uid, audience, TOKEN_LIFETIME).await?;
        Ok(token.text)
    }
}

/// The annotation that a service account must have.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("required annotation {0} not found")]
pub(super) struct RequiredAnnotationNotFound(String);

/// The annotations that a provider receives: the required and those of the optional ones that the
/// account has.
///
/// # Errors
/// The first required annotation that is missing.
pub(super) fn annotations_for(
    attributes: &TokenAttributes,
    account: &AccountData,
) -> Result<BTreeMap<String, String>, RequiredAnnotationNotFound> {
    let mut out = BTreeMap::new();
    for key in &attributes.required_service_account_annotation_keys {
        let value = account.annotations.get(key);
        let value = value.ok_or_else(|| RequiredAnnotationNotFound(key.clone()))?;
        out.insert(key.clone(), value.clone());
    }
    for key in &attributes.optional_service_account_annotation_keys {
        if let Some(value) = account.annotations.get(key) {
            out.insert(key.clone(), value.clone());
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listed_annotations_are_sent_and_required_ones_must_exist() {
        let text = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
        let attributes = TokenAttributes {
            required_service_account_annotation_keys: text(&["a"]),
            optional_service_account_annotation_keys: text(&["b", "c"]),
            ..TokenAttributes::default()
        };
        let account = |keys: &[&str]| AccountData {
            annotations: keys.iter().map(|k| ((*k).to_owned(), "1".to_owned())).collect(),
            ..AccountData::default()
        };
        let found = annotations_for(&attributes, &account(&["a", "b", "x"])).unwrap();
        assert_eq!(found.keys().map(String::as_str).collect::<Vec<_>>(), ["a", "b"]);
        let error = annotations_for(&attributes, &account(&["b"])).unwrap_err();
        assert_eq!(error.to_string(), "required annotation a not found");
    }
}
