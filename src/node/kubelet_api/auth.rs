//! Authentication and authorization: a client certificate or a token verified by the API server,
//! then an access review of every request by the API server.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use api::Gvr;
use client::Client;
use http::{HeaderMap, Method, Response, StatusCode, header};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;

use super::response::{Body, text_response};

/// How long results are cached (`KubeletConfiguration`: webhook cache times).
const ALLOWED_TTL: Duration = Duration::from_secs(300);
const DENIED_TTL: Duration = Duration::from_secs(30);
const TOKEN_TTL: Duration = Duration::from_secs(120);
/// Maximum number of cached results; a full cache is cleared.
const CACHED_MAX: usize = 1024;

/// All attributes of a user that reviews send, and so the cache key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct User {
    name: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// Whether it is a node, as the node authorizer recognizes it.
    pub(super) fn is_node(&self) -> bool {
        self.name.starts_with("system:node:") && self.groups.iter().any(|g| g == "system:nodes")
    }
}

/// The user of a connection's client certificate, if it has one.
#[derive(Debug, Clone)]
pub(super) struct CertificateUser(pub(super) Option<User>);

/// Returns the user of a client certificate, whose chain TLS has verified: common name and
/// organizations.
pub(super) fn from_certificate(der: &[u8]) -> Option<User> {
    let (_, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
    let subject = certificate.subject();
    let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    let mut groups: Vec<String> =
        subject.iter_organization().filter_map(|o| o.as_str().ok()).map(str::to_owned).collect();
    groups.push("system:authenticated".to_owned());
    Some(User { name, groups, ..User::default() })
}

/// The path of metrics that needs a right for the path instead of one for the node.
const METRICS_PATH: &str = "/metrics";

/// Key of an access review: user, verb, subresource or [`METRICS_PATH`].
type ReviewKey = (User, &'static str, &'static str);
/// Results of access reviews with their expiry.
type ReviewResults = HashMap<ReviewKey, (bool, Instant)>;
/// Users by token digest.
type TokenUsers = HashMap<String, (User, Instant)>;

/// Authenticates and authorizes requests by reviews of the API server, which it caches.
#[derive(Debug)]
pub(super) struct ApiAuth {
    client: Client,
    node: String,
    users: Mutex<TokenUsers>,
    reviews: Mutex<ReviewResults>,
}

type ErrorResponse = Box<Response<Body>>;

fn error_response(status: StatusCode, message: impl Into<String>) -> ErrorResponse {
    Box::new(text_response(status, message))
}

/// Verb and subresources of a request as the kubelet maps them (`pkg/kubelet/server/auth.go`);
/// access to one of the subresources suffices.
fn attributes(method: &Method, path: &str) -> (&'static str, &'static [&'static str]) {
    let verb = match *method {
        Method::GET => "get",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "",
    };
    let subresources: &[&str] = match first_segment(path) {
        "stats" => &["stats"],
        "metrics" => &["metrics"],
        "logs" => &["log"],
        "pods" | "runningpods" => &["pods", "proxy"],
        "healthz" => &["healthz", "proxy"],
        "configz" => &["configz", "proxy"],
        "checkpoint" => &["checkpoint"],
        "statusz" => &["statusz"],
        "flagz" => &["configz"],
        _ => &["proxy"],
    };
    (verb, subresources)
}

/// The first segment of a path, which selects the attributes.
fn first_segment(path: &str) -> &str {
    path.trim_start_matches('/').split('/').next().unwrap_or_default()
}

/// Whether the path runs or reaches something in a pod. A WebSocket opens with GET, so that `get
/// nodes/proxy` alone would give a shell in every container.
fn acts_in_pod(path: &str) -> bool {
    matches!(first_segment(path), "exec" | "attach" | "portForward")
}

impl ApiAuth {
    pub(super) fn new(client: Client, node: &str) -> Self {
        Self { client, node: node.to_owned(), users: Mutex::default(), reviews: Mutex::default() }
    }

    /// Returns the user of a request: that of the client certificate, or else of the bearer token.
    pub(super) async fn authenticate(
        &self,
        certificate: Option<User>,
        headers: &HeaderMap,
    ) -> Result<User, ErrorResponse> {
        if let Some(user) = certificate {
            return Ok(user);
        }
        let token = headers.get(header::AUTHORIZATION).and_then(|v| v.to_str().ok());
        match token {
            Some(token) => self.authenticate_token(token).await,
            None => Err(error_response(StatusCode::UNAUTHORIZED, "Unauthorized")),
        }
    }

    /// Authorizes `get` on the path `/metrics`, which belongs to no node, as the API server does.
    pub(super) async fn authorize_metrics_path(&self, user: &User) -> Result<(), ErrorResponse> {
        // No subresource of nodes has this name.
        if self.review_access(user, "get", METRICS_PATH).await? {
            return Ok(());
        }
        let text = format!("Forbidden (user={}, verb=get, path={METRICS_PATH})", user.name);
        Err(error_response(StatusCode::FORBIDDEN, text))
    }

    /// Returns the user of a bearer token.
    pub(super) async fn authenticate_token(&self, header: &str) -> Result<User, ErrorResponse> {
        let unauthorized = || error_response(StatusCode::UNAUTHORIZED, "Unauthorized");
        let (scheme, token) = header.trim().split_once(' ').ok_or_else(unauthorized)?;
        let token = token.trim();
        if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() {
            return Err(unauthorized());
        }
        let digest = crate::digest::sha256(token.as_bytes());
        let known = self
            .users
            .lock()
            .get(&digest)
            .filter(|(_, until)| *until > base::clock::now())
            .map(|(u, _)| u.clone());
        if let Some(user) = known {
            return Ok(user);
        }
        let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
            "spec": {"token": token}});
        let gvr = Gvr::new("authentication.k8s.io", "v1", "tokenreviews");
        let answer = self.client.post_value(&gvr, "", "", "", &body).await.map_err(|error| {
            tracing::warn!(%error, "cannot review a token");
            unauthorized()
        })?;
        let status = &answer["status"];
        if status["authenticated"] != true {
            return Err(unauthorized());
        }
        let user = user_of(&status["user"]);
        let mut users = self.users.lock();
        if users.len() >= CACHED_MAX {
            users.clear();
        }
        users.insert(digest, (user.clone(), base::clock::now() + TOKEN_TTL));
        Ok(user)
    }

    /// Authorizes a request; some subresources are also open to users of `nodes/proxy`. What acts
    /// in a pod also needs `create`, where upstream only requires the verb of the request's method.
    pub(super) async fn authorize(
        &self,
        user: &User,
        method: &Method,
        path: &str,
    ) -> Result<(), ErrorResponse> {
        let (verb, subresources) = attributes(method, path);
        let refused = |verb: &str| {
            let subresources = subresources.join(" ");
            let text = format!(
                "Forbidden (user={}, verb={verb}, resource=nodes, subresource(s)=[{subresources}])",
                user.name
            );
            error_response(StatusCode::FORBIDDEN, text)
        };
        if acts_in_pod(path) && !self.review_access(user, "create", "proxy").await? {
            return Err(refused("create"));
        }
        for subresource in subresources {
            if self.review_access(user, verb, subresource).await? {
                return Ok(());
            }
        }
        Err(refused(verb))
    }

    async fn review_access(
        &self,
        user: &User,
        verb: &'static str,
        subresource: &'static str,
    ) -> Result<bool, ErrorResponse> {
        let question = (user.clone(), verb, subresource);
        let known = self
            .reviews
            .lock()
            .get(&question)
            .filter(|(_, until)| *until > base::clock::now())
            .map(|(a, _)| *a);
        if let Some(answer) = known {
            return Ok(answer);
        }
        let mut spec = json!({
            "user": user.name, "uid": user.uid, "groups": user.groups, "extra": user.extra,
        });
        if subresource == METRICS_PATH {
            spec["nonResourceAttributes"] = json!({"verb": verb, "path": METRICS_PATH});
        } else {
            spec["resourceAttributes"] = json!({"verb": verb, "version": "v1",
                "resource": "nodes", "subresource": subresource, "name": self.node});
        }
        let body = json!({"apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview", "spec": spec});
        let gvr = Gvr::new("authorization.k8s.io", "v1", "subjectaccessreviews");
        let answer = self.client.post_value(&gvr, "", "", "", &body).await.map_err(|error| {
            tracing::warn!(%error, "cannot review access");
            error_response(StatusCode::INTERNAL_SERVER_ERROR, "Authorization error")
        })?;
        let allowed = answer["status"]["allowed"] == true;
        let until = base::clock::now() + if allowed { ALLOWED_TTL } else { DENIED_TTL };
        let mut answers = self.reviews.lock();
        if answers.len() >= CACHED_MAX {
            answers.clear();
        }
        answers.insert(question, (allowed, until));
        Ok(allowed)
    }
}

/// The user in the status of a TokenReview.
fn user_of(user: &serde_json::Value) -> User {
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let texts =
        |value: &serde_json::Value| value.as_array().into_iter().flatten().map(text).collect();
    let extra = user["extra"].as_object().into_iter().flatten();
    User {
        name: text(&user["username"]),
        uid: text(&user["uid"]),
        groups: texts(&user["groups"]),
        extra: extra.map(|(key, values)| (key.clone(), texts(values))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Upstream's table (`pkg/kubelet/server/auth_test.go`), and paths that must be read here as by
    /// the router.
    #[test]
    fn every_path_has_the_attributes_of_upstream() {
        for (method, path, verb, subresources) in [
            ("GET", "/pods", "get", "pods proxy"),
            ("GET", "/pods/", "get", "pods proxy"),
            ("GET", "/runningpods/", "get", "pods proxy"),
            ("GET", "/healthz", "get", "healthz proxy"),
            ("GET", "/healthz/ping", "get", "healthz proxy"),
            ("GET", "/configz", "get", "configz proxy"),
            ("GET", "/statusz", "get", "statusz"),
            ("GET", "/flagz", "get", "configz"),
            ("POST", "/checkpoint/a/b/c", "create", "checkpoint"),
            ("GET", "/stats/summary", "get", "stats"),
            ("GET", "/metrics", "get", "metrics"),
            ("GET", "/metrics/resource", "get", "metrics"),
            ("GET", "/logs/x", "get", "log"),
            ("GET", "/containerLogs/a/b/c", "get", "proxy"),
            ("POST", "/exec/a/b/c", "create", "proxy"),
            ("POST", "/localVolumes/pvc-u", "create", "proxy"),
            ("DELETE", "/localVolumes/pvc-u", "delete", "proxy"),
            ("GET", "/exec/a/b/c", "get", "proxy"),
            ("PUT", "/metrics", "update", "metrics"),
            ("PATCH", "/metrics", "patch", "metrics"),
            ("DELETE", "/metrics", "delete", "metrics"),
            ("OPTIONS", "/metrics", "", "metrics"),
            ("HEAD", "/exec/a/b/c", "", "proxy"),
            ("GET", "//metrics/../exec/a/b/c", "get", "metrics"),
            ("GET", "/", "get", "proxy"),
            ("GET", "/Metrics", "get", "proxy"),
            ("GET", "/metrics%2f..%2fexec", "get", "proxy"),
            ("GET", "/podsx", "get", "proxy"),
        ] {
            let (got, all) = attributes(&method.parse().unwrap(), path);
            assert_eq!((got, all.join(" ").as_str()), (verb, subresources), "{method} {path}");
        }
        for path in ["/exec/a/b/c", "//attach/a/b/c", "/portForward/a/b"] {
            assert!(acts_in_pod(path), "{path}");
        }
        assert!(!acts_in_pod("/containerLogs/a/exec/c"));
    }

    #[test]
    fn nodes_are_recognized_by_name_and_group() {
        let user = |name: &str, group: &str| {
            user_of(&json!({"username": name, "groups": [group, "system:authenticated"]}))
        };
        assert!(user("system:node:n1", "system:nodes").is_node());
        assert!(!user("system:node:n1", "other").is_node());
        assert!(!user("admin", "system:nodes").is_node());
    }

    /// Results are cached by all attributes that a review sends.
    #[test]
    fn access_reviews_contain_all_attributes_of_the_user() {
        let user = user_of(&json!({"username": "u", "uid": "1", "groups": ["g"],
            "extra": {"authentication.kubernetes.io/pod-name": ["p"]}}));
        let other = User { extra: BTreeMap::new(), ..user.clone() };
        assert_eq!((user.name.as_str(), user.uid.as_str(), user.groups.len()), ("u", "1", 1));
        assert_eq!(user.extra["authentication.kubernetes.io/pod-name"], ["p"]);
        assert_ne!(user, other);
    }
}
