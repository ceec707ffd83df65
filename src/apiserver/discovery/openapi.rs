//! `/openapi/v2` and `/openapi/v3`: rendered from the registry on first request, cached until it
//! changes.

use std::collections::HashMap;
use std::sync::Arc;

use api::openapi::{self, Served, ServedSubresource};
use base64::Engine;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::aggregator::openapi::{self as beside, Described};
use crate::registry::{Registry, Resource};
use crate::request::Query;
use crate::request::body;
use crate::request::body::Body;
use crate::request::negotiate;
use crate::response::status;

/// The version that the documents state.
const VERSION: &str = "v1.37.1";

/// Documents by path and media type.
type Rendered = HashMap<String, Arc<Document>>;

/// Documents of one registry, rendered when asked for.
#[derive(Debug)]
pub(crate) struct OpenApi {
    /// Renders one at a time: each takes tens of MB for a moment, and who waits finds it made.
    turn: Semaphore,
    /// Compressed documents with their tags, by path; valid for this registry.
    rendered: Mutex<(Option<Arc<Registry>>, Rendered)>,
}

impl Default for OpenApi {
    fn default() -> Self {
        Self { turn: Semaphore::new(1), rendered: Mutex::default() }
    }
}

#[derive(Debug)]
struct Document {
    gzip: Bytes,
    /// Bytes of it when it is not compressed.
    length: usize,
    tag: String,
    media: &'static str,
}

const JSON: &str = "application/json";
/// Media types of the protobuf forms; clients also ask with an `@` before the version.
const PROTOBUF_V2: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
const PROTOBUF_V3: &str = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf";

/// The form that the clauses ask for first; `None` when none of them is served. The index is JSON
/// only.
fn form(path: &str, accept: &str) -> Option<&'static str> {
    let protobuf = match path {
        "/openapi/v2" => PROTOBUF_V2,
        "/openapi/v3" => "",
        _ => PROTOBUF_V3,
    };
    if accept.trim().is_empty() {
        return Some(JSON);
    }
    accept.split(',').find_map(|clause| {
        let media = clause.split(';').next().unwrap_or_default().trim();
        match media {
            JSON | "*/*" | "application/*" => Some(JSON),
            _ if !protobuf.is_empty() && media.replace('@', ".") == protobuf => Some(protobuf),
            _ => None,
        }
    })
}

/// What is served; of one group version alone when a document needs no more.
fn served(registry: &Registry, of: Option<(&str, &str)>) -> Vec<Served> {
    let texts = |list: &[Arc<str>]| list.iter().map(|v| v.to_string()).collect::<Vec<_>>();
    let wanted = |row: &&Arc<Resource>| {
        let gvr = &row.spec.gvr;
        row.spec.custom.is_none() || of.is_none_or(|of| of == (&*gvr.group, &*gvr.version))
    };
    let rows = registry.rows().filter(wanted).map(|row| Served {
        custom: row.spec.custom.as_ref().map(|kind| kind.openapi()),
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
    /// Answers a path below `/openapi`; `None` when it names no document. `others` is what API
    /// servers beside this one say.
    pub(crate) async fn answer(
        &self,
        registry: Arc<Registry>,
        others: Vec<Arc<Described>>,
        path: &str,
        headers: &HeaderMap,
        query: &Query,
    ) -> Option<Response<Body>> {
        let path = path.trim_end_matches('/');
        let accept = headers.get(header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or("");
        let Some(media) = form(path, accept) else {
            return Some(status::response(&api::Status::failure(
                406,
                "NotAcceptable",
                "only application/json and the protobuf forms of OpenAPI documents are served here",
            )));
        };
        let of_path = format!("{path} {media} ");
        let merges = matches!(path, "/openapi/v2" | "/openapi/v3");
        let key = format!("{of_path}{}", if merges { beside::tag(&others) } else { String::new() });
        let document = match self.known(&registry, &key) {
            Some(document) => document,
            None => {
                let _turn = self.turn.acquire().await.ok()?;
                if let Some(document) = self.known(&registry, &key) {
                    return Some(respond(&document, headers, query));
                }
                let (wanted, of) = (path.to_owned(), Arc::clone(&registry));
                // Rendering walks the whole schema: away from the workers that answer requests.
                let made =
                    base::tasks::blocking(move || render(&registry, &others, &wanted, media))
                        .await
                        .ok()??;
                let document = Arc::new(made);
                let mut rendered = self.rendered.lock();
                if rendered.0.as_ref().is_some_and(|current| Arc::ptr_eq(current, &of)) {
                    // Of what the others said before nothing is kept.
                    rendered.1.retain(|known, _| !known.starts_with(&of_path));
                    rendered.1.insert(key, Arc::clone(&document));
                }
                drop(rendered);
                document
            }
        };
        Some(respond(&document, headers, query))
    }

    /// The document, if it was made for this registry.
    fn known(&self, registry: &Arc<Registry>, key: &str) -> Option<Arc<Document>> {
        let mut rendered = self.rendered.lock();
        if !rendered.0.as_ref().is_some_and(|of| Arc::ptr_eq(of, registry)) {
            *rendered = (Some(Arc::clone(registry)), HashMap::new());
        }
        rendered.1.get(key).cloned()
    }
}

fn render(
    registry: &Registry,
    others: &[Arc<Described>],
    path: &str,
    media: &'static str,
) -> Option<Document> {
    let schema = &registry.schema;
    let mut value = match path.strip_prefix("/openapi/")? {
        "v2" => openapi::v2(schema, &served(registry, None), VERSION),
        "v3" => openapi::v3_index(schema, &served(registry, None), VERSION),
        rest => {
            let (group, version) =
                match rest.strip_prefix("v3/")?.split('/').collect::<Vec<_>>().as_slice() {
                    ["api", version] => (String::new(), (*version).to_owned()),
                    ["apis", group, version] => ((*group).to_owned(), (*version).to_owned()),
                    _ => return None,
                };
            let served = served(registry, Some((&group, &version)));
            openapi::v3(schema, &served, &group, &version, VERSION)?
        }
    };
    match path {
        "/openapi/v2" => beside::merge(&mut value, others),
        "/openapi/v3" => beside::list(&mut value, others),
        _ => {}
    }
    let bytes = match media {
        PROTOBUF_V2 => openapi::v2_protobuf(&value),
        PROTOBUF_V3 => openapi::v3_protobuf(&value),
        _ => Ok(serde_json::to_vec(&value).ok()?),
    };
    let bytes = match bytes {
        Ok(bytes) => bytes,
        // What another server says must not take this one's document away.
        Err(error) if !others.is_empty() => {
            tracing::warn!(%error, path, "what another API server says of itself cannot be written with the rest");
            return render(registry, &[], path, media);
        }
        Err(error) => {
            tracing::error!(%error, path, "rendering OpenAPI");
            return None;
        }
    };
    let digest = ring::digest::digest(&ring::digest::SHA512, &bytes);
    let tag =
        format!("\"{}\"", base64::engine::general_purpose::STANDARD_NO_PAD.encode(digest.as_ref()));
    let length = bytes.len();
    Some(Document { gzip: negotiate::compress(&bytes)?.into(), length, tag, media })
}

fn respond(document: &Document, headers: &HeaderMap, query: &Query) -> Response<Body> {
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
        Response::new(body::expanding(document.gzip.clone(), document.length))
    };
    let out = response.headers_mut();
    out.insert(header::CONTENT_TYPE, HeaderValue::from_static(document.media));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_clause_that_is_served_wins() {
        let old = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
        assert_eq!(form("/openapi/v2", old), Some(PROTOBUF_V2));
        assert_eq!(form("/openapi/v2", &format!("text/html, {PROTOBUF_V3}")), None);
        assert_eq!(form("/openapi/v3", PROTOBUF_V3), None);
        assert_eq!(form("/openapi/v3/api/v1", "application/json;q=0.9"), Some(JSON));
        assert_eq!(form("/openapi/v3/api/v1", &format!("{PROTOBUF_V3}, */*")), Some(PROTOBUF_V3));
    }
}
