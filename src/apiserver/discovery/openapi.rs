//! Serves `/openapi/v2` and `/openapi/v3`: documents are rendered on first request, and cached
//! until the registry changes.

use std::collections::HashMap;
use std::sync::Arc;

use api::openapi::{self, Served, ServedSubresource};
use base64::Engine;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::aggregator::openapi::{self as aggregated, Described};
use crate::registry::{Registry, Resource};
use crate::request::Query;
use crate::request::body;
use crate::request::body::Body;
use crate::request::negotiate;
use crate::response::status;

/// The version in the documents.
const VERSION: &str = "v1.37.1";

/// Documents by path and media type.
type Rendered = HashMap<String, Arc<Document>>;

/// The rendered documents of one registry.
#[derive(Debug)]
pub(crate) struct OpenApi {
    /// Allows one rendering at a time, because each needs tens of MB of memory temporarily.
    turn: Semaphore,
    /// The compressed documents, and the registry for which they are valid.
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
    /// The uncompressed size in bytes.
    length: usize,
    tag: String,
    media: &'static str,
}

const JSON: &str = "application/json";
/// Media types of the protobuf forms; clients also ask with an `@` before the version.
const PROTOBUF_V2: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
const PROTOBUF_V3: &str = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf";

/// The media type of the first supported clause; `None` if there is none. The index is only
/// available as JSON.
fn media_type(path: &str, accept: &str) -> Option<&'static str> {
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

/// The served resources. With `of` (group and version), other custom resources are omitted.
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
    /// The response for a path below `/openapi`; `None` if there is no such document. `others` are
    /// the documents of aggregated API servers.
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
        let Some(media) = media_type(path, accept) else {
            return Some(status::response(&api::Status::failure(
                406,
                "NotAcceptable",
                "only application/json and the protobuf forms of OpenAPI documents are served here",
            )));
        };
        let of_path = format!("{path} {media} ");
        let merges = matches!(path, "/openapi/v2" | "/openapi/v3");
        let key =
            format!("{of_path}{}", if merges { aggregated::tag(&others) } else { String::new() });
        let document = match self.cached(&registry, &key) {
            Some(document) => document,
            None => {
                let _turn = self.turn.acquire().await.ok()?;
                if let Some(document) = self.cached(&registry, &key) {
                    return Some(respond(&document, headers, query));
                }
                let (wanted, of) = (path.to_owned(), Arc::clone(&registry));
                // Rendering is expensive, so it runs on a blocking thread.
                let made =
                    base::tasks::blocking(move || render(&registry, &others, &wanted, media))
                        .await
                        .ok()??;
                let document = Arc::new(made);
                let mut rendered = self.rendered.lock();
                if rendered.0.as_ref().is_some_and(|current| Arc::ptr_eq(current, &of)) {
                    // Remove the document with the previous versions of the others' documents.
                    rendered.1.retain(|known, _| !known.starts_with(&of_path));
                    rendered.1.insert(key, Arc::clone(&document));
                }
                drop(rendered);
                document
            }
        };
        Some(respond(&document, headers, query))
    }

    /// The cached document of this registry.
    fn cached(&self, registry: &Arc<Registry>, key: &str) -> Option<Arc<Document>> {
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
        "/openapi/v2" => aggregated::merge(&mut value, others),
        "/openapi/v3" => aggregated::list(&mut value, others),
        _ => {}
    }
    let bytes = match media {
        PROTOBUF_V2 => openapi::v2_protobuf(&value),
        PROTOBUF_V3 => openapi::v3_protobuf(&value),
        _ => Ok(serde_json::to_vec(&value).ok()?),
    };
    let bytes = match bytes {
        Ok(bytes) => bytes,
        // An invalid document of another API server must not prevent serving this server's.
        Err(error) if !others.is_empty() => {
            tracing::warn!(
                %error,
                path,
                "cannot merge the OpenAPI documents of aggregated API servers"
            );
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
    fn the_first_supported_clause_is_selected() {
        let old = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
        assert_eq!(media_type("/openapi/v2", old), Some(PROTOBUF_V2));
        assert_eq!(media_type("/openapi/v2", &format!("text/html, {PROTOBUF_V3}")), None);
        assert_eq!(media_type("/openapi/v3", PROTOBUF_V3), None);
        assert_eq!(media_type("/openapi/v3/api/v1", "application/json;q=0.9"), Some(JSON));
        assert_eq!(
            media_type("/openapi/v3/api/v1", &format!("{PROTOBUF_V3}, */*")),
            Some(PROTOBUF_V3)
        );
    }
}
