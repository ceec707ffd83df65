//! Maintains the condition `Dangling` of flow schemas: whether their priority level is missing. As
//! in upstream (`apf_controller.go`), the API server does this itself, with the same field manager.

use std::sync::Arc;

use api::value::{at, get, items, str_at, str_in};
use api::{Gvr, Status};
use futures::future::BoxFuture;
use http::{Method, Request};
use serde_json::{Value, json};

use crate::registry::metadata;
use crate::registry::watch_cache::Filter;
use crate::request::body;
use crate::request::context::Context;
use crate::request::user::User;
use crate::state::{ApiServer, ServerState};

const GROUP: &str = "flowcontrol.apiserver.k8s.io";
const SCHEMAS: &str = "flowschemas";
const LEVELS: &str = "prioritylevelconfigurations";
/// Upstream's `ConfigConsumerAsFieldManager`.
const MANAGER: &str = "api-priority-and-fairness-config-consumer-v1";
/// The maximum number of passes: levels can change while conditions are written.
const PASSES_MAX: usize = 4;

/// Updates conditions after a write of a flow schema or level; `name` is that of the object, `None`
/// for several objects.
pub(crate) async fn after_write(context: &Context, name: Option<&str>) {
    let gvr = &context.row.spec.gvr;
    let is_disabled = context.server.flow.is_none();
    if is_disabled || &*gvr.group != GROUP || !context.info.subresource.is_empty() {
        return;
    }
    let resource = gvr.resource.to_string();
    update_conditions(Arc::clone(&context.server), resource, name.map(str::to_owned)).await;
}

/// Repeats passes until no condition is wrong. Boxed, because the writes go through the server
/// itself, which makes the future recursive.
fn update_conditions(
    inner: Arc<ServerState>,
    resource: String,
    name: Option<String>,
) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        for _ in 0..PASSES_MAX {
            match run_pass(&inner, &resource, name.as_deref()).await {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) => {
                    return tracing::warn!(
                        %error,
                        "flow control: cannot update the conditions of flow schemas"
                    );
                }
            }
        }
    })
}

/// Writes the conditions that are wrong and returns their number.
async fn run_pass(
    inner: &Arc<ServerState>,
    resource: &str,
    name: Option<&str>,
) -> Result<usize, Status> {
    let levels: Vec<String> = objects(inner, LEVELS)
        .await?
        .iter()
        .map(|level| str_in(level, &["metadata", "name"]).to_owned())
        .collect();
    let mut wrong = Vec::new();
    for schema in objects(inner, SCHEMAS).await? {
        let own = str_in(&schema, &["metadata", "name"]);
        let level = level_of(&schema);
        let is_affected = match name {
            Some(name) if resource == SCHEMAS => own == name,
            Some(name) => level == name,
            None => true,
        };
        if is_affected {
            wrong.extend(condition(&schema, &levels).map(|condition| (own.to_owned(), condition)));
        }
    }
    for (name, condition) in &wrong {
        apply(inner, name, condition).await?;
    }
    Ok(wrong.len())
}

async fn objects(inner: &ServerState, resource: &str) -> Result<Vec<Value>, Status> {
    let row = inner.objects.row(&Gvr::new(GROUP, "v1", resource))?;
    let cache = inner.objects.fresh_cache(&row).await?;
    let page = cache.list(&Filter::default(), None, 0);
    Ok(page.items.iter().filter_map(|object| object.value().ok()).collect())
}

fn level_of(schema: &Value) -> &str {
    str_at(at(schema, &["spec", "priorityLevelConfiguration"]), "name")
}

/// The correct condition of a schema; `None` if the schema has it already.
fn condition(schema: &Value, levels: &[String]) -> Option<Value> {
    let level = level_of(schema);
    let what = format!(
        "This FlowSchema references the PriorityLevelConfiguration object named {}",
        api::field::go_quote(level)
    );
    let (status, reason, message) = if levels.iter().any(|known| known == level) {
        ("False", "Found", format!("{what} and it exists"))
    } else {
        ("True", "NotFound", format!("{what} but there is no such object"))
    };
    let known = items(get(schema, "status"), "conditions")
        .iter()
        .find(|condition| str_at(condition, "type") == "Dangling");
    let same = known.is_some_and(|known| {
        str_at(known, "status") == status
            && str_at(known, "reason") == reason
            && str_at(known, "message") == message
    });
    (!same).then(|| {
        json!({
            "type": "Dangling", "status": status, "reason": reason, "message": message,
            "lastTransitionTime": metadata::now(),
        })
    })
}

async fn apply(inner: &Arc<ServerState>, name: &str, condition: &Value) -> Result<(), Status> {
    let object = json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "FlowSchema", "metadata": {"name": name},
        "status": {"conditions": [condition]},
    });
    let request = Request::builder()
        .method(Method::PATCH)
        .uri(format!("/apis/{GROUP}/v1/{SCHEMAS}/{name}/status?fieldManager={MANAGER}&force=true"))
        .header(http::header::CONTENT_TYPE, "application/apply-patch+yaml")
        .body(body::full(object.to_string()))
        .map_err(|e| Status::internal(&e.to_string()))?;
    let user = User::apiserver();
    let response = ApiServer { inner: Arc::clone(inner) }.call(Some(user), request).await;
    if response.status().is_success() || response.status() == http::StatusCode::NOT_FOUND {
        return Ok(());
    }
    let bytes = body::read(response.into_body()).await?;
    Err(serde_json::from_slice(&bytes)
        .unwrap_or_else(|_| Status::internal(&String::from_utf8_lossy(&bytes))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_without_its_level_is_dangling() {
        let schema = json!({"spec": {"priorityLevelConfiguration": {"name": "p"}}});
        let found = condition(&schema, &["p".to_owned()]).unwrap();
        assert_eq!(
            (str_at(&found, "status"), str_at(&found, "reason"), str_at(&found, "message")),
            (
                "False",
                "Found",
                "This FlowSchema references the PriorityLevelConfiguration object named \"p\" and it exists"
            )
        );
        let lost = condition(&schema, &[]).unwrap();
        assert_eq!(
            (str_at(&lost, "status"), str_at(&lost, "reason"), str_at(&lost, "message")),
            (
                "True",
                "NotFound",
                "This FlowSchema references the PriorityLevelConfiguration object named \"p\" but there is no such object"
            )
        );
        let mut known = schema.clone();
        known["status"] = json!({"conditions": [found]});
        assert!(condition(&known, &["p".to_owned()]).is_none());
    }
}
