//! `/openapi/v2` and `/openapi/v3`: rendered from the registry on first request, cached until it changes.

use std::collections::HashMap;
use std::sync::Arc;

use api::openapi::{self, Served, ServedSubresource};
use base64::Engine;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use parking_lot::Mutex;

use crate::body::{self, Body};
use crate::negotiate;
use crate::registry::Registry;
use crate::request::Query;
use crate::status;

/// The version that the documents state.
const VERSION: &str = "v1.37.1";

/// Documents of one registry, rendered when asked for.
#[derive(Debug, Default)]
pub(crate) struct OpenApi {
    /// Compressed documents with their tags, by path; valid for the registry at this address.
    rendered: Mutex<(usize, HashMap<String, Arc<Document>>)>,
}

#[derive(Debug)]
struct Document {
    gzip: Bytes,
    tag: String,
}

fn served(registry: &Registry) -> Vec<Served> {
    let texts = |list: &[Arc<str>]| list.iter().map(|v| v.to_string()).collect::<Vec<_>>();
    let rows = registry.rows().map(|row| Served {
        gvk: row.spec.gvk.clone(),
        gvr: row.spec.gvr.clone(),
        namespaced: row.spec.namespaced,
        verbs: texts(&row.spec.verbs),
        subresources: row
            .spec
            .subresources
            .iter()
            .map(|sub| ServedSubresource {
                name: sub.name.to_string(),
                gvk: if sub.kind.version.is_empty() {
                    api::Gvk::new(&row.spec.gvk.group, &row.spec.gvk.version, &sub.kind.kind)
                } else {
                    sub.kind.clone()
                },
                verbs: texts(&sub.verbs),
                connect: matches!(sub.name.as_ref(), "exec" | "attach" | "portforward" | "proxy"),
            })
            .collect(),
    });
    rows.collect()
}

impl OpenApi {
    /// Answers a path below `/openapi`; `None` when it names no document.
    pub(crate) async fn answer(
        &self,
        registry: Arc<Registry>,
        path: &str,
        headers: &HeaderMap,
        query: &Query,
    ) -> Option<Response<Body>> {
        let path = path.trim_end_matches('/').to_owned();
        let address = Arc::as_ptr(&registry) as usize;
        let known = {
            let mut rendered = self.rendered.lock();
            if rendered.0 != address {
                *rendered = (address, HashMap::new());
            }
            rendered.1.get(&path).cloned()
        };
        let document = match known {
            Some(document) => document,
            None => {
                let wanted = path.clone();
                // Rendering walks the whole schema: away from the workers that answer requests.
                let made =
                    base::tasks::blocking(move || render(&registry, &wanted)).await.ok()??;
                let document = Arc::new(made);
                self.rendered.lock().1.insert(path.clone(), Arc::clone(&document));
                document
            }
        };
        Some(respond(&document, headers, query))
    }
}

fn render(registry: &Registry, path: &str) -> Option<Document> {
    let served = served(registry);
    let schema = &registry.schema;
    let value = match path.strip_prefix("/openapi/")? {
        "v2" => openapi::v2(schema, &served, VERSION),
        "v3" => openapi::v3_index(schema, &served, VERSION),
        rest => {
            let (group, version) =
                match rest.strip_prefix("v3/")?.split('/').collect::<Vec<_>>().as_slice() {
                    ["api", version] => (String::new(), (*version).to_owned()),
                    ["apis", group, version] => ((*group).to_owned(), (*version).to_owned()),
                    _ => return None,
                };
            openapi::v3(schema, &served, &group, &version, VERSION)?
        }
    };
    let bytes = serde_json::to_vec(&value).ok()?;
    let digest = ring::digest::digest(&ring::digest::SHA512, &bytes);
    let tag =
        format!("\"{}\"", base64::engine::general_purpose::STANDARD_NO_PAD.encode(digest.as_ref()));
    Some(Document { gzip: negotiate::compress(&bytes)?.into(), tag })
}

fn respond(document: &Document, headers: &HeaderMap, query: &Query) -> Response<Body> {
    let accept = headers.get(header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or("");
    let json = accept.is_empty()
        || ["application/json", "*/*", "application/*"].iter().any(|t| accept.contains(t));
    if !json {
        return status::response(&api::Status::failure(
            406,
            "NotAcceptable",
            "only application/json is served here",
        ));
    }
    let same = headers.get(header::IF_NONE_MATCH).and_then(|v| v.to_str().ok())
        == Some(document.tag.as_str());
    let gzip = negotiate::accepts_gzip(headers);
    let mut response = if same {
        let mut response = Response::new(body::empty());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else if gzip {
        Response::new(body::full(document.gzip.clone()))
    } else {
        Response::new(body::full(negotiate::expand(&document.gzip).unwrap_or_default()))
    };
    let out = response.headers_mut();
    out.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    out.insert(header::VARY, HeaderValue::from_static("Accept-Encoding, Accept"));
    if gzip && !same {
        out.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    if let Ok(tag) = HeaderValue::from_str(&document.tag) {
        out.insert(header::ETAG, tag);
    }
    if query.get("hash").is_some() {
        out.insert(header::CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
    }
    response
}
