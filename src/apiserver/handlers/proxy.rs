//! Connections through the server: checks requests for logs, exec, attach, port-forward and proxies
//! and passes them to [`crate::interfaces::Connect`].

use api::field::{Error, Path};
use api::{Gvr, Status};
use http::{Request, Response};
use serde_json::{Map, Value};

use super::get;
use crate::interfaces::ConnectRequest;
use crate::request::body::Body;
use crate::request::context::Context;
use crate::request::context::RequestParts;
use crate::request::options::{FieldValidation, WriteOptions};
use crate::response::status;
use crate::write::Write;
use lookup::Lookup;

/// Handles a connection.
///
/// # Errors
/// For an unknown pod, container or node, for invalid options, or the error of admission.
pub(super) async fn connect(
    context: &Context,
    exchange: RequestParts,
) -> Result<Response<Body>, Status> {
    let info = &context.info;
    let subresource = info.subresource.as_str();
    let methods: &[&str] = match subresource {
        "log" => &["GET"],
        "exec" | "attach" | "portforward" => &["GET", "POST"],
        _ => &["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"],
    };
    if !methods.contains(&exchange.method.as_str()) {
        return Err(status::no_method());
    }
    if subresource != "log" && context.query.get("dryRun").is_some() {
        return Err(Status::bad_request("dryRun is not supported"));
    }
    let object = target(context).await?;
    count(context, subresource);
    let node = match (&*context.row.spec.gvr.resource, &object) {
        ("pods", Some(pod)) if subresource != "proxy" => {
            if subresource == "log" {
                check_log_options(context, pod)?;
                // A pod without node has no logs, which is not an error upstream.
                if node_name(pod).is_empty() {
                    let mut response = Response::new(crate::request::body::empty());
                    *response.status_mut() = http::StatusCode::NO_CONTENT;
                    return Ok(response);
                }
            } else if subresource != "portforward" {
                check_container(context, pod)?;
            }
            Some(node_of(context, pod).await?)
        }
        ("nodes", Some(node)) => Some(node.clone()),
        _ => None,
    };
    if subresource != "log" {
        let options = WriteOptions {
            dry_run: false,
            manager: String::new(),
            validation: FieldValidation::Ignore,
            force: None,
        };
        let write = Write::new(context, &options);
        write.admit_connect(&info.path_name, &options_object(context)).await?;
    }
    let Some(connect) = &context.server.parts.connect else {
        return Err(status::not_implemented(&format!("{}/{subresource}", info.resource)));
    };
    let mut request = Request::new(exchange.body);
    *request.method_mut() = exchange.method;
    *request.uri_mut() = exchange.uri;
    *request.headers_mut() = context.headers.clone();
    *request.extensions_mut() = exchange.extensions;
    let path =
        if info.rest.is_empty() { String::new() } else { format!("/{}", info.rest.join("/")) };
    let request = ConnectRequest {
        user: context.user.clone(),
        resource: info.resource.clone(),
        subresource: subresource.to_owned(),
        namespace: info.namespace.clone(),
        name: info.path_name.clone(),
        path,
        object,
        node,
        request,
    };
    connect.connect(request).await
}

/// Counts log requests, and streams over WebSocket, which are proxied unchanged.
fn count(context: &Context, subresource: &str) {
    use crate::metrics::requests as metrics;
    match subresource {
        "log" => {
            let skip = context.query.get("insecureSkipTLSVerifyBackend");
            let skips = skip.is_some_and(|v| v != "0" && !v.eq_ignore_ascii_case("false"));
            metrics::LOGS.inc(&[if skips { "skip_tls_allowed" } else { "enforce_tls" }]);
        }
        "exec" | "attach" | "portforward" if stream::upgrade::is_websocket(&context.headers) => {
            metrics::STREAMS.inc(&["proxied_to_kubelet", subresource]);
        }
        _ => {}
    }
}

/// The object of the connection; the name of a proxy may have a scheme and a port.
async fn target(context: &Context) -> Result<Option<Value>, Status> {
    if context.info.subresource != "proxy" {
        let object = get::current(context).await?;
        return object.value().map(Some).map_err(|e| Status::internal(&e.to_string()));
    }
    let parts: Vec<&str> = context.info.path_name.split(':').collect();
    let name = match parts.as_slice() {
        [name] | [name, _] => *name,
        [_, name, _] => *name,
        _ => {
            return Err(Status::bad_request(format!(
                "invalid request {}",
                api::field::go_quote(&context.info.path_name)
            )));
        }
    };
    let found =
        context.server.objects.storage().get(&context.row, context.namespace(), name).await?;
    let found = found.ok_or_else(|| context.not_found(name))?;
    found.value().map(Some).map_err(|e| Status::internal(&e.to_string()))
}

fn node_name(pod: &Value) -> &str {
    pod.pointer("/spec/nodeName").and_then(Value::as_str).unwrap_or_default()
}

async fn node_of(context: &Context, pod: &Value) -> Result<Value, Status> {
    let name = node_name(pod);
    if name.is_empty() {
        let pod = crate::registry::metadata::text(pod, "name");
        return Err(Status::bad_request(format!("pod {pod} does not have a host assigned")));
    }
    let node = context.server.objects.get_live(&Gvr::new("", "v1", "nodes"), "", name).await;
    let node = node.and_then(lookup::value)?;
    // Upstream looks the node up through the pods' registry and names it as a pod; clients see this
    // text.
    node.ok_or_else(|| Status::not_found("", "pods", name))
}

fn containers(pod: &Value) -> Vec<&str> {
    let names =
        ["initContainers", "containers", "ephemeralContainers"].into_iter().flat_map(|list| {
            let all = pod.pointer(&format!("/spec/{list}")).and_then(Value::as_array);
            all.into_iter().flatten().filter_map(|c| c.get("name").and_then(Value::as_str))
        });
    names.collect()
}

fn check_container(context: &Context, pod: &Value) -> Result<(), Status> {
    let name = crate::registry::metadata::text(pod, "name");
    let main: Vec<&str> = pod
        .pointer("/spec/containers")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|c| c.get("name").and_then(Value::as_str))
        .collect();
    match context.query.get("container").filter(|c| !c.is_empty()) {
        Some(container) if !containers(pod).contains(&container) => {
            Err(Status::bad_request(format!("container {container} is not valid for pod {name}")))
        }
        None if main.len() > 1 => {
            let given = pod
                .pointer("/metadata/annotations")
                .and_then(|a| a.get("kubectl.kubernetes.io/default-container"));
            if given.and_then(Value::as_str).is_some_and(|g| containers(pod).contains(&g)) {
                return Ok(());
            }
            let list = main.join(" ");
            Err(Status::bad_request(format!(
                "a container name must be specified for pod {name}, choose one of: [{list}]"
            )))
        }
        _ => Ok(()),
    }
}

fn check_log_options(context: &Context, pod: &Value) -> Result<(), Status> {
    let mut errors = Vec::new();
    for (key, least) in [("tailLines", 0), ("limitBytes", 1), ("sinceSeconds", 1)] {
        if let Some(value) =
            crate::request::options::integer(&context.query, key)?.filter(|v| *v < least)
        {
            errors.push(Error::invalid(
                &Path::new(key),
                value,
                format!("must be greater than {}", if least == 0 { "or equal to 0" } else { "0" }),
            ));
        }
    }
    if !errors.is_empty() {
        return Err(Status::invalid("", "PodLogOptions", &context.info.path_name, &errors));
    }
    check_container(context, pod)
}

/// The options of the connection as an object for admission.
fn options_object(context: &Context) -> Value {
    let kind = context.subresource.as_ref().map_or("", |s| &s.kind.kind);
    let mut map = Map::new();
    map.insert("kind".into(), kind.into());
    map.insert("apiVersion".into(), "v1".into());
    for (key, value) in context.query.pairs() {
        let option = match (key.as_str(), value.as_str()) {
            ("stdin" | "stdout" | "stderr" | "tty", value) => {
                Value::Bool(!matches!(value, "false" | "0" | ""))
            }
            ("command", value) => {
                let list = map.entry("command").or_insert_with(|| Value::Array(Vec::new()));
                if let Some(list) = list.as_array_mut() {
                    list.push(value.into());
                }
                continue;
            }
            (_, value) => value.into(),
        };
        map.insert(key.clone(), option);
    }
    Value::Object(map)
}

#[cfg(test)]
mod tests {
    use crate::server::tests::{answer, post, server};
    use serde_json::json;

    /// `validateContainer`, `LogLocation` and `streamLocation` of
    /// `pkg/registry/core/pod/strategy.go` and `ValidatePodLogOptions`. Without a connection to
    /// nodes, a request that passes all checks is answered with 501.
    #[tokio::test]
    async fn streams_need_a_container_a_node_and_valid_options() {
        let server = server();
        let pods = "/api/v1/namespaces/n/pods";
        for (name, containers) in [("one", &["a"] as &[&str]), ("two", &["a", "b"])] {
            let containers: Vec<_> = containers
                .iter()
                .map(|name| json!({"name": name, "image": "i", "terminationMessagePolicy": "File", "imagePullPolicy": "Always"}))
                .collect();
            let pod = json!({"metadata": {"name": name}, "spec": {"containers": containers}});
            assert_eq!(post(&server, pods, pod).await.0, 201);
        }
        let rows = [
            ("GET", "one/log", "204 "),
            ("GET", "absent/log", "404 pods \"absent\" not found"),
            ("GET", "one/log?container=x", "400 container x is not valid for pod one"),
            (
                "GET",
                "two/log",
                "400 a container name must be specified for pod two, choose one of: [a b]",
            ),
            ("GET", "two/log?container=b", "204 "),
            (
                "GET",
                "one/log?tailLines=-1",
                "422 PodLogOptions \"one\" is invalid: tailLines: Invalid value: -1: must be greater than or equal to 0",
            ),
            (
                "GET",
                "one/log?limitBytes=0",
                "422 PodLogOptions \"one\" is invalid: limitBytes: Invalid value: 0: must be greater than 0",
            ),
            (
                "GET",
                "one/log?sinceSeconds=0",
                "422 PodLogOptions \"one\" is invalid: sinceSeconds: Invalid value: 0: must be greater than 0",
            ),
            ("POST", "one/exec?command=ls", "400 pod one does not have a host assigned"),
            ("POST", "one/exec?container=x", "400 container x is not valid for pod one"),
            ("POST", "one/portforward", "400 pod one does not have a host assigned"),
            (
                "POST",
                "one/log",
                "405 the server does not allow this method on the requested resource",
            ),
            (
                "PUT",
                "one/attach",
                "405 the server does not allow this method on the requested resource",
            ),
            ("GET", "a:b:c:d/proxy", "400 invalid request \"a:b:c:d\""),
            ("GET", "absent:80/proxy/x", "404 pods \"absent\" not found"),
        ];
        for (method, path, expected) in rows {
            let answered = answer(&server, method, &format!("{pods}/{path}"), "", "").await;
            assert_eq!(answered, expected, "{method} {path}");
        }
    }
}
