//! Assembles authentication, authorization, admission, reviews and tokens over one set of objects.

use std::sync::Arc;

use api::{Gvr, Status};
use async_trait::async_trait;
use base::Tasks;
use base::tasks::Kind;
use http::{HeaderMap, Method, Request};
use parking_lot::Mutex;
use serde_json::Value;

use crate::admission::node_restriction::NodeRestriction;
use crate::admission::pods::DefaultTolerationSeconds;
use crate::admission::{self, Operation, Plugin};
use crate::authn::bootstrap_token::BootstrapTokens;
use crate::authn::issuer::TokenIssuer;
use crate::authn::jws::{BadKey, PublicKey, SigningKey};
use crate::authn::secret_token::{SecretTokens, TokenUses};
use crate::authn::service_account::ServiceAccounts;
use crate::authn::static_token::StaticTokens;
use crate::authn::{self, Issuers, TokenAuthenticator, TokenWebhook, Union, impersonate};
use crate::authz::Authorizer;
use crate::authz::config::AuthorizationConfig;
use crate::authz::escalation::Escalation;
use crate::authz::node::Node;
use crate::authz::rbac::Rbac;
use crate::authz::reload::Authorization;
use crate::bootstrap;
use crate::interfaces;
use crate::interfaces::Connect;
use crate::registry::objects::Objects;
use crate::registry::watch_cache::{Filter, Position};
use crate::request::body;
use crate::request::user::User;
use crate::reviews::Reviews;
use crate::state::{ApiServer, Parts};
use lookup::Lookup;
use webhook::Callout;

/// The settings of this cluster.
pub struct Settings {
    /// The issuer of service account tokens, such as
    /// `https://kubernetes.default.svc.cluster.local`.
    pub issuer: String,
    /// Further issuers whose tokens are accepted.
    pub former_issuers: Vec<String>,
    /// The longest lifetime of these tokens, in seconds.
    pub token_seconds_max: Option<i64>,
    /// The signing key of these tokens, as PEM.
    pub service_account_key: base::SecretValue<String>,
    /// The host and port at which OpenID clients reach the server.
    pub address: String,
    /// Tokens of clients in this process or on this machine.
    pub tokens: Vec<(String, User)>,
    /// The issuers of other tokens, and the configuration of anonymous requests.
    pub authentication: authn::AuthenticationConfig,
    /// The default toleration of pods for nodes that are not ready or unreachable.
    pub tolerations: DefaultTolerationSeconds,
    /// The access to webhooks.
    pub callout: Callout,
    /// The configured authorizers.
    pub authorization: AuthorizationConfig,
    /// Whether the stricter defaults of `--profile=hardened` apply.
    pub hardened: bool,
    /// Which admission plugins run, and their configuration.
    pub admission: admission::configuration::AdmissionConfig,
    /// Plugins of optional components; they run after mutating policies and before webhooks.
    pub plugins: Vec<Arc<dyn Plugin>>,
}

/// The security components, for [`crate::build`].
pub struct Security {
    /// The authenticator.
    pub authenticator: Arc<Union>,
    /// The authorizer.
    pub authorizer: Arc<dyn Authorizer>,
    /// The authorizer with its configuration file, which [`Security::follow`] follows.
    pub authorization: Authorization,
    /// Roles and bindings, kept current by [`Security::follow`].
    pub rbac: Arc<Rbac>,
    /// The built-in admission plugins, in order.
    pub admission: Vec<Arc<dyn Plugin>>,
    /// Access, token and rules reviews.
    pub reviews: Arc<Reviews>,
    /// The issuer of service account tokens.
    pub issuer: Arc<Issuer>,
    /// The access to webhooks.
    pub callout: Callout,
    /// The uses of tokens in Secrets, for the labels of the Secrets.
    pub token_uses: TokenUses,
    policies: admission::policies::Sources,
    webhooks: admission::webhooks::Sources,
}

/// The authenticators of the cluster's own tokens, and the uses of tokens in Secrets.
fn own_tokens(
    lookup: &Arc<dyn Lookup>,
    tokens: Vec<(String, User)>,
    accounts: ServiceAccounts,
    audiences: Vec<String>,
    keys: Vec<PublicKey>,
) -> (Vec<Arc<dyn TokenAuthenticator>>, TokenUses) {
    let (secrets, uses) = SecretTokens::new(Arc::clone(lookup), audiences, keys);
    let all: Vec<Arc<dyn TokenAuthenticator>> = vec![
        Arc::new(StaticTokens::new(tokens)),
        Arc::new(accounts),
        Arc::new(secrets),
        Arc::new(BootstrapTokens::new(Arc::clone(lookup))),
    ];
    (all, uses)
}

/// Combines the authenticators of the cluster's own `tokens` with those of the configuration.
fn authenticator(
    tokens: Vec<Arc<dyn TokenAuthenticator>>,
    plan: &authn::AuthenticationConfig,
    audiences: &[String],
    callout: &Callout,
) -> Union {
    let webhook = plan
        .webhook
        .clone()
        .map(|webhook| TokenWebhook::new(webhook, audiences.to_vec(), &callout.tasks));
    let issuers = Issuers::start(plan, audiences.to_vec(), callout);
    Union::new(tokens, plan.anonymous.clone()).with_issuers(issuers).with_webhook(webhook)
}

impl Security {
    /// Creates the components over these objects.
    ///
    /// # Errors
    /// If the key is unusable.
    pub fn new(objects: &Arc<Objects>, settings: Settings) -> Result<Self, BadKey> {
        let lookup: Arc<dyn Lookup> = Arc::clone(objects) as Arc<dyn Lookup>;
        let mut audiences = vec![settings.issuer.clone()];
        audiences.extend(settings.former_issuers);
        let (key, former) = SigningKey::all(&settings.service_account_key)?;
        let issuer =
            TokenIssuer::new(Arc::clone(&lookup), &settings.issuer, audiences.clone(), key)
                .with_former(former)
                .with_longest(settings.token_seconds_max);
        let accounts = ServiceAccounts::new(
            Arc::clone(&lookup),
            audiences.clone(),
            audiences.clone(),
            issuer.public_keys(),
        );
        let keys = issuer.public_keys();
        let (own, token_uses) =
            own_tokens(&lookup, settings.tokens, accounts, audiences.clone(), keys);
        let authenticator = Arc::new(
            authenticator(own, &settings.authentication, &audiences, &settings.callout)
                .with_masters_by_token(!settings.hardened),
        );
        let rbac = Arc::new(Rbac::new());
        let node = Node::new(Arc::clone(&lookup), bootstrap::node_rules());
        let authorization = Authorization::new(
            settings.authorization,
            Arc::new(node),
            Arc::clone(&rbac) as Arc<dyn Authorizer>,
            &settings.callout.tasks,
        );
        let authorizer = Arc::clone(authorization.authorizer());
        let escalation = Escalation::new(Arc::clone(&rbac), Arc::clone(&authorizer));
        let restriction =
            Arc::new(NodeRestriction::new(Arc::clone(&lookup), Arc::clone(&authorizer)));
        let (mutating, validating, webhooks) =
            admission::webhooks::plugins(objects, &authorizer, &settings.callout);
        let (mutating_policy, validating_policy, policies) =
            admission::policies::plugins(objects, &authorizer);
        let mut dynamic: Vec<Arc<dyn Plugin>> = vec![Arc::new(mutating_policy)];
        dynamic.extend(settings.plugins);
        dynamic.push(Arc::new(mutating));
        dynamic.push(Arc::new(validating_policy));
        dynamic.push(Arc::new(validating));
        Ok(Self {
            admission: admission::chain::plugins(
                &lookup,
                &authorizer,
                escalation,
                settings.tolerations,
                (settings.hardened, &settings.admission),
                dynamic,
            ),
            callout: settings.callout,
            token_uses,
            policies,
            webhooks,
            reviews: Arc::new(Reviews::new(
                Arc::clone(&authenticator),
                Arc::clone(&authorizer),
                audiences,
            )),
            issuer: Arc::new(Issuer { tokens: issuer, restriction, address: settings.address }),
            authenticator,
            authorizer,
            authorization,
            rbac,
        })
    }

    /// The parts of a server over `objects`.
    pub fn parts(&self, objects: &Arc<Objects>, connect: Option<Arc<dyn Connect>>) -> Parts {
        Parts {
            objects: Arc::clone(objects),
            authenticator: Arc::clone(&self.authenticator) as Arc<dyn crate::authn::Authenticator>,
            authorizer: Arc::clone(&self.authorizer),
            admission: self.admission.clone(),
            token_issuer: Some(Arc::clone(&self.issuer) as Arc<dyn interfaces::TokenIssuer>),
            reviews: Some(Arc::clone(&self.reviews) as Arc<dyn interfaces::ReviewHandler>),
            connect,
            impersonation: Some(Arc::new(Impersonator(Arc::clone(&self.authorizer)))),
        }
    }

    /// Loads all roles, bindings, admission policies and webhook configurations, and keeps them
    /// current until shutdown. Until the first load is complete, only `system:masters` is
    /// authorized, so await this before serving.
    ///
    /// # Errors
    /// If a cache fails to load.
    pub async fn follow(&self, objects: &Arc<Objects>, tasks: &Tasks) -> Result<(), Status> {
        self.authorization.follow(tasks);
        self.policies.follow(objects, tasks).await?;
        self.webhooks.follow(objects, tasks).await?;
        for gvr in [
            &lookup::CLUSTER_ROLES,
            &lookup::ROLES,
            &lookup::CLUSTER_ROLE_BINDINGS,
            &lookup::ROLE_BINDINGS,
        ] {
            let row = objects.row(gvr)?;
            let position = load(objects, &row, &self.rbac, gvr).await?;
            let (objects, rbac, shutdown) =
                (Arc::clone(objects), Arc::clone(&self.rbac), tasks.shutdown().clone());
            tasks.spawn(Kind::Critical, "rbac", async move {
                tokio::select! {
                    end = follow_events(objects, rbac, gvr, position) => end,
                    () = shutdown.requested() => Ok(()),
                }
            });
        }
        Ok(())
    }
}

async fn load(
    objects: &Objects,
    row: &Arc<crate::registry::Resource>,
    rbac: &Rbac,
    gvr: &Gvr,
) -> Result<Position, Status> {
    let cache = objects.fresh_cache(row).await?;
    let (page, position) = cache.list_and_watch(&Filter::default());
    rbac.replace(gvr, &page.items);
    Ok(position)
}

/// Applies events until shutdown; a follower that lags relists.
async fn follow_events(
    objects: Arc<Objects>,
    rbac: Arc<Rbac>,
    gvr: &Gvr,
    mut position: Position,
) -> Result<(), Status> {
    let mut backoff =
        base::Backoff::new(std::time::Duration::from_millis(10), std::time::Duration::from_secs(5));
    loop {
        match position.next().await {
            Ok((events, _)) => {
                backoff.reset();
                for event in events {
                    if event.deleted {
                        rbac.remove(gvr, &event.entry.object.key);
                    } else {
                        rbac.put(gvr, &event.entry.object);
                    }
                }
            }
            Err(_) => {
                base::clock::sleep(backoff.next_delay()).await;
                let row = objects.row(gvr)?;
                match load(&objects, &row, &rbac, gvr).await {
                    Ok(fresh) => position = fresh,
                    Err(error) => {
                        tracing::warn!(%gvr, %error, "cannot follow roles and bindings, relisting")
                    }
                }
            }
        }
    }
}

/// Issues service account tokens; a node receives only those of its own pods.
pub struct Issuer {
    tokens: TokenIssuer,
    restriction: Arc<NodeRestriction>,
    address: String,
}

#[async_trait]
impl interfaces::TokenIssuer for Issuer {
    async fn issue(
        &self,
        user: &User,
        service_account: &Value,
        mut request: Value,
    ) -> Result<Value, Status> {
        let field = |name| api::value::str_in(service_account, &["metadata", name]);
        let (namespace, name) = (field("namespace"), field("name"));
        let warnings = Mutex::default();
        let admission_request = admission::Request {
            operation: Operation::Create,
            gvr: &lookup::SERVICE_ACCOUNTS,
            gvk: &api::Gvk::new("authentication.k8s.io", "v1", "TokenRequest"),
            subresource: "token",
            namespace,
            name,
            user,
            dry_run: false,
            old: None,
            options: admission::Options { kind: "CreateOptions", ..Default::default() },
            reinvocation: &Default::default(),
            reservation: &Default::default(),
            warnings: &warnings,
        };
        let mut object = Some(request.clone());
        self.restriction.mutate(&admission_request, &mut object).await?;
        self.tokens.create(namespace, name, &mut request).await?;
        Ok(request)
    }

    fn discovery(&self) -> Option<(Value, Value)> {
        Some((self.tokens.openid_configuration(&self.address), self.tokens.jwks()))
    }
}

#[async_trait]
impl interfaces::ReviewHandler for Reviews {
    async fn review(
        &self,
        kind: &str,
        user: &User,
        namespace: &str,
        mut review: Value,
    ) -> Result<Value, Status> {
        self.create(&format!("{}s", kind.to_lowercase()), namespace, user, &mut review).await?;
        Ok(review)
    }
}

/// The handler of `Impersonate-*` headers.
struct Impersonator(Arc<dyn Authorizer>);

#[async_trait]
impl interfaces::Impersonation for Impersonator {
    async fn apply(&self, user: User, headers: &HeaderMap) -> Result<User, Status> {
        let acting = impersonate::impersonated(headers, &user, &*self.0).await?;
        if let Some(acting) = &acting {
            tracing::debug!(user = user.name, acting = acting.name, "impersonation");
        }
        Ok(acting.unwrap_or(user))
    }
}

/// Writes bootstrap objects through the server itself, as a member of `system:masters`.
pub struct BootstrapWriter {
    server: ApiServer,
    user: User,
}

impl BootstrapWriter {
    /// Creates a writer for this server.
    pub fn new(server: ApiServer) -> Self {
        Self { server, user: User::apiserver() }
    }

    async fn send(
        &self,
        method: Method,
        gvr: &Gvr,
        namespace: &str,
        name: &str,
        object: Option<Value>,
    ) -> Result<(), Status> {
        let mut path = if gvr.group.is_empty() {
            format!("/api/{}", gvr.version)
        } else {
            format!("/apis/{}/{}", gvr.group, gvr.version)
        };
        if !namespace.is_empty() {
            path = format!("{path}/namespaces/{namespace}");
        }
        path = format!("{path}/{}", gvr.resource);
        if !name.is_empty() {
            path = format!("{path}/{name}");
        }
        let content = object.map(|o| o.to_string()).unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(http::header::CONTENT_TYPE, "application/json")
            .header(http::header::USER_AGENT, "kube-lite/bootstrap")
            .body(body::full(content))
            .map_err(|e| Status::internal(&e.to_string()))?;
        let response = self.server.call(Some(self.user.clone()), request).await;
        if response.status().is_success() {
            return Ok(());
        }
        let code = response.status().as_u16();
        let bytes = body::read(response.into_body()).await?;
        let refusal = serde_json::from_slice::<Status>(&bytes);
        Err(refusal
            .unwrap_or_else(|_| Status::failure(code, "Unknown", String::from_utf8_lossy(&bytes))))
    }
}

#[async_trait]
impl bootstrap::Writer for BootstrapWriter {
    fn serves(&self, gvr: &Gvr) -> bool {
        self.server.objects().row(gvr).is_ok()
    }

    async fn get(&self, gvr: &Gvr, namespace: &str, name: &str) -> Result<Option<Value>, Status> {
        let found = self.server.objects().get_live(gvr, namespace, name).await;
        found.and_then(lookup::value)
    }

    async fn create(&self, gvr: &Gvr, namespace: &str, object: Value) -> Result<(), Status> {
        self.send(Method::POST, gvr, namespace, "", Some(object)).await
    }

    async fn update(&self, gvr: &Gvr, namespace: &str, object: Value) -> Result<(), Status> {
        let name = api::value::str_in(&object, &["metadata", "name"]).to_owned();
        self.send(Method::PUT, gvr, namespace, &name, Some(object)).await
    }

    async fn delete(&self, gvr: &Gvr, namespace: &str, name: &str) -> Result<(), Status> {
        self.send(Method::DELETE, gvr, namespace, name, None).await
    }
}

#[cfg(test)]
mod tests;
