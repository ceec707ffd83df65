//! Requests before their bodies are read: path, query, `Accept` and the like, one a line; tokens
//! that continue lists, and paths of columns.
#![no_main]

use apiserver::request::negotiate;
use apiserver::request::negotiate::Offer;
use apiserver::request::{self, Query};
use http::{HeaderMap, HeaderValue, Method, header};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((method, rest)) = bytes.split_first() else { return };
    let methods =
        [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::HEAD];
    let method = &methods[usize::from(*method) % methods.len()];
    let mut lines = rest.split(|b| *b == b'\n');
    let mut line = || lines.next().unwrap_or_default();
    let (path, query) = (line(), line());
    let query = Query::parse(&String::from_utf8_lossy(query));
    if let Ok(path) = std::str::from_utf8(path)
        && let Ok(info) = request::parse(method, path, &query)
    {
        for part in [&info.group, &info.version, &info.resource, &info.subresource, &info.name] {
            assert!(!part.contains('/'), "{info:?}");
        }
        assert!(!info.namespace.contains('/') && !info.verb.is_empty(), "{info:?}");
        assert!(info.is_resource || info.resource.is_empty(), "{info:?}");
        let _ = (info.is_read(), info.is_long_running());
    }
    let mut headers = HeaderMap::new();
    for name in [header::ACCEPT, header::CONTENT_TYPE, header::ACCEPT_ENCODING] {
        if let Ok(value) = HeaderValue::from_bytes(line()) {
            headers.insert(name, value);
        }
    }
    for (transforms, streams) in [(true, true), (false, false)] {
        let _ = negotiate::accept(&headers, &query, Offer { transforms, streams });
    }
    let _ = (negotiate::content_type(&headers), negotiate::accepts_gzip(&headers));
    apiserver::fuzzing::options(&query);
    let token = String::from_utf8_lossy(line()).into_owned();
    apiserver::fuzzing::column(&String::from_utf8_lossy(path));
    apiserver::fuzzing::token(&token, &String::from_utf8_lossy(line()));
});
