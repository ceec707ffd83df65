//! Chunked responses: a large body is encoded chunk by chunk while it is sent, so that memory never
//! contains the whole body.

use std::io::Write;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll};

use api::{Object, Status};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::{HeaderMap, Response};
use http_body::Frame;
use http_body_util::BodyExt;
use serde_json::Value;

use crate::request::body::{Body, BodyError};
use crate::request::negotiate;

/// Size of the stored objects in bytes above which a list is sent in chunks. Upstream compresses
/// responses above the same size.
pub(crate) const CHUNKED_FROM_BYTES: usize = negotiate::GZIP_FROM;

/// Bytes of one chunk.
pub(crate) const CHUNK_BYTES: usize = 64 * 1024;

/// Objects that are decoded at once in forms that need values.
const DECODED_AT_ONCE: usize = 32;

/// Appends the next chunk of about [`CHUNK_BYTES`]; returns whether more follows.
pub(crate) type Source = Box<dyn FnMut(&mut Vec<u8>) -> Result<bool, Status> + Send>;

/// Sends the chunks of the source, compressed when the client accepts gzip.
pub(crate) fn chunked_response(
    headers: &HeaderMap,
    content_type: &'static str,
    source: Source,
) -> Response<Body> {
    let gzip = negotiate::accepts_gzip(headers)
        .then(|| GzEncoder::new(Vec::new(), Compression::new(negotiate::GZIP_LEVEL)));
    let compressed = gzip.is_some();
    let body = ChunkedBody { source: Some(source), gzip };
    negotiate::response(body.boxed_unsync(), http::StatusCode::OK, content_type, compressed)
}

struct ChunkedBody {
    /// The source of the next chunks; `None` when everything is sent.
    source: Option<Source>,
    gzip: Option<GzEncoder<Vec<u8>>>,
}

impl ChunkedBody {
    /// The next bytes to send; `None` at the end.
    fn next(&mut self) -> Result<Option<Vec<u8>>, BodyError> {
        let mut out = Vec::with_capacity(CHUNK_BYTES + CHUNK_BYTES / 4);
        while let Some(source) = &mut self.source {
            let more = source(&mut out).inspect_err(|error| {
                tracing::warn!(%error, "response: cannot encode the next chunk");
            });
            if !more.map_err(|error| error.to_string())? {
                self.source = None;
            }
            let Some(gzip) = &mut self.gzip else { break };
            gzip.write_all(&out)?;
            out.clear();
            if self.source.is_some() && gzip.get_ref().len() < CHUNK_BYTES {
                continue;
            }
            out = match self.gzip.take_if(|_| self.source.is_none()) {
                Some(gzip) => gzip.finish()?,
                None => self.gzip.as_mut().map(|g| std::mem::take(g.get_mut())).unwrap_or_default(),
            };
            break;
        }
        base::memory::worked(out.len());
        Ok((!out.is_empty()).then_some(out))
    }
}

impl http_body::Body for ChunkedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut task::Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Poll::Ready(self.next().map(|bytes| bytes.map(|b| Frame::data(b.into()))).transpose())
    }

    fn is_end_stream(&self) -> bool {
        self.source.is_none()
    }
}

/// Writes one item.
pub(crate) type Writer = Box<dyn FnMut(&Object, &mut Vec<u8>) + Send>;

/// A source of `before`, the comma-separated items that `each` writes, and `after`.
pub(crate) fn of_items(
    before: Vec<u8>,
    items: Vec<Arc<Object>>,
    mut each: Writer,
    after: &'static [u8],
) -> Source {
    let (mut before, mut items) = (Some(before), items.into_iter());
    Box::new(move |out| {
        let mut first = before.take().inspect(|before| out.extend_from_slice(before)).is_some();
        for object in items.by_ref() {
            if !std::mem::take(&mut first) {
                out.push(b',');
            }
            each(&object, out);
            if out.len() >= CHUNK_BYTES {
                return Ok(true);
            }
        }
        out.extend_from_slice(after);
        Ok(false)
    })
}

/// Converts some objects to values.
pub(crate) type Values = Box<dyn FnMut(&[Arc<Object>]) -> Result<Vec<Value>, Status> + Send>;

/// The text form of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Json,
    /// With line breaks and indentation.
    Pretty,
    Yaml,
}

impl Form {
    /// The bytes before and after the items of the list `field`.
    fn around(self, whole: &Value, field: &str) -> (Vec<u8>, Vec<u8>) {
        match (self, whole) {
            (Self::Json, _) => around(whole, field, false),
            (Self::Pretty, _) => around(whole, field, true),
            (Self::Yaml, Value::Object(map)) => {
                let (before, after) = api::codec::yaml::write_around(map, field);
                (before.into_bytes(), after.into_bytes())
            }
            (Self::Yaml, _) => Default::default(),
        }
    }

    fn item(self, value: Value, first: bool, out: &mut Vec<u8>) {
        // Writing to memory cannot fail.
        match self {
            Self::Json => {
                if !first {
                    out.push(b',');
                }
                let _ = serde_json::to_writer(out, &value);
            }
            Self::Pretty => {
                out.extend_from_slice(if first { b"\n    " } else { b",\n    " });
                pretty(&value, "    ", out);
            }
            Self::Yaml => out.extend_from_slice(api::codec::yaml::write_item(value).as_bytes()),
        }
    }
}

/// The document `whole` whose list `field` contains the values of the objects; there is at least
/// one.
pub(crate) fn of_values(
    whole: &Value,
    field: &str,
    form: Form,
    items: Vec<Arc<Object>>,
    mut values: Values,
) -> Source {
    let (before, after) = form.around(whole, field);
    let (mut before, mut items) = (Some(before), items.into_iter());
    Box::new(move |out| {
        let mut first = before.take().inspect(|before| out.extend_from_slice(before)).is_some();
        while items.len() > 0 && out.len() < CHUNK_BYTES {
            let some: Vec<Arc<Object>> = items.by_ref().take(DECODED_AT_ONCE).collect();
            for value in values(&some)? {
                form.item(value, std::mem::take(&mut first), out);
            }
        }
        if items.len() > 0 {
            return Ok(true);
        }
        out.extend_from_slice(&after);
        Ok(false)
    })
}

/// The bytes before and after the items of a document's list, indented or not.
fn around(whole: &Value, field: &str, indented: bool) -> (Vec<u8>, Vec<u8>) {
    let (line, colon, close, end): (&[u8], &[u8], &[u8], &[u8]) = match indented {
        true => (b"\n  ", b": ", b"\n  ]", b"\n}\n"),
        false => (b"", b":", b"]", b"}"),
    };
    let (mut before, mut after, mut is_after) = (b"{".to_vec(), close.to_vec(), false);
    for (name, value) in whole.as_object().into_iter().flatten() {
        let out = if is_after { &mut after } else { &mut before };
        if out.last() != Some(&b'{') {
            out.push(b',');
        }
        out.extend_from_slice(line);
        out.extend_from_slice(Value::from(name.as_str()).to_string().as_bytes());
        out.extend_from_slice(colon);
        if name == field {
            out.push(b'[');
            is_after = true;
        } else if indented {
            pretty(value, "  ", out);
        } else {
            // Writing to memory cannot fail.
            let _ = serde_json::to_writer(out, value);
        }
    }
    after.extend_from_slice(end);
    (before, after)
}

/// Appends an indented value whose later lines begin with `indent`.
fn pretty(value: &Value, indent: &str, out: &mut Vec<u8>) {
    let text = serde_json::to_string_pretty(value).unwrap_or_default();
    // Strings contain no line breaks because JSON escapes them.
    out.extend_from_slice(text.replace('\n', &format!("\n{indent}")).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderValue, header};
    use serde_json::json;

    fn objects(count: usize) -> Vec<Arc<Object>> {
        let object = |n: usize| {
            let value = json!({"metadata": {"name": format!("o-{n}")}, "data": "x".repeat(300)});
            Arc::new(Object::from_value(value).unwrap())
        };
        (0..count).map(object).collect()
    }

    fn items(count: usize) -> Source {
        let each = Box::new(|object: &Object, out: &mut Vec<u8>| object.write_json(out));
        of_items(b"{\"items\":[".to_vec(), objects(count), each, b"]}")
    }

    /// The frames of a response.
    async fn frames(headers: &HeaderMap, source: Source) -> Vec<Bytes> {
        let mut body = chunked_response(headers, "application/json", source).into_body();
        let mut frames = Vec::new();
        while let Some(frame) = body.frame().await {
            frames.push(frame.unwrap().into_data().unwrap());
        }
        frames
    }

    fn names(bytes: &[u8]) -> Vec<String> {
        let value: Value = serde_json::from_slice(bytes).unwrap();
        let name = |item: &Value| item["metadata"]["name"].as_str().unwrap().to_owned();
        value["items"].as_array().unwrap().iter().map(name).collect()
    }

    #[tokio::test]
    async fn a_large_list_is_sent_in_chunks_and_arrives_complete() {
        let frames = frames(&HeaderMap::new(), items(2000)).await;
        // 2000 objects of about 340 bytes.
        assert!(frames.len() >= 10, "{} frames", frames.len());
        assert!(frames.iter().all(|frame| frame.len() < CHUNK_BYTES + 1024));
        let wanted: Vec<String> = (0..2000).map(|n| format!("o-{n}")).collect();
        assert_eq!(names(&frames.concat()), wanted);
    }

    #[tokio::test]
    async fn compressed_chunks_form_one_gzip_stream() {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        let frames = frames(&headers, items(2000)).await;
        let mut bytes = Vec::new();
        let frames = frames.concat();
        std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&*frames), &mut bytes)
            .unwrap();
        assert_eq!(names(&bytes).len(), 2000);
    }

    #[tokio::test]
    async fn chunked_yaml_and_indented_json_equal_the_whole_documents() {
        let value = |o: &Object| json!({"metadata": {"name": *o.key.name}, "list": [1, []]});
        let mut whole =
            json!({"apiVersion": "v1", "items": [], "kind": "L", "metadata": {"a": "b"}});
        for form in [Form::Json, Form::Pretty, Form::Yaml] {
            let values = Box::new(move |some: &[Arc<Object>]| {
                Ok(some.iter().map(|o| value(o)).collect::<Vec<Value>>())
            });
            let source = of_values(&whole, "items", form, objects(700), values);
            let bytes = frames(&HeaderMap::new(), source).await.concat();
            whole["items"] = objects(700).iter().map(|o| value(o)).collect();
            let wanted = match form {
                Form::Json => whole.to_string(),
                Form::Pretty => serde_json::to_string_pretty(&whole).unwrap() + "\n",
                Form::Yaml => api::codec::yaml::write(&whole),
            };
            assert_eq!(String::from_utf8(bytes).unwrap(), wanted, "{form:?}");
        }
    }

    #[tokio::test]
    async fn values_are_written_into_their_document() {
        let whole = json!({"a": 1, "rows": [], "z": {"b": []}});
        let values = Box::new(|some: &[Arc<Object>]| {
            Ok(some.iter().map(|o| json!(*o.key.name)).collect::<Vec<Value>>())
        });
        let source = of_values(&whole, "rows", Form::Json, objects(70), values);
        let bytes = frames(&HeaderMap::new(), source).await.concat();
        let rows: Vec<String> = (0..70).map(|n| format!("o-{n}")).collect();
        let wanted = json!({"a": 1, "rows": rows, "z": {"b": []}});
        assert_eq!(String::from_utf8(bytes).unwrap(), wanted.to_string());
    }

    #[tokio::test]
    async fn a_list_without_items_is_empty() {
        assert_eq!(frames(&HeaderMap::new(), items(0)).await.concat(), b"{\"items\":[]}");
    }

    #[tokio::test]
    async fn an_encoding_error_aborts_the_response() {
        let whole = json!({"rows": []});
        let values = Box::new(|_: &[Arc<Object>]| Err(Status::internal("no")));
        let mut body = chunked_response(
            &HeaderMap::new(),
            "application/json",
            of_values(&whole, "rows", Form::Json, objects(1), values),
        )
        .into_body();
        assert!(body.frame().await.unwrap().is_err());
    }
}
