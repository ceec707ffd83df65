//! LIST: from the cache, or from the store for exact revisions and further pages.

use std::sync::Arc;

use api::{Object, Status};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::Response;
use serde::{Deserialize, Serialize};
use serde_json::json;
use store::Revision;
use store::{KeyValue, RangeResponse, StoreError};

use crate::metrics::storage as metrics;
use crate::registry::Resource;
use crate::registry::selection::Selection;
use crate::registry::storage::Storage;
use crate::registry::unreadable::{REPORTED_MAX, Unreadable, list_error};
use crate::registry::watch_cache::{CachedObject, Filter};
use crate::request::body::Body;
use crate::request::context::Context;
use crate::request::options::{ListOptions, Match};
use crate::response::encode;
use crate::response::encode::ListHead;
use crate::response::status;

/// A continue token in upstream's form.
#[derive(Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(default)]
struct Token {
    v: String,
    rv: i64,
    start: String,
}

const TOKEN_VERSION: &str = "meta.k8s.io/v1";

/// Objects that are read from the store at once while a page is filled.
const CHUNK: usize = 500;

/// The filter of the request's selectors and path.
///
/// # Errors
/// 400 with upstream's texts.
pub(super) fn filter(context: &Context) -> Result<Filter, Status> {
    let labels = context.query.get("labelSelector").unwrap_or_default();
    let fields = context.query.get("fieldSelector").unwrap_or_default();
    let selection = Selection::parse(&context.row, labels, fields)?;
    let namespace = context.namespace().to_owned();
    let name = if context.info.path_name.is_empty() {
        selection.exact_name().unwrap_or_default()
    } else {
        context.info.path_name.clone()
    };
    Ok(Filter { namespace, name, selection })
}

/// Handles a list.
///
/// # Errors
/// 400 or 422 for invalid options, 410 for expired tokens and revisions.
pub(super) async fn list(context: &Context) -> Result<Response<Body>, Status> {
    context.accept()?;
    let options = ListOptions::read(&context.query, false)?;
    let filter = filter(context)?;
    let (head, items) = select(context, &options, &filter).await?;
    encode::list(context, &head, items).await
}

/// The page that the options select.
///
/// # Errors
/// As [`list`].
pub(super) async fn select(
    context: &Context,
    options: &ListOptions,
    filter: &Filter,
) -> Result<(ListHead, Vec<Arc<Object>>), Status> {
    let objects = &context.server.objects;
    if !options.continue_token.is_empty() {
        let token = decode(&options.continue_token, filter)?;
        if !matches!(options.resource_version.as_str(), "" | "0") {
            return Err(Status::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        return from_store(context, filter, &token, options.limit).await;
    }
    let revision = options.revision()?;
    let exact = options.matching == Match::Exact
        || (options.matching == Match::Unset && revision > 0 && options.limit > 0);
    if exact {
        let token = Token { v: TOKEN_VERSION.into(), rv: revision, start: String::new() };
        return from_store(context, filter, &token, options.limit).await;
    }
    let ready = if options.resource_version.is_empty() {
        objects.fresh_cache(&context.row).await
    } else {
        let cache = objects.cache(&context.row);
        cache.wait_for(revision).await.map(|()| cache)
    };
    let cache = match ready {
        Ok(cache) => cache,
        // The cache has all objects or none; from the store, only lists that contain an unreadable
        // object fail.
        Err(_) if objects.cache(&context.row).is_faulty() => {
            let found = from_store(context, filter, &Token::default(), options.limit).await?;
            if found.0.revision < revision {
                return Err(status::too_large_resource_version(revision, found.0.revision));
            }
            return Ok(found);
        }
        Err(refusal) => return Err(refusal),
    };
    // As upstream's cache, a list at version 0 ignores the limit, except of Events, which upstream
    // does not cache.
    let is_event = &*context.row.spec.gvr.resource == "events";
    let ignores_limit = options.resource_version == "0" && !is_event;
    let limit = if ignores_limit { 0 } else { options.limit };
    let kind = || vec![("type", context.row.spec.gvr.resource.as_ref().into())];
    let span = crate::request_tracing::start("cacher.GetList", kind);
    let page = cache.list(filter, None, limit);
    drop(span);
    let (gvr, selects) = (&context.row.spec.gvr, !filter.is_unselective());
    metrics::listed(gvr, metrics::CACHE, page.read, page.items.len(), selects);
    let token =
        page.last.as_deref().map(|last| encode(page.revision, last, filter)).unwrap_or_default();
    Ok((
        ListHead { revision: page.revision, continue_token: token, remaining: page.remaining },
        page.items,
    ))
}

/// As [`page_at`], with metrics.
async fn from_store(
    context: &Context,
    filter: &Filter,
    token: &Token,
    limit: usize,
) -> Result<(ListHead, Vec<Arc<Object>>), Status> {
    let (begun, mut read) = (base::clock::now(), 0);
    let found = page_at(context, filter, token, limit, &mut read).await;
    let returned = found.as_ref().map_or(0, |(_, items)| items.len());
    let gvr = &context.row.spec.gvr;
    metrics::listed(gvr, metrics::STORE, read, returned, !filter.is_unselective());
    metrics::list_took(gvr, begun);
    found
}

/// A page at an exact revision from the store; adds the number of objects read to `count`.
async fn page_at(
    context: &Context,
    filter: &Filter,
    token: &Token,
    limit: usize,
    count: &mut usize,
) -> Result<(ListHead, Vec<Arc<Object>>), Status> {
    let storage = context.server.objects.storage();
    let row = &context.row;
    // Revision -1 continues from a key in the newest state after the revision of the first page was
    // compacted.
    let mut revision = (token.rv > 0).then_some(Revision(token.rv));
    let mut start = (!token.start.is_empty()).then(|| token.start.clone());
    let mut page = PageBuilder::new(row, filter, limit);
    let chunk = match limit {
        0 => 0,
        limit if filter.is_unselective() => limit,
        _ => CHUNK,
    };
    loop {
        let found =
            storage.range_at(row, &filter.namespace, start.as_deref(), revision, chunk).await;
        let found = match found {
            Ok(found) => found,
            Err(StoreError::Compacted { .. }) => {
                return Err(expired(token, start.as_deref().map(|s| relative(s, filter))));
            }
            Err(error) => return Err(status::of_store(&error)),
        };
        let at = *revision.get_or_insert(found.revision);
        page.head.revision = at.0;
        *count += found.kvs.len();
        if let Some(last) = found.kvs.last() {
            start = Some(format!("{}\0", suffix_of(last, &page.prefix)));
        }
        if page.add(storage, &found).await || !found.more {
            return page.finish();
        }
    }
}

/// A page of a list while it is read from the store in chunks.
struct PageBuilder<'a> {
    row: &'a Resource,
    filter: &'a Filter,
    /// Objects of the page; 0 for all.
    limit: usize,
    /// The key that the filter names, which upstream reads alone.
    only: Option<String>,
    /// Prefix of the keys of the row.
    prefix: String,
    head: ListHead,
    items: Vec<Arc<Object>>,
    failed: Vec<Unreadable>,
}

impl<'a> PageBuilder<'a> {
    fn new(row: &'a Resource, filter: &'a Filter, limit: usize) -> Self {
        let is_one = !filter.name.is_empty() && row.spec.namespaced != filter.namespace.is_empty();
        Self {
            row,
            filter,
            limit,
            only: is_one.then(|| row.key(&filter.namespace, &filter.name)),
            prefix: row.key_prefix(""),
            head: ListHead::default(),
            items: Vec::new(),
            failed: Vec::new(),
        }
    }

    /// Adds the objects of a chunk that the filter matches; returns whether the page is complete.
    async fn add(&mut self, storage: &Storage, chunk: &RangeResponse) -> bool {
        let is_selected =
            |kv: &KeyValue| self.only.as_ref().is_none_or(|key| kv.key == key.as_bytes());
        let selected: Vec<(usize, &KeyValue)> =
            chunk.kvs.iter().enumerate().filter(|(_, kv)| is_selected(kv)).collect();
        let kvs: Vec<&KeyValue> = selected.iter().map(|(_, kv)| *kv).collect();
        let objects = storage.read_all(self.row, &kvs).await;
        for ((index, kv), object) in selected.into_iter().zip(objects) {
            let entry = match object {
                Ok(object) => CachedObject::new(Arc::new(object)),
                Err(unreadable) => {
                    self.failed.push(unreadable);
                    if self.failed.len() >= REPORTED_MAX {
                        return true;
                    }
                    continue;
                }
            };
            if !self.filter.matches(self.row, &entry) {
                continue;
            }
            self.items.push(Arc::clone(&entry.object));
            if self.limit > 0 && self.items.len() == self.limit {
                if chunk.more || index + 1 < chunk.kvs.len() {
                    self.end_before(index + 1, kv, chunk.count);
                }
                return true;
            }
        }
        false
    }

    /// Ends the page after the object `last`, of a range of `count` objects of which `index` are
    /// read.
    fn end_before(&mut self, index: usize, last: &KeyValue, count: usize) {
        let suffix = suffix_of(last, &self.prefix);
        self.head.continue_token = encode(self.head.revision, &suffix, self.filter);
        self.head.remaining = self.filter.is_unselective().then(|| count.saturating_sub(index));
    }

    /// The page.
    ///
    /// # Errors
    /// 500 when objects of the page cannot be read.
    fn finish(self) -> Result<(ListHead, Vec<Arc<Object>>), Status> {
        let page = (self.head, self.items);
        list_error(&self.row.spec.gvr, &self.failed).map_or(Ok(page), Err)
    }
}

/// The part of a key after the prefix.
fn suffix_of(kv: &KeyValue, prefix: &str) -> String {
    String::from_utf8_lossy(&kv.key).strip_prefix(prefix).unwrap_or_default().to_owned()
}

/// 410 with a token that continues in the newest state ("inconsistent continue").
fn expired(token: &Token, start: Option<&str>) -> Status {
    let Some(start) = start.filter(|_| !token.start.is_empty()) else {
        return Status::expired("The resourceVersion for the provided list is too old.");
    };
    let mut refusal = Status::expired(
        "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue \
         parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token \
         results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and \
         now may show up in the list.",
    );
    refusal.metadata.continue_ =
        write(&Token { v: TOKEN_VERSION.into(), rv: -1, start: start.to_owned() });
    refusal
}

fn write(token: &Token) -> String {
    URL_SAFE_NO_PAD.encode(serde_json::to_vec(token).unwrap_or_default())
}

/// The token after an object; its key is relative to the listed prefix (upstream's
/// `EncodeContinue`).
fn encode(revision: i64, last: &str, filter: &Filter) -> String {
    let relative = relative(last, filter);
    write(&Token { v: TOKEN_VERSION.into(), rv: revision, start: format!("{relative}\0") })
}

fn relative<'a>(suffix: &'a str, filter: &Filter) -> &'a str {
    if filter.namespace.is_empty() {
        suffix
    } else {
        suffix.strip_prefix(&format!("{}/", filter.namespace)).unwrap_or(suffix)
    }
}

/// Decodes a token; the start becomes relative to the prefix of the row.
fn decode(text: &str, filter: &Filter) -> Result<Token, Status> {
    let bad = |why: &str| {
        Status::bad_request(format!("invalid continue token: continue key is not valid: {why}"))
    };
    let bytes =
        go_base64(text).map_err(|at| bad(&format!("illegal base64 data at input byte {at}")))?;
    let mut token: Token =
        serde_json::from_slice(&bytes).map_err(|e| bad(&go_json_error(&bytes, &e)))?;
    if token.v != TOKEN_VERSION {
        return Err(bad(&format!(
            "server does not recognize this encoded version {}",
            api::field::go_quote(&token.v)
        )));
    }
    if token.rv == 0 {
        return Err(bad("incorrect encoded start resourceVersion (version meta.k8s.io/v1)"));
    }
    if token.start.is_empty() {
        return Err(bad("encoded start key empty (version meta.k8s.io/v1)"));
    }
    // A key with empty or dot segments could leave the prefix.
    let clean =
        token.start.trim_end_matches('\0').split('/').all(|part| !matches!(part, "" | "." | ".."));
    if !clean {
        return Err(bad(&format!("{}", token.start.escape_debug())));
    }
    if !filter.namespace.is_empty() {
        token.start = format!("{}/{}", filter.namespace, token.start);
    }
    Ok(token)
}

/// Decodes base64 like Go: trailing bits of the last character and line ends are ignored.
///
/// # Errors
/// The index of the first invalid byte.
fn go_base64(text: &str) -> Result<Vec<u8>, usize> {
    use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
    let config = GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::RequireNone);
    let bare: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    GeneralPurpose::new(&base64::alphabet::URL_SAFE, config).decode(&bare).map_err(|_| {
        let is_other = |b: u8| !(b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
        bare.bytes().position(is_other).unwrap_or(bare.len().saturating_sub(1))
    })
}

/// Go's text for a first byte that cannot begin a JSON value; other errors have the text of the
/// decoder.
fn go_json_error(bytes: &[u8], error: &serde_json::Error) -> String {
    match String::from_utf8_lossy(bytes).chars().next() {
        None => "unexpected end of JSON input".into(),
        Some(_) if bytes.first().is_some_and(|b| *b >= 0x80) => {
            let byte = bytes.first().copied().unwrap_or_default();
            format!("invalid character '\\u{byte:04x}' looking for beginning of value")
        }
        Some(first) if !matches!(first, '{' | '[' | '"' | '-' | '0'..='9' | 't' | 'f' | 'n') => {
            format!("invalid character '{first}' looking for beginning of value")
        }
        Some(_) => error.to_string(),
    }
}

/// Handles a get or list of component statuses, which are not stored: the components run in this
/// process and are healthy while it responds.
pub(super) async fn component_statuses(context: &Context) -> Result<Response<Body>, Status> {
    let named = |name: &str| {
        let value = json!({
            "kind": "ComponentStatus", "apiVersion": "v1", "metadata": {"name": name},
            "conditions": [{"type": "Healthy", "status": "True", "message": "ok"}],
        });
        Object::from_value(value).map(Arc::new).map_err(|e| Status::internal(&e.to_string()))
    };
    let names = ["scheduler", "controller-manager", "etcd-0"];
    let name = context.info.path_name.as_str();
    if name.is_empty() {
        let items = names.iter().map(|name| named(name)).collect::<Result<Vec<_>, Status>>()?;
        return encode::list(context, &ListHead::default(), items).await;
    }
    if !names.contains(&name) {
        return Err(context.not_found(name));
    }
    encode::object(context, http::StatusCode::OK, &named(name)?)
}

/// Parses fuzzer input as a token for a list of this namespace or of all.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(text: &str, namespace: &str) {
    let filter = Filter { namespace: namespace.to_owned(), ..Filter::default() };
    let Ok(token) = decode(text, &filter) else { return };
    let begin = if namespace.is_empty() { String::new() } else { format!("{namespace}/") };
    let within = token.start.strip_prefix(&begin).unwrap_or("../");
    assert!(!within.starts_with('/') && !within.contains("../"), "{token:?} leaves its prefix");
    if let Some(last) = token.start.strip_suffix('\0') {
        let again = decode(&encode(token.rv, last, &filter), &filter);
        assert_eq!(again.ok(), Some(token));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `DecodeContinue` and `EncodeContinue` of `k8s.io/apiserver/pkg/storage`, and the errors of
    /// Go's `base64` and `json`.
    #[test]
    fn continue_tokens_stay_within_their_prefix_and_have_a_version_revision_and_key() {
        let filter = Filter { namespace: "n".into(), ..Filter::default() };
        let token = decode(&encode(7, "n/a", &filter), &filter).unwrap();
        assert_eq!((token.rv, token.start.as_str()), (7, "n/a\0"));
        let token =
            |v: &str, rv, start: &str| write(&Token { v: v.into(), rv, start: start.into() });
        let rows = [
            ("x".to_owned(), "illegal base64 data at input byte 0"),
            ("ab%".to_owned(), "illegal base64 data at input byte 2"),
            ("garbage".to_owned(), "invalid character '\\u0081' looking for beginning of value"),
            (token("v0", 7, "a"), "server does not recognize this encoded version \"v0\""),
            (
                "eyJ2IjoibWV0YS5rOHMuaW8vdjEifQ".to_owned(),
                "incorrect encoded start resourceVersion (version meta.k8s.io/v1)",
            ),
            (
                token(TOKEN_VERSION, 0, "a"),
                "incorrect encoded start resourceVersion (version meta.k8s.io/v1)",
            ),
            (token(TOKEN_VERSION, 7, ""), "encoded start key empty (version meta.k8s.io/v1)"),
            (token(TOKEN_VERSION, 7, "../secrets/x"), "../secrets/x"),
        ];
        for (text, expected) in rows {
            let refused = decode(&text, &filter).unwrap_err();
            let prefix = "invalid continue token: continue key is not valid: ";
            assert_eq!((refused.code, refused.message), (400, format!("{prefix}{expected}")));
        }
    }
}
