//! `/statusz` and `/flagz` of the kubelet.

use api::zpages::{Page, PageContent, PageRequest, Statusz};
use http::header::{ACCEPT, CONTENT_TYPE, USER_AGENT, WARNING};
use http::request::Parts;
use http::{HeaderName, HeaderValue, Response, StatusCode};

use super::query::Query;
use super::response::{Body, text_response};
use super::state::KubeletApi;

/// The name of the kubelet on its pages.
const COMPONENT: &str = "kubelet";

/// The pages that upstream lists: those that are no routes of its router.
const LISTED: [&str; 4] = ["/configz", "/flagz", "/healthz", "/metrics"];

/// The page `/statusz`.
pub(super) fn statusz(api: &KubeletApi, head: &Parts) -> Response<Body> {
    let seconds = |seconds: u64| i64::try_from(seconds).unwrap_or_default();
    let version = &api.node.identity.config.version;
    let status = Statusz {
        started: seconds(base::process::started()),
        now: seconds(base::clock::unix_time().as_secs()),
        binary_version: version.trim_start_matches('v').to_owned(),
        paths: LISTED.map(str::to_owned).to_vec(),
    };
    respond(PageContent::Statusz(&status), head)
}

/// The page `/flagz`.
pub(super) fn flagz(api: &KubeletApi, head: &Parts) -> Response<Body> {
    respond(PageContent::Flagz(&api.node.identity.config.flags), head)
}

fn respond(content: PageContent<'_>, head: &Parts) -> Response<Body> {
    let header = |name: HeaderName| {
        head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    };
    let query = Query::parse(head.uri.query().unwrap_or_default());
    let pretty = is_pretty(query.first("pretty"), header(USER_AGENT));
    let request = PageRequest { accept: header(ACCEPT), pretty, random: base::clock::random_u64() };
    let Page { code, content_type, warning, body } = api::zpages::page(COMPONENT, content, request);
    let mut response = text_response(StatusCode::from_u16(code).unwrap_or_default(), body);
    for (name, value) in [(CONTENT_TYPE, Some(content_type)), (WARNING, warning)] {
        if let Some(value) = value.and_then(|value| HeaderValue::from_str(&value).ok()) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

/// Whether JSON is indented (upstream's `isPrettyPrint`).
fn is_pretty(pretty: Option<&str>, agent: &str) -> bool {
    match pretty.filter(|given| !given.is_empty()) {
        Some(given) => matches!(given, "1" | "t" | "T" | "true" | "TRUE" | "True"),
        None => ["curl", "Wget", "Mozilla/5.0"].iter().any(|prefix| agent.starts_with(prefix)),
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    #[tokio::test]
    async fn the_response_has_the_headers_of_the_page() {
        let flags = std::collections::BTreeMap::from([("v".to_owned(), "4".to_owned())]);
        let accept = "application/json;v=v1alpha1;g=config.k8s.io;as=Flagz";
        let request = http::Request::get("/flagz").header(ACCEPT, accept).body(()).unwrap();
        let response = respond(PageContent::Flagz(&flags), &request.into_parts().0);
        let header = |name| response.headers().get(name).map(|v: &HeaderValue| v.to_str().unwrap());
        let kind = "application/json;g=config.k8s.io;v=v1alpha1;as=Flagz";
        assert_eq!(header(CONTENT_TYPE), Some(kind));
        assert!(header(WARNING).unwrap().starts_with("299 - \"This version of the flagz endpoint"));
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let object: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(object["flags"]["v"], "4");
    }

    #[test]
    fn people_get_indented_documents() {
        assert!(is_pretty(None, "curl/8") && is_pretty(Some("true"), "kubectl"));
        assert!(!is_pretty(Some("false"), "curl/8") && !is_pretty(Some(""), "kubectl"));
    }
}
