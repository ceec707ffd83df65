//! The filters of a request in their order, as upstream's `DefaultBuildHandlerChain`.

use std::sync::Arc;

use api::{Gvr, Status};
use base::Tasks;
use futures::FutureExt;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri, header};
use parking_lot::Mutex;

use super::authorization::decide;
use super::priority_and_fairness::Time;
use crate::audit::{self, Audit};
use crate::authn::x509::PeerIdentity;
use crate::authz::Attributes;
use crate::metrics::requests as meters;
use crate::request::body::Body;
use crate::request::context::Context;
use crate::request::scope;
use crate::request::scope::Track;
use crate::request::user::User;
use crate::request::{self, Query, RequestInfo};
use crate::request_tracing;
use crate::response::status;
use crate::response::status::ResponseStatus;
use crate::state::{ApiServer, Inner};
use crate::{handlers, priority_and_fairness};

impl ApiServer {
    /// Answers one request. `user` is who asks; `None` means that the request's own credentials tell.
    pub async fn call(&self, user: Option<User>, mut request: Request<Body>) -> Response<Body> {
        if self.inner.tracer.get().is_some() {
            // The span has it, too.
            let id = audit::id_of(&request);
            request.headers_mut().insert(audit::ID_HEADER, id);
        }
        match self.inner.audit.get() {
            None => {
                let id = audit::id_of(&request);
                let mut response = self.served(user, request).await;
                response.headers_mut().entry(audit::ID_HEADER).or_insert(id);
                response
            }
            // Boxed, so that a request that nobody records is no larger.
            Some(audit) => Box::pin(self.recorded(audit, user, request)).await,
        }
    }

    /// The way of a request with what is recorded of it.
    async fn recorded(
        &self,
        audit: &Arc<Audit>,
        user: Option<User>,
        mut request: Request<Body>,
    ) -> Response<Body> {
        let (trail, id) = audit.trail(&request);
        let ongoing = audit::Ongoing::new(&trail);
        request.extensions_mut().insert(ongoing.clone());
        let served = self.served(user, request);
        let mut response = audit::along(Some(Arc::clone(&trail)), served).await;
        response.headers_mut().entry(audit::ID_HEADER).or_insert(id);
        if let Some(ResponseStatus(status)) = response.extensions_mut().remove() {
            trail.status(&status);
        }
        if trail.answered(response.status().as_u16()).await {
            response = response.map(|body| crate::request::body::keeping(body, ongoing));
        }
        response
    }

    async fn served(&self, user: Option<User>, request: Request<Body>) -> Response<Body> {
        let started = base::clock::now();
        let inner = Arc::clone(&self.inner);
        let mut labels = crate::metrics::request_totals::Labels::default();
        let is_own = user.as_ref().is_some_and(|user| user.name == "system:apiserver");
        let track = Arc::new(Track::default());
        // Boxed, as it is moved on and large.
        let answer = Box::pin(Self::answer(inner, user, request, &mut labels, started));
        let answer = scope::along(Some(Arc::clone(&track)), answer);
        let outcome = std::panic::AssertUnwindSafe(answer).catch_unwind().await;
        let mut response = outcome.unwrap_or_else(|panic| {
            tracing::error!("a request panicked");
            audit::with(|trail| trail.panicked(&panic_text(&*panic)));
            self.inner.metrics.panicked();
            let text = "This request caused apiserver to panic. Look in the logs for details.";
            status::text(StatusCode::INTERNAL_SERVER_ERROR, text)
        });
        // Upstream's `WithCacheControl`: whatever it is, it is for one user and for now.
        let kept = HeaderValue::from_static("no-cache, private");
        response.headers_mut().entry(header::CACHE_CONTROL).or_insert(kept);
        let size = http_body::Body::size_hint(response.body()).exact();
        let code = response.status().as_u16();
        self.inner.metrics.observe(&labels, (code, size), (started.elapsed(), track.waited()));
        if is_own {
            meters::own(&labels.words());
        }
        match track.ended(code, size) {
            // The span of a watch lasts as long as the watch.
            Some(span) if size.is_none() => {
                response.map(|body| crate::request::body::keeping(body, span))
            }
            _ => response,
        }
    }

    async fn answer(
        inner: Arc<Inner>,
        user: Option<User>,
        mut request: Request<Body>,
        labels: &mut crate::metrics::request_totals::Labels,
        arrived: tokio::time::Instant,
    ) -> Response<Body> {
        let query = Query::parse(request.uri().query().unwrap_or(""));
        let info = match request::parse(request.method(), request.uri().path(), &query) {
            Ok(info) => info,
            Err(error) => return status::response(&Status::bad_request(error.0)),
        };
        labels.fill(
            &request,
            &info,
            &query,
            crate::metrics::request_totals::Served::of(&inner.objects.registry(), &info),
        );
        let limit = match crate::filters::timeout::of(&info, &query) {
            Ok(limit) => limit,
            Err(refusal) => {
                audit::with(|trail| trail.refused(&info));
                return status::response(&refusal);
            }
        };
        let tasks = inner.tasks.clone();
        // Addresses and ports of a Service are taken before it is written, and given back after: that must not be cut off.
        let whole = info.resource == "services" && info.group.is_empty() && !info.is_read();
        let time = Time { arrived, limit };
        let wish = query.get("fieldValidation").map(str::to_owned).filter(|_| info.is_resource);
        let validates = info.is_resource;
        let long = info.is_long_running().then(|| Arc::new(meters::Long::begin(&labels.words())));
        if let Some(long) = &long {
            // An upgraded connection keeps these to its end.
            request.extensions_mut().insert(Arc::clone(long));
        }
        let answer = Self::admitted(inner, user, info, query, request, time);
        let answer =
            async move { if whole { detached(&tasks, answer).await } else { answer.await } };
        let mut response = match limit {
            None => answer.await,
            // A write that is cut off may or may not have taken effect, as when the client goes away.
            Some(limit) => tokio::time::timeout(limit, answer).await.unwrap_or_else(|_| {
                meters::terminated(&labels.words(), 504);
                status::response(&crate::filters::timeout::exceeded())
            }),
        };
        if response.extensions_mut().remove::<TurnedAway>().is_some() {
            meters::terminated(&labels.words(), 429);
        }
        if validates {
            meters::validated(wish.as_deref().unwrap_or_default(), arrived.elapsed());
        }
        match long {
            Some(long) => response.map(|body| crate::request::body::keeping(body, long)),
            None => response,
        }
    }

    async fn admitted(
        inner: Arc<Inner>,
        user: Option<User>,
        info: RequestInfo,
        query: Query,
        request: Request<Body>,
        time: Time,
    ) -> Response<Body> {
        let begun = base::clock::now();
        let identified = Self::identify(
            &inner,
            user,
            request.headers(),
            request.extensions().get::<PeerIdentity>().cloned(),
            &info.path,
        )
        .await;
        let begun = meters::filtered("authentication", begun);
        let user = match identified {
            Ok(user) => user,
            Err(refusal) => {
                audit::with(|trail| trail.refused(&info));
                return status::response(&refusal);
            }
        };
        if let (Some(tracer), Some(track)) = (inner.tracer.get(), scope::current()) {
            let since = base::clock::unix_time().saturating_sub(time.arrived.elapsed());
            track.begun(tracer.request(&request, &info, &user, since));
        }
        if let Some(trail) = audit::current()
            && !trail.received(&user, &info).await
        {
            return audit::not_stored(&info);
        }
        let begun = meters::filtered("audit", begun);
        let user = match Self::impersonate(&inner, user, request.headers()).await {
            Ok(user) => user,
            Err(refusal) => return status::response(&refusal),
        };
        let begun = meters::filtered("constrainedimpersonation", begun);
        let enter = Self::enter(&inner, &user, &info, &query, time);
        let mut entered = match request_tracing::run("priorityandfairness", Vec::new, enter).await {
            Ok(entered) => entered,
            Err(mut refusal) => {
                refusal.extensions_mut().insert(TurnedAway);
                return refusal;
            }
        };
        let begun = meters::filtered("priorityandfairness", begun);
        let upgrades = stream::upgrade::is_upgrade(request.headers());
        let allowed = Self::authorize(&inner, &user, &info, &query, request.uri(), upgrades);
        let refusal = request_tracing::run("authorization", Vec::new, allowed).await;
        meters::filtered("authorization", begun);
        if let Some(refusal) = refusal {
            return entered.marked(refusal);
        }
        let watching = entered.watching.take();
        if let Some(remote) = inner.aggregator.of_path(&info.path) {
            // Whether a watch has begun there cannot be seen here.
            drop(watching);
            return entered.marked(remote.serve(&user, audit::marked(request)).await);
        }
        let response = Self::route(inner, user, info, query, request, watching).await;
        entered.marked(response)
    }

    async fn identify(
        inner: &Inner,
        user: Option<User>,
        headers: &HeaderMap,
        peer: Option<PeerIdentity>,
        path: &str,
    ) -> Result<User, Status> {
        if let Some(user) = user {
            return Ok(user);
        }
        let peer = peer.as_ref().map(|identity| identity.0.as_ref());
        let begun = base::clock::now();
        let found = inner.parts.authenticator.authenticate(headers, peer, path).await;
        let who = found.as_ref().map(|user| user.as_ref().map(|user| user.name.as_str()));
        meters::authenticated(who.map_err(|_| ()), begun.elapsed());
        found?.ok_or_else(crate::authn::unauthorized)
    }

    async fn impersonate(inner: &Inner, user: User, headers: &HeaderMap) -> Result<User, Status> {
        let wanted = headers.keys().any(|name| name.as_str().starts_with("impersonate-"));
        match (&inner.parts.impersonation, wanted) {
            (_, false) => Ok(user),
            (Some(impersonation), true) => {
                let begun = base::clock::now();
                let user = impersonation.apply(user, headers).await;
                meters::impersonated(user.is_ok(), begun.elapsed());
                let user = user?;
                audit::with(|trail| trail.impersonated(&user));
                Ok(user)
            }
            (None, true) => Err(Status::forbidden(
                "",
                "users",
                "",
                "impersonation is not available on this server",
            )),
        }
    }

    /// The answer to a request that is not allowed.
    async fn authorize(
        inner: &Inner,
        user: &User,
        info: &RequestInfo,
        query: &Query,
        uri: &Uri,
        upgrades: bool,
    ) -> Option<Response<Body>> {
        // Upstream honours selectors for these alone, and not behind `/watch/`.
        let selects =
            matches!(info.verb, "list" | "watch" | "deletecollection") && !info.watch_path;
        let selector = |name| query.get(name).filter(|_| selects).unwrap_or_default();
        let attributes = if info.is_resource {
            Attributes {
                verb: info.verb,
                group: &info.group,
                version: &info.version,
                resource: &info.resource,
                subresource: &info.subresource,
                namespace: &info.namespace,
                name: &info.name,
                path: "",
                field_selector: selector("fieldSelector"),
                label_selector: selector("labelSelector"),
            }
        } else {
            Attributes { verb: info.verb, path: &info.path, ..Attributes::default() }
        };
        let refusal = decide(inner, user, info, &attributes, uri).await;
        if refusal.is_some() {
            return refusal;
        }
        // A WebSocket opens with GET; who may only read must not get a shell (upstream asks for both since 1.35). Behind
        // `nodes/proxy` are the kubelet's exec and attach, which upstream leaves open to who may `get` it.
        let opens = match (info.resource.as_str(), info.subresource.as_str()) {
            ("pods", "exec" | "attach" | "portforward") => true,
            ("nodes", "proxy") => upgrades && info.group.is_empty(),
            _ => false,
        };
        if info.is_resource && opens && info.verb == "get" {
            let asked = RequestInfo { verb: "create", ..info.clone() };
            let attributes = Attributes { verb: "create", ..attributes };
            return decide(inner, user, &asked, &attributes, uri).await;
        }
        None
    }

    async fn route(
        inner: Arc<Inner>,
        user: User,
        info: RequestInfo,
        query: Query,
        request: Request<Body>,
        watching: Option<priority_and_fairness::Watching>,
    ) -> Response<Body> {
        // No route begins with two slashes.
        if info.path.starts_with("//") {
            return status::page_not_found();
        }
        if !info.is_resource {
            return handlers::plain(&inner, &info, &query, request).await;
        }
        let registry = inner.objects.registry();
        let gvr = Gvr::new(&info.group, &info.version, &info.resource);
        let scoped = (info.prefix == "api") == info.group.is_empty();
        let Some(row) = registry.row(&gvr).filter(|_| scoped).cloned() else {
            let known = scoped && registry.group(&info.group).is_some();
            return if known {
                status::response(&status::no_resource())
            } else {
                status::page_not_found()
            };
        };
        let subresource = row.subresource(&info.subresource).cloned();
        let (parts, body) = request.into_parts();
        let context = Context {
            server: inner,
            user,
            info,
            query,
            headers: parts.headers,
            row,
            subresource,
            warnings: Mutex::new(Vec::new()),
            watching: Mutex::new(watching),
            size: Default::default(),
        };
        let exchange = crate::request::context::Exchange {
            method: parts.method,
            uri: parts.uri,
            extensions: parts.extensions,
            body,
        };
        let work = handlers::dispatch(&context, exchange);
        let outcome = crate::request::size::run(&context.size, work).await;
        let mut response =
            outcome.unwrap_or_else(|refusal| crate::response::encode::refusal(&context, &refusal));
        let ignored_token = crate::authn::ignored_token_warning(&context.headers);
        if let Some(warning) = ignored_token {
            context.warn(warning);
        }
        for warning in context.told() {
            if let Ok(value) = HeaderValue::from_bytes(
                format!("299 - {}", api::field::go_quote(&warning)).as_bytes(),
            ) {
                response.headers_mut().append(HeaderName::from_static("warning"), value);
            }
        }
        response
    }
}

/// Marks the answer to a request for which there was no place.
#[derive(Debug, Clone, Copy)]
struct TurnedAway;

/// Runs to its end even when nobody waits for the answer any more.
async fn detached(
    tasks: &Tasks,
    answer: impl Future<Output = Response<Body>> + Send + 'static,
) -> Response<Body> {
    let answer = audit::along(audit::current(), scope::along(scope::current(), answer));
    let (done, answered) = tokio::sync::oneshot::channel();
    tasks.spawn(base::tasks::Kind::Request, "service write", async move {
        // The caller may be gone.
        let _ = done.send(answer.await);
        Ok::<(), std::convert::Infallible>(())
    });
    answered.await.unwrap_or_else(|_| {
        status::response(&Status::internal("the write ended without an answer"))
    })
}

/// What a panic said.
fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}
