//! Who asks, and may they: a client certificate or a token that the API server knows, then its word on every request.

use std::collections::HashMap;
use std::time::Duration;

use api::Gvr;
use client::Client;
use http::{Method, Response, StatusCode};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;

use super::{Body, text};

/// How long answers hold (`KubeletConfiguration`: webhook cache times).
const ALLOWED_FOR: Duration = Duration::from_secs(300);
const DENIED_FOR: Duration = Duration::from_secs(30);
const TOKEN_FOR: Duration = Duration::from_secs(120);
/// Remembered answers; when full all are forgotten.
const REMEMBERED_MAX: usize = 1024;

/// Somebody.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct User {
    name: String,
    groups: Vec<String>,
}

/// The user of a client certificate, whose chain TLS has verified: common name and organizations.
pub(super) fn from_certificate(der: &[u8]) -> Option<User> {
    let (_, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
    let subject = certificate.subject();
    let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    let mut groups: Vec<String> =
        subject.iter_organization().filter_map(|o| o.as_str().ok()).map(str::to_owned).collect();
    groups.push("system:authenticated".to_owned());
    Some(User { name, groups })
}

/// What was asked: user, verb, subresource.
type Question = (User, &'static str, &'static str);
/// Answers and until when they hold.
type Answers = HashMap<Question, (bool, Instant)>;
/// Users by token digest.
type Users = HashMap<String, (User, Instant)>;

/// Asks the API server, and remembers for a while.
#[derive(Debug)]
pub(super) struct Auth {
    client: Client,
    node: String,
    users: Mutex<Users>,
    answers: Mutex<Answers>,
}

type Refusal = Box<Response<Body>>;

fn refuse(status: StatusCode, message: impl Into<String>) -> Refusal {
    Box::new(text(status, message))
}

/// Verb and subresource of a request, as the kubelet maps them.
fn attributes(method: &Method, path: &str) -> (&'static str, &'static str) {
    let verb = match *method {
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "get",
    };
    let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
    let subresource = match first {
        "stats" => "stats",
        "metrics" => "metrics",
        "logs" => "log",
        "pods" | "runningpods" => "pods",
        "healthz" => "healthz",
        _ => "proxy",
    };
    (verb, subresource)
}

impl Auth {
    pub(super) fn new(client: Client, node: &str) -> Self {
        Self { client, node: node.to_owned(), users: Mutex::default(), answers: Mutex::default() }
    }

    /// The user of a bearer token.
    pub(super) async fn by_token(&self, header: &str) -> Result<User, Refusal> {
        let unauthorized = || refuse(StatusCode::UNAUTHORIZED, "Unauthorized");
        let token = header.strip_prefix("Bearer ").ok_or_else(unauthorized)?.trim();
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
        let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}});
        let gvr = Gvr::new("authentication.k8s.io", "v1", "tokenreviews");
        let answer = self.client.post_value(&gvr, "", "", "", &body).await.map_err(|error| {
            tracing::warn!(%error, "cannot ask the API server about a token");
            unauthorized()
        })?;
        let status = &answer["status"];
        if status["authenticated"] != true {
            return Err(unauthorized());
        }
        let groups = status["user"]["groups"].as_array().into_iter().flatten();
        let user = User {
            name: status["user"]["username"].as_str().unwrap_or_default().to_owned(),
            groups: groups.filter_map(|g| g.as_str()).map(str::to_owned).collect(),
        };
        let mut users = self.users.lock();
        if users.len() >= REMEMBERED_MAX {
            users.clear();
        }
        users.insert(digest, (user.clone(), base::clock::now() + TOKEN_FOR));
        Ok(user)
    }

    /// Whether the user may; some subresources are also open to who may use `nodes/proxy`.
    pub(super) async fn allow(
        &self,
        user: &User,
        method: &Method,
        path: &str,
    ) -> Result<(), Refusal> {
        let (verb, subresource) = attributes(method, path);
        if self.ask(user, verb, subresource).await? {
            return Ok(());
        }
        if matches!(subresource, "pods" | "healthz") && self.ask(user, verb, "proxy").await? {
            return Ok(());
        }
        Err(refuse(
            StatusCode::FORBIDDEN,
            format!(
                "Forbidden (user={}, verb={verb}, resource=nodes, subresource(s)=[{subresource}])",
                user.name
            ),
        ))
    }

    async fn ask(
        &self,
        user: &User,
        verb: &'static str,
        subresource: &'static str,
    ) -> Result<bool, Refusal> {
        let question = (user.clone(), verb, subresource);
        let known = self
            .answers
            .lock()
            .get(&question)
            .filter(|(_, until)| *until > base::clock::now())
            .map(|(a, _)| *a);
        if let Some(answer) = known {
            return Ok(answer);
        }
        let body = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {
            "user": user.name, "groups": user.groups,
            "resourceAttributes": {"verb": verb, "version": "v1", "resource": "nodes", "subresource": subresource, "name": self.node},
        }});
        let gvr = Gvr::new("authorization.k8s.io", "v1", "subjectaccessreviews");
        let answer = self.client.post_value(&gvr, "", "", "", &body).await.map_err(|error| {
            tracing::warn!(%error, "cannot ask the API server about a permission");
            refuse(StatusCode::INTERNAL_SERVER_ERROR, "Authorization error")
        })?;
        let allowed = answer["status"]["allowed"] == true;
        let until = base::clock::now() + if allowed { ALLOWED_FOR } else { DENIED_FOR };
        let mut answers = self.answers.lock();
        if answers.len() >= REMEMBERED_MAX {
            answers.clear();
        }
        answers.insert(question, (allowed, until));
        Ok(allowed)
    }
}
