//! Writes the objects that every cluster starts with, through the API server.

use api::{Gvr, Status};
use apiserver::request::body;
use apiserver::{ApiServer, User};
use async_trait::async_trait;
use client::Client;
use http::{Method, Request};
use http_body_util::BodyExt;
use serde_json::Value;

/// Writes objects through all filters, admission and validation, as the API server itself.
pub(crate) struct BootstrapWriter {
    server: ApiServer,
    user: User,
}

impl BootstrapWriter {
    /// Creates a writer for this server.
    pub(crate) fn new(server: ApiServer) -> Self {
        Self { server, user: User::apiserver() }
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        object: Option<&Value>,
    ) -> Result<Value, Status> {
        let bytes = object
            .map(serde_json::to_vec)
            .transpose()
            .map_err(|e| Status::internal(&e.to_string()))?
            .unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", "application/json")
            .header("accept", "application/json")
            .header("user-agent", "kube-apiserver")
            .body(body::full(bytes))
            .map_err(|e| Status::internal(&e.to_string()))?;
        let response = self.server.call(Some(self.user.clone()), request).await;
        let code = response.status().as_u16();
        let bytes = response
            .into_body()
            .collect()
            .await
            .map_err(|e| Status::internal(&e.to_string()))?
            .to_bytes();
        if code < 400 {
            return serde_json::from_slice(&bytes).map_err(|e| Status::internal(&e.to_string()));
        }
        Err(serde_json::from_slice(&bytes).unwrap_or_else(|_| {
            Status::failure(code, "", String::from_utf8_lossy(&bytes).into_owned())
        }))
    }
}

fn name(object: &Value) -> &str {
    object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default()
}

#[async_trait]
impl apiserver::bootstrap::Writer for BootstrapWriter {
    fn serves(&self, gvr: &Gvr) -> bool {
        self.server.objects().row(gvr).is_ok()
    }

    async fn get(&self, gvr: &Gvr, namespace: &str, name: &str) -> Result<Option<Value>, Status> {
        match self.send(Method::GET, &Client::path(gvr, namespace, name, ""), None).await {
            Err(error) if error.is("NotFound") => Ok(None),
            answer => answer.map(Some),
        }
    }

    async fn create(&self, gvr: &Gvr, namespace: &str, object: Value) -> Result<(), Status> {
        self.send(Method::POST, &Client::path(gvr, namespace, "", ""), Some(&object))
            .await
            .map(drop)
    }

    async fn update(&self, gvr: &Gvr, namespace: &str, object: Value) -> Result<(), Status> {
        self.send(Method::PUT, &Client::path(gvr, namespace, name(&object), ""), Some(&object))
            .await
            .map(drop)
    }

    async fn delete(&self, gvr: &Gvr, namespace: &str, name: &str) -> Result<(), Status> {
        self.send(Method::DELETE, &Client::path(gvr, namespace, name, ""), None).await.map(drop)
    }
}
