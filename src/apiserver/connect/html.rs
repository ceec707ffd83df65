//! Rewrites links in proxied HTML pages so that they lead through the proxy (upstream's proxy
//! `Transport`).

use std::io::{Read, Write};

use bytes::{Bytes, BytesMut};
use flate2::Compression;
use flate2::read::{DeflateDecoder, GzDecoder};
use flate2::write::{DeflateEncoder, GzEncoder};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, LOCATION};
use http::{HeaderMap, Response};
use http_body_util::BodyExt;

use crate::request::body;
use crate::request::body::{Body, BodyError};

/// The maximum size of a page with rewritten links; longer pages pass unchanged.
const PAGE_BYTES_MAX: usize = 4 << 20;

/// The attributes that contain links, by element (upstream's `atomsToAttrs`).
const LINKS: &[(&str, &[&str])] = &[
    ("a", &["href"]),
    ("applet", &["codebase"]),
    ("area", &["href"]),
    ("audio", &["src"]),
    ("base", &["href"]),
    ("blockquote", &["cite"]),
    ("body", &["background"]),
    ("button", &["formaction"]),
    ("command", &["icon"]),
    ("del", &["cite"]),
    ("embed", &["src"]),
    ("form", &["action"]),
    ("frame", &["longdesc", "src"]),
    ("head", &["profile"]),
    ("html", &["manifest"]),
    ("iframe", &["longdesc", "src"]),
    ("img", &["longdesc", "src", "usemap"]),
    ("input", &["src", "usemap", "formaction"]),
    ("ins", &["cite"]),
    ("link", &["href"]),
    ("object", &["classid", "codebase", "data", "usemap"]),
    ("q", &["cite"]),
    ("script", &["src"]),
    ("source", &["src"]),
    ("video", &["poster", "src"]),
];

/// Elements with raw text content.
const TEXTS: &[&str] =
    &["iframe", "noembed", "noframes", "noscript", "script", "style", "textarea", "title", "xmp"];

/// Rewrites the links of a response with `link`, if it is an HTML page in a known encoding.
pub(super) async fn rewrite(
    response: Response<Body>,
    link: impl Fn(&str) -> Option<String>,
) -> Result<Response<Body>, BodyError> {
    let Some(encoding) = encoding(response.headers()) else { return Ok(response) };
    let (mut head, mut rest) = response.into_parts();
    let mut page = BytesMut::new();
    while let Some(frame) = rest.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        page.extend_from_slice(&data);
        if page.len() > PAGE_BYTES_MAX {
            tracing::debug!("not rewriting the links of a proxied page that is too long");
            let body = http_body_util::Full::new(page.freeze()).map_err(|never| match never {});
            return Ok(Response::from_parts(head, joined(body.boxed_unsync(), rest)));
        }
    }
    let page = page.freeze();
    let changed = match encoding {
        Encoding::Plain => Some(links(&page, &link)),
        Encoding::Gzip => {
            unpack(GzDecoder::new(&*page)).map(|text| links(&text, &link)).and_then(|text| {
                let mut packer = GzEncoder::new(Vec::new(), Compression::default());
                packer.write_all(&text).and_then(|()| packer.finish()).ok()
            })
        }
        Encoding::Deflate => {
            unpack(DeflateDecoder::new(&*page)).map(|text| links(&text, &link)).and_then(|text| {
                let mut packer = DeflateEncoder::new(Vec::new(), Compression::best());
                packer.write_all(&text).and_then(|()| packer.finish()).ok()
            })
        }
    };
    head.headers.remove(CONTENT_LENGTH);
    let bytes = changed.map_or(page, Bytes::from);
    Ok(Response::from_parts(head, body::full(bytes)))
}

/// The body that was read so far, followed by the rest.
fn joined(first: Body, rest: Body) -> Body {
    let stream = futures::StreamExt::chain(first.into_data_stream(), rest.into_data_stream());
    let frames = futures::TryStreamExt::map_ok(stream, hyper::body::Frame::data);
    http_body_util::StreamBody::new(frames).boxed_unsync()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    Plain,
    Gzip,
    Deflate,
}

/// The encoding of a page; `None` for redirects, other content types and unknown encodings.
fn encoding(headers: &HeaderMap) -> Option<Encoding> {
    let text = |name| headers.get(name).and_then(|v: &http::HeaderValue| v.to_str().ok());
    let kind = text(CONTENT_TYPE)?.split(';').next().unwrap_or_default().trim();
    if kind != "text/html" || text(LOCATION).is_some_and(|l| !l.is_empty()) {
        return None;
    }
    match text(CONTENT_ENCODING).unwrap_or_default() {
        "" => Some(Encoding::Plain),
        "gzip" => Some(Encoding::Gzip),
        "deflate" => Some(Encoding::Deflate),
        _ => None,
    }
}

/// Decompresses up to the maximum size of a page; `None` if it is larger or damaged.
fn unpack(reader: impl Read) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let limit = u64::try_from(PAGE_BYTES_MAX).unwrap_or(u64::MAX);
    reader.take(limit.saturating_add(1)).read_to_end(&mut out).ok()?;
    (out.len() <= PAGE_BYTES_MAX).then_some(out)
}

/// The page with its links replaced where `link` returns another one.
fn links(page: &[u8], link: &impl Fn(&str) -> Option<String>) -> Vec<u8> {
    let mut scan = Scan { page, at: 0, copied: 0, out: Vec::with_capacity(page.len() + 256) };
    while let Some(found) = find(page, scan.at, |rest| rest.starts_with(b"<")) {
        scan.at = found + 1;
        if scan.rest().starts_with(b"!--") {
            scan.skip_behind(b"-->");
        } else if scan.rest().first().is_some_and(u8::is_ascii_alphabetic) {
            scan.tag(link);
        }
    }
    scan.out.extend_from_slice(page.get(scan.copied..).unwrap_or_default());
    scan.out
}

/// The first index from `from` on for which `is` holds.
fn find(page: &[u8], from: usize, is: impl Fn(&[u8]) -> bool) -> Option<usize> {
    (from..page.len()).find(|at| page.get(*at..).is_some_and(&is))
}

struct Scan<'a> {
    page: &'a [u8],
    at: usize,
    /// The page is copied to `out` up to this index.
    copied: usize,
    out: Vec<u8>,
}

impl<'a> Scan<'a> {
    fn rest(&self) -> &'a [u8] {
        self.page.get(self.at..).unwrap_or_default()
    }

    fn skip_behind(&mut self, end: &[u8]) {
        let found = find(self.page, self.at, |rest| rest.starts_with(end));
        self.at = found.map_or(self.page.len(), |at| at + end.len());
    }

    fn take_until(&mut self, ends: impl Fn(u8) -> bool) -> &'a [u8] {
        let rest = self.rest();
        let length = rest.iter().position(|b| ends(*b)).unwrap_or(rest.len());
        self.at += length;
        rest.get(..length).unwrap_or_default()
    }

    /// Scans a start tag, from its name on.
    fn tag(&mut self, link: &impl Fn(&str) -> Option<String>) {
        let name = self.take_until(|b| b.is_ascii_whitespace() || matches!(b, b'/' | b'>'));
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
        let names = LINKS.iter().find(|(tag, _)| *tag == name).map_or(&[][..], |(_, names)| names);
        loop {
            self.take_until(|b| !b.is_ascii_whitespace() && b != b'/');
            match self.rest().first() {
                None => return,
                Some(b'>') => break,
                Some(_) => self.attribute(names, link),
            }
        }
        self.at += 1;
        if TEXTS.contains(&name.as_str()) {
            let is_end = |rest: &[u8]| {
                rest.strip_prefix(b"</")
                    .and_then(|r| r.get(..name.len()))
                    .is_some_and(|found| found.eq_ignore_ascii_case(name.as_bytes()))
            };
            self.at = find(self.page, self.at, is_end).unwrap_or(self.page.len());
        }
    }

    fn attribute(&mut self, names: &[&str], link: &impl Fn(&str) -> Option<String>) {
        // A name may begin with `=`; this byte must not stop the scan.
        let begin = self.at;
        self.at += 1;
        self.take_until(|b| b.is_ascii_whitespace() || matches!(b, b'=' | b'/' | b'>'));
        let name = self.page.get(begin..self.at).unwrap_or_default();
        self.take_until(|b| !b.is_ascii_whitespace());
        if self.rest().first() != Some(&b'=') {
            return;
        }
        self.at += 1;
        self.take_until(|b| !b.is_ascii_whitespace());
        let quote = self.rest().first().copied().filter(|b| matches!(b, b'"' | b'\''));
        self.at += usize::from(quote.is_some());
        let from = self.at;
        let value = match quote {
            Some(quote) => self.take_until(|b| b == quote),
            None => self.take_until(|b| b.is_ascii_whitespace() || b == b'>'),
        };
        let to = self.at;
        self.at = (self.at + usize::from(quote.is_some())).min(self.page.len());
        let is_wanted = names.iter().any(|w| name.eq_ignore_ascii_case(w.as_bytes()));
        let changed = std::str::from_utf8(value).ok().filter(|_| is_wanted).and_then(link);
        if let Some(changed) = changed {
            self.out.extend_from_slice(self.page.get(self.copied..from).unwrap_or_default());
            self.out.extend_from_slice(changed.as_bytes());
            self.copied = to;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through(page: &str) -> String {
        let link = |l: &str| l.starts_with('/').then(|| format!("/p{l}"));
        String::from_utf8(links(page.as_bytes(), &link)).unwrap()
    }

    #[test]
    fn only_links_of_elements_are_rewritten() {
        for (page, want) in [
            (r#"<a href="/x">/x</a>"#, r#"<a href="/p/x">/x</a>"#),
            ("<A HREF=/x>y</A>", "<A HREF=/p/x>y</A>"),
            ("<img alt='/x' src = '/y'/>", "<img alt='/x' src = '/p/y'/>"),
            (r#"<a href="x">"#, r#"<a href="x">"#),
            (r#"<p href="/x">"#, r#"<p href="/x">"#),
            ("<!-- <a href='/x'> -->", "<!-- <a href='/x'> -->"),
            (
                "<script src='/s'>'<a href=\"/x\">'</script><a href='/y'>",
                "<script src='/p/s'>'<a href=\"/x\">'</script><a href='/p/y'>",
            ),
            ("1 < 2 <a =x href='/y'", "1 < 2 <a =x href='/p/y'"),
            ("<a href=\"/x", "<a href=\"/p/x"),
            ("<a", "<a"),
        ] {
            assert_eq!(through(page), want, "{page}");
        }
    }

    async fn answered(encoding: &str, page: Vec<u8>) -> Vec<u8> {
        let response = Response::builder()
            .header(CONTENT_TYPE, "text/html; charset=utf-8")
            .header(CONTENT_ENCODING, encoding)
            .header(CONTENT_LENGTH, page.len())
            .body(body::full(page))
            .unwrap();
        let link = |l: &str| l.starts_with('/').then(|| format!("/p{l}"));
        let changed = rewrite(response, link).await.unwrap();
        body::collect(changed.into_body()).await.unwrap().to_vec()
    }

    #[tokio::test]
    async fn compressed_pages_are_rewritten() {
        let mut packer = GzEncoder::new(Vec::new(), Compression::default());
        packer.write_all(b"<a href='/x'>").unwrap();
        let answer = answered("gzip", packer.finish().unwrap()).await;
        assert_eq!(unpack(GzDecoder::new(&*answer)).unwrap(), b"<a href='/p/x'>");
        assert_eq!(answered("", b"<a href='/x'>".to_vec()).await, b"<a href='/p/x'>");
        assert_eq!(answered("br", b"<a href='/x'>".to_vec()).await, b"<a href='/x'>");
    }

    #[tokio::test]
    async fn too_long_pages_are_not_rewritten() {
        let mut page = b"<a href='/x'>".to_vec();
        page.resize(PAGE_BYTES_MAX + 1, b' ');
        assert_eq!(answered("", page.clone()).await, page);
    }
}
