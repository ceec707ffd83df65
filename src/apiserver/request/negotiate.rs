//! Content negotiation: Accept, Content-Type and gzip. Clauses of equal quality keep the client's
//! order.

use std::io::Write;

use api::Status;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use sorting::CompactSort as _;

use crate::Body;
use crate::request::Query;
use crate::request::body;

/// Encoding of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Media {
    /// `application/json`
    Json,
    /// `application/yaml`
    Yaml,
    /// `application/vnd.kubernetes.protobuf`
    Protobuf,
}

impl Media {
    /// The media type's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Yaml => "application/yaml",
            Self::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }
}

/// The transformation of an object before it is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transform {
    /// Nothing.
    #[default]
    None,
    /// `meta.k8s.io` Table.
    Table,
    /// `PartialObjectMetadata`.
    Partial,
    /// `PartialObjectMetadataList`.
    PartialList,
}

/// The negotiated form of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// Encoding.
    pub media: Media,
    /// Transformation.
    pub transform: Transform,
    /// Version of the transformation: `v1` or `v1beta1`.
    pub transform_version: String,
    /// Indented JSON.
    pub pretty: bool,
}

/// One clause of an Accept header.
struct Clause<'a> {
    main: &'a str,
    sub: &'a str,
    quality: f64,
    parameters: Vec<(&'a str, &'a str)>,
}

fn clauses(text: &str) -> Vec<Clause<'_>> {
    let mut all: Vec<Clause<'_>> = text.split(',').filter_map(clause).collect();
    // Stable: equal qualities keep the client's order.
    all.compact_sort_by(|a, b| b.quality.total_cmp(&a.quality));
    all
}

fn clause(text: &str) -> Option<Clause<'_>> {
    let mut parts = text.split(';').map(str::trim);
    let (main, sub) = parts.next()?.split_once('/').unwrap_or(("*", "*"));
    let parameters: Vec<(&str, &str)> =
        parts.filter_map(|p| p.split_once('=')).map(|(k, v)| (k.trim(), v.trim())).collect();
    let quality =
        parameters.iter().find(|(k, _)| *k == "q").and_then(|(_, v)| v.parse().ok()).unwrap_or(1.0);
    Some(Clause { main, sub, quality, parameters })
}

fn media_of(clause: &Clause<'_>) -> Option<Media> {
    match (clause.main, clause.sub) {
        ("*", "*") | ("application", "*" | "json") => Some(Media::Json),
        ("application", "yaml") => Some(Media::Yaml),
        ("application", "vnd.kubernetes.protobuf") => Some(Media::Protobuf),
        _ => None,
    }
}

/// The forms that a route offers.
#[derive(Debug, Clone, Copy)]
pub struct Offer {
    /// Whether the route offers Table and partial metadata.
    pub transforms: bool,
    /// Whether the route also serves watches, so that the error lists the streaming media types.
    pub streams: bool,
}

/// The best acceptable form.
///
/// # Errors
/// 406 with upstream's two texts: of the router when no type matches, of the negotiator when a
/// parameter cannot be met.
pub fn accept(headers: &HeaderMap, query: &Query, offer: Offer) -> Result<Accepted, Status> {
    let text = headers.get(header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or("").trim();
    let pretty = wants_pretty(headers, query);
    let plain = |media| Accepted {
        media,
        transform: Transform::None,
        transform_version: String::new(),
        pretty,
    };
    if text.is_empty() {
        return Ok(plain(Media::Json));
    }
    let clauses = clauses(text);
    if !clauses.iter().any(|c| media_of(c).is_some()) {
        return Err(not_acceptable_route(offer));
    }
    for clause in &clauses {
        let Some(media) = media_of(clause) else { continue };
        let get = |key: &str| clause.parameters.iter().find(|(k, _)| *k == key).map(|(_, v)| *v);
        let mut accepted = plain(media);
        accepted.pretty |= get("pretty") == Some("1");
        // Only these two can be streamed, and only as a watch.
        match get("stream") {
            None | Some("") => {}
            Some("watch") if media != Media::Yaml => {}
            Some(_) => continue,
        }
        let Some(kind) = get("as") else {
            // A group or version without a kind is not a transformation.
            if get("g").is_some() || get("v").is_some() {
                continue;
            }
            return Ok(accepted);
        };
        let version = get("v").unwrap_or_default();
        if !offer.transforms
            || get("g") != Some("meta.k8s.io")
            || !matches!(version, "v1" | "v1beta1")
        {
            continue;
        }
        accepted.transform_version = version.to_owned();
        accepted.transform = match kind {
            // Tables have no protobuf form.
            "Table" if media == Media::Protobuf => continue,
            "Table" => Transform::Table,
            "PartialObjectMetadata" => Transform::Partial,
            "PartialObjectMetadataList" => Transform::PartialList,
            _ => continue,
        };
        return Ok(accepted);
    }
    Err(Status::failure(
        406,
        "NotAcceptable",
        "only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf",
    ))
}

/// Media types that the router accepts: an exact match or `*/*`, ignoring parameters.
///
/// # Errors
/// 406 with the router's text.
pub fn accept_route(headers: &HeaderMap, offer: Offer) -> Result<(), Status> {
    let text = headers.get(header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or("").trim();
    let is_produced = |clause: &str| {
        let name = clause.split(';').next().unwrap_or_default().trim();
        name == "*/*"
            || [Media::Json, Media::Yaml, Media::Protobuf].iter().any(|media| media.name() == name)
    };
    if text.is_empty() || text.split(',').any(is_produced) {
        return Ok(());
    }
    Err(not_acceptable_route(offer))
}

/// 406 for a transformation that the object does not have.
pub(crate) fn not_acceptable() -> Status {
    let text = "only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf";
    Status::failure(406, "NotAcceptable", text)
}

fn not_acceptable_route(offer: Offer) -> Status {
    let mut types =
        "application/json, application/yaml, application/vnd.kubernetes.protobuf".to_owned();
    if offer.streams {
        types.push_str(
            ", application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch",
        );
    }
    let mut status = Status::failure(
        406,
        "NotAcceptable",
        format!("406: Not Acceptable\n\nAvailable representations: {types}"),
    );
    status.details = Some(api::status::Details::default());
    status
}

/// Whether JSON is indented: for `?pretty=true` and for browsers, curl and wget (upstream's
/// `isPrettyPrint`).
pub(crate) fn wants_pretty(headers: &HeaderMap, query: &Query) -> bool {
    if let Some(value) = query.get("pretty") {
        return matches!(value, "1" | "t" | "T" | "true" | "TRUE" | "True");
    }
    let agent = headers.get(header::USER_AGENT).and_then(|v| v.to_str().ok()).unwrap_or("");
    ["curl", "Wget", "Mozilla/5.0"].iter().any(|prefix| agent.starts_with(prefix))
}

/// The encoding of a request's body.
///
/// # Errors
/// 415 with upstream's text.
pub fn content_type(headers: &HeaderMap) -> Result<Media, Status> {
    let text = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("").trim();
    match text.split(';').next().unwrap_or("").trim() {
        // Upstream treats curl's default Accept header as absent, which means JSON.
        "" if text.is_empty() => Ok(Media::Json),
        "application/json" => Ok(Media::Json),
        "application/yaml" => Ok(Media::Yaml),
        "application/vnd.kubernetes.protobuf" => Ok(Media::Protobuf),
        _ => Err(unsupported()),
    }
}

/// 415 with upstream's text.
pub(crate) fn unsupported() -> Status {
    Status::failure(
        415,
        "UnsupportedMediaType",
        "the body of the request was in an unknown format - accepted media types include: application/json, application/yaml, \
         application/vnd.kubernetes.protobuf",
    )
}

/// Upstream's `defaultGzipThresholdBytes`.
pub(crate) const GZIP_FROM: usize = 128 * 1024;

/// Upstream's compression level, the fastest.
pub(crate) const GZIP_LEVEL: u32 = 1;

/// A response with these bytes, compressed when the client accepts gzip and the body is large.
pub fn respond(
    headers: &HeaderMap,
    code: StatusCode,
    content_type: &'static str,
    bytes: Vec<u8>,
) -> Response<Body> {
    let gzip = bytes.len() > GZIP_FROM && accepts_gzip(headers);
    let bytes = if gzip {
        compress(&bytes).map_or_else(|| (bytes, false), |small| (small, true))
    } else {
        (bytes, false)
    };
    base::memory::worked(bytes.0.len());
    response(body::full(Bytes::from(bytes.0)), code, content_type, bytes.1)
}

/// A response with the headers that all documents have.
pub(crate) fn response(
    body: Body,
    code: StatusCode,
    content_type: &'static str,
    gzip: bool,
) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    let out = response.headers_mut();
    out.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    if gzip {
        out.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        out.insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    }
    response
}

/// Whether the client accepts gzip.
pub fn accepts_gzip(headers: &HeaderMap) -> bool {
    let text = headers.get(header::ACCEPT_ENCODING).and_then(|v| v.to_str().ok()).unwrap_or("");
    text.split(',').any(|part| part.split(';').next().map(str::trim) == Some("gzip"))
}

/// Gzip at upstream's level.
pub fn compress(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut encoder = flate2::write::GzEncoder::new(
        Vec::with_capacity(bytes.len() / 4),
        flate2::Compression::new(GZIP_LEVEL),
    );
    encoder.write_all(bytes).ok()?;
    encoder.finish().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFER: Offer = Offer { transforms: true, streams: false };

    fn of(text: &str) -> Result<(Media, Transform), u16> {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, text.parse().unwrap());
        accept(&headers, &Query::default(), OFFER)
            .map(|a| (a.media, a.transform))
            .map_err(|s| s.code)
    }

    #[test]
    fn first_acceptable_clause_wins_and_unknown_transforms_are_skipped() {
        assert_eq!(
            of("application/json;as=Table;v=v1;g=meta.k8s.io,application/json"),
            Ok((Media::Json, Transform::Table))
        );
        assert_eq!(
            of("application/json;as=Table;v=v2;g=meta.k8s.io,application/json"),
            Ok((Media::Json, Transform::None))
        );
        assert_eq!(of("application/json;as=Table;v=v2;g=meta.k8s.io"), Err(406));
        assert_eq!(
            of("application/vnd.kubernetes.protobuf, */*"),
            Ok((Media::Protobuf, Transform::None))
        );
        assert_eq!(
            of("application/json;q=0.5, application/yaml"),
            Ok((Media::Yaml, Transform::None))
        );
        assert_eq!(of("text/csv"), Err(406));
    }

    /// `RequestScope.AllowsMediaTypeTransform` and `acceptMediaTypeOptions` of k8s.io/apiserver.
    #[test]
    fn tables_have_no_protobuf_and_yaml_is_not_streamed() {
        let table = "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io";
        assert_eq!(of(table), Err(406));
        assert_eq!(of(&format!("{table}, application/json")), Ok((Media::Json, Transform::None)));
        assert_eq!(
            of("application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"),
            Ok((Media::Protobuf, Transform::Partial))
        );
        assert_eq!(of("application/yaml;stream=watch"), Err(406));
        assert_eq!(of("application/json;stream=else"), Err(406));
        assert_eq!(of("application/json;stream=watch"), Ok((Media::Json, Transform::None)));
        assert_eq!(of("application/json;g=meta.k8s.io;v=v1"), Err(406));
    }

    #[test]
    fn the_router_accepts_only_complete_media_types() {
        let route = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, text.parse().unwrap());
            accept_route(&headers, OFFER).map_err(|s| s.message)
        };
        let refused = "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml, application/vnd.kubernetes.protobuf";
        assert_eq!(route("nonsense"), Err(refused.to_owned()));
        assert_eq!(route("application/cbor"), Err(refused.to_owned()));
        assert_eq!(route("text/html, */*;q=0.1"), Ok(()));
        assert_eq!(route("application/json;as=Nope"), Ok(()));
    }
}
