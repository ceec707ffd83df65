//! Issues service account tokens (`serviceaccounts/token`) and serves the OpenID discovery
//! documents.

use std::sync::Arc;

use api::field::{Error, Path};
use api::{Gvk, Gvr, Object, Status};
use serde_json::{Value, json};

use super::jws::{self, PublicKey, SigningKey};
use super::service_account::{Bound, Claims, Reference, now};
use lookup::Lookup;

const GROUP: &str = "authentication.k8s.io";

/// The minimum lifetime of a token, in seconds (`MinTokenAgeSec`).
const MIN_SECONDS: i64 = 600;

/// The default lifetime of a token, in seconds.
const DEFAULT_SECONDS: i64 = 3600;

/// Signs service account tokens.
pub struct TokenIssuer {
    lookup: Arc<dyn Lookup>,
    issuer: String,
    audiences: Vec<String>,
    key: SigningKey,
    former: Vec<PublicKey>,
    /// `--service-account-max-token-expiration`, in seconds.
    longest: Option<i64>,
}

fn text<'v>(value: &'v Value, pointer: &str) -> &'v str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

impl TokenIssuer {
    /// Creates an issuer with the URL `issuer`; `audiences` are the default audiences.
    pub fn new(
        lookup: Arc<dyn Lookup>,
        issuer: &str,
        audiences: Vec<String>,
        key: SigningKey,
    ) -> Self {
        Self {
            lookup,
            issuer: issuer.to_owned(),
            audiences,
            key,
            former: Vec::new(),
            longest: None,
        }
    }

    /// Adds former keys, whose signatures remain valid.
    #[must_use]
    pub fn with_former(mut self, keys: Vec<PublicKey>) -> Self {
        self.former = keys;
        self
    }

    /// Limits the lifetime of tokens, in seconds.
    #[must_use]
    pub fn with_longest(mut self, seconds: Option<i64>) -> Self {
        self.longest = seconds;
        self
    }

    /// The public keys; the first one belongs to the signing key.
    pub fn public_keys(&self) -> Vec<PublicKey> {
        [self.key.public()].into_iter().chain(&self.former).cloned().collect()
    }

    /// Handles a TokenRequest for this service account: sets defaults, metadata and `status` of
    /// `request`.
    ///
    /// # Errors
    /// 404 if the account or bound object is missing, 409 if a UID differs, 422 and 400 for an
    /// invalid request.
    pub async fn create(
        &self,
        namespace: &str,
        name: &str,
        request: &mut Value,
    ) -> Result<(), Status> {
        self.matches_url(namespace, name, request)?;
        let account = self.live(&lookup::SERVICE_ACCOUNTS, namespace, name).await?;
        let uid = text(request, "/metadata/uid");
        if !uid.is_empty() && uid != &*account.uid {
            let why = format!(
                "the UID in the token request ({uid}) does not match the UID of the service account ({})",
                account.uid
            );
            return Err(Status::conflict(GROUP, "TokenRequest", name, &why));
        }
        let spec = Spec::read(request, &self.audiences)?;
        let seconds = spec.validate()?;
        let seconds = self.longest.map_or(seconds, |longest| seconds.min(longest));
        let mut bound = Bound {
            namespace: namespace.to_owned(),
            serviceaccount: Reference { name: name.to_owned(), uid: account.uid.to_string() },
            ..Bound::default()
        };
        if let Some(reference) = request.pointer("/spec/boundObjectRef").filter(|r| !r.is_null()) {
            self.bind(&mut bound, name, reference).await?;
        }
        let at = now();
        let claims = Claims {
            aud: spec.audiences.clone(),
            exp: at.saturating_add(seconds),
            iat: at,
            iss: self.issuer.clone(),
            jti: base::clock::random_uuid(),
            kubernetes: bound,
            nbf: at,
            sub: format!("system:serviceaccount:{namespace}:{name}"),
        };
        let token = self
            .key
            .sign(&claims)
            .map_err(|e| Status::internal(&format!("failed to generate token: {e}")))?;
        crate::audit::annotate("authentication.kubernetes.io/issued-credential-id", || {
            format!("JTI={}", claims.jti)
        });
        fill(request, &account, &spec.audiences, seconds, at, token)
    }

    fn matches_url(&self, namespace: &str, name: &str, request: &Value) -> Result<(), Status> {
        let meta = Path::new("metadata");
        for (field, url, what) in [("name", name, "name"), ("namespace", namespace, "namespace")] {
            let given = text(request, &format!("/metadata/{field}"));
            if !given.is_empty() && given != url {
                let detail = format!("must match the service account {what} if specified");
                return Err(Status::invalid(
                    GROUP,
                    "TokenRequest",
                    name,
                    &[Error::invalid(&meta.child(field), given, detail)],
                ));
            }
        }
        Ok(())
    }

    async fn live(&self, gvr: &Gvr, namespace: &str, name: &str) -> Result<Arc<Object>, Status> {
        let found = self.lookup.get_live(gvr, namespace, name).await?;
        found.ok_or_else(|| Status::not_found(&gvr.group, &gvr.resource, name))
    }

    async fn bind(
        &self,
        bound: &mut Bound,
        account: &str,
        reference: &Value,
    ) -> Result<(), Status> {
        let gvk = Gvk::from_api_version(text(reference, "/apiVersion"), text(reference, "/kind"));
        let name = text(reference, "/name");
        let namespace = bound.namespace.clone();
        let object = match (&*gvk.group, &*gvk.kind) {
            ("", "Pod") => {
                let pod = self.live(&lookup::PODS, &namespace, name).await?;
                let value = pod.value().map_err(|e| Status::internal(&e.to_string()))?;
                if text(&value, "/spec/serviceAccountName") != account {
                    let why = format!(
                        "cannot bind token for serviceaccount {account:?} to pod running with different serviceaccount name."
                    );
                    return Err(Status::bad_request(why));
                }
                let node = text(&value, "/spec/nodeName");
                if !node.is_empty() {
                    let found = self.lookup.find(&lookup::NODES, "", node).await?;
                    let uid = found.map(|n| n.uid.to_string()).unwrap_or_default();
                    bound.node = Some(Reference { name: node.to_owned(), uid });
                }
                bound.pod = Some(Reference { name: name.to_owned(), uid: pod.uid.to_string() });
                pod
            }
            ("", "Node") => {
                let node = self.live(&lookup::NODES, "", name).await?;
                bound.node = Some(Reference { name: name.to_owned(), uid: node.uid.to_string() });
                node
            }
            ("", "Secret") => {
                let secret = self.live(&lookup::SECRETS, &namespace, name).await?;
                bound.secret =
                    Some(Reference { name: name.to_owned(), uid: secret.uid.to_string() });
                secret
            }
            (group, kind) => {
                let what = format!("{group}/{}, Kind={kind}", gvk.version);
                return Err(Status::bad_request(format!(
                    "cannot bind token to object of type {what}"
                )));
            }
        };
        let uid = text(reference, "/uid");
        if !uid.is_empty() && uid != &*object.uid {
            let why = format!(
                "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
            );
            return Err(Status::conflict(&gvk.group, &gvk.kind, name, &why));
        }
        Ok(())
    }

    /// The document at `/.well-known/openid-configuration`; `address` is the external host and port
    /// of the server.
    pub fn openid_configuration(&self, address: &str) -> Value {
        openid_configuration(&self.issuer, address, &self.public_keys())
    }

    /// The document at `/openid/v1/jwks`.
    pub fn jwks(&self) -> Value {
        jws::jwks(&self.public_keys())
    }
}

fn openid_configuration(issuer: &str, address: &str, keys: &[PublicKey]) -> Value {
    json!({
        "issuer": issuer,
        "jwks_uri": format!("https://{address}/openid/v1/jwks"),
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": jws::algorithms(keys),
    })
}

struct Spec {
    audiences: Vec<String>,
    seconds: i64,
    attestations: Option<Value>,
}

impl Spec {
    fn read(request: &Value, default: &[String]) -> Result<Self, Status> {
        let list = match request.pointer("/spec/audiences") {
            None | Some(Value::Null) => Vec::new(),
            Some(list) => serde_json::from_value(list.clone())
                .map_err(|e| Status::bad_request(e.to_string()))?,
        };
        let seconds = match request.pointer("/spec/expirationSeconds") {
            None | Some(Value::Null) => DEFAULT_SECONDS,
            Some(number) => number
                .as_i64()
                .ok_or_else(|| Status::bad_request("spec.expirationSeconds is no integer"))?,
        };
        let attestations = request
            .pointer("/spec/attestations")
            .filter(|a| a.as_object().is_some_and(|m| !m.is_empty()))
            .cloned();
        Ok(Self {
            audiences: if list.is_empty() { default.to_vec() } else { list },
            seconds,
            attestations,
        })
    }

    fn validate(&self) -> Result<i64, Status> {
        let spec = Path::new("spec");
        let seconds = spec.child("expirationSeconds");
        let mut errors = Vec::new();
        if self.seconds < MIN_SECONDS {
            errors.push(Error::invalid(
                &seconds,
                self.seconds,
                "may not specify a duration less than 10 minutes",
            ));
        }
        if self.seconds > 1 << 32 {
            errors.push(Error::invalid(
                &seconds,
                self.seconds,
                "may not specify a duration larger than 2^32 seconds",
            ));
        }
        if let Some(attestations) = &self.attestations {
            let detail = "attestations may only be specified with a webhook bound object reference";
            errors =
                vec![Error::invalid(&spec.child("attestations"), attestations.clone(), detail)];
        }
        if errors.is_empty() {
            Ok(self.seconds)
        } else {
            Err(Status::invalid(GROUP, "TokenRequest", "", &errors))
        }
    }
}

fn fill(
    request: &mut Value,
    account: &Object,
    audiences: &[String],
    seconds: i64,
    at: i64,
    token: String,
) -> Result<(), Status> {
    let stamp = |second: i64| {
        jiff::Timestamp::from_second(second)
            .map(|t| t.to_string())
            .map_err(|e| Status::internal(&e.to_string()))
    };
    let root = request
        .as_object_mut()
        .ok_or_else(|| Status::bad_request("the TokenRequest is no object"))?;
    let mut meta = root
        .remove("metadata")
        .and_then(|m| if let Value::Object(m) = m { Some(m) } else { None })
        .unwrap_or_default();
    meta.insert("name".into(), json!(account.key.name));
    meta.insert("namespace".into(), json!(account.key.namespace));
    meta.insert("uid".into(), json!(account.uid));
    meta.insert("creationTimestamp".into(), json!(stamp(at)?));
    root.insert("metadata".into(), Value::Object(meta));
    let mut spec = root
        .remove("spec")
        .and_then(|s| if let Value::Object(s) = s { Some(s) } else { None })
        .unwrap_or_default();
    spec.insert("audiences".into(), json!(audiences));
    spec.insert("expirationSeconds".into(), json!(seconds));
    spec.entry("boundObjectRef").or_insert(Value::Null);
    root.insert("spec".into(), Value::Object(spec));
    root.insert(
        "status".into(),
        json!({"token": token, "expirationTimestamp": stamp(at.saturating_add(seconds))?}),
    );
    Ok(())
}
