//! Converts responses whose body is not a Status to errors (apimachinery's
//! `errors.NewGenericServerResponse`).

use api::Status;
use http::Method;

/// The error for a response with this code whose body is not a Status: client-go's text with the
/// requested resource.
///
/// Unlike client-go's it has no reason: a 404 from a proxy does not mean that an object is missing.
pub(crate) fn status(code: u16, method: &Method, path: &str, body: &[u8]) -> Status {
    let body_text = String::from_utf8_lossy(body);
    let body_text = body_text.trim_end();
    let message = match code {
        400 => "the server rejected our request for an unknown reason".to_owned(),
        401 => "the server has asked for the client to provide credentials".to_owned(),
        403 | 406 | 415 => body_text.to_owned(),
        404 => "the server could not find the requested resource".to_owned(),
        405 => "the server does not allow this method on the requested resource".to_owned(),
        409 => "the server reported a conflict".to_owned(),
        422 => "the server rejected our request due to an error in our request".to_owned(),
        429 => "the server has received too many requests and has asked us to try again later".to_owned(),
        503 => "the server is currently unable to handle the request".to_owned(),
        504 => "the server was unable to return a response in the time allotted, but may still be processing the request".to_owned(),
        500.. => {
            let body_text = api::field::go_quote(body_text);
            format!("an error on the server ({body_text}) has prevented the request from succeeding")
        }
        _ => format!("the server responded with the status code {code} but did not return more information"),
    };
    let requested_resource = requested_resource(path)
        .map(|what| format!(" ({} {what})", method.as_str().to_lowercase()));
    Status::failure(code, "", message + &requested_resource.unwrap_or_default())
}

/// The resource and the name in a path, as client-go prints them: `pods.metrics.k8s.io NAME`.
fn requested_resource(path: &str) -> Option<String> {
    let path = path.split('?').next().unwrap_or_default();
    let mut parts = path.trim_matches('/').split('/');
    let group = match parts.next()? {
        "api" => "",
        "apis" => parts.next()?,
        _ => return None,
    };
    let _version = parts.next()?;
    let mut resource = parts.next()?;
    let mut name = parts.next();
    if resource == "namespaces"
        && let Some(resource_in_namespace) = parts.next()
    {
        resource = resource_in_namespace;
        name = parts.next();
    }
    let dot = if group.is_empty() { "" } else { "." };
    let name = name.map(|name| format!(" {name}")).unwrap_or_default();
    Some(format!("{resource}{dot}{group}{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_without_a_status_have_the_text_of_client_go() {
        let message_of = |code, method, path, body: &str| {
            let status = status(code, &method, path, body.as_bytes());
            assert_eq!((status.reason.as_str(), status.code), ("", code));
            status.message
        };
        assert_eq!(
            message_of(
                404,
                Method::GET,
                "/apis/metrics.k8s.io/v1beta1/namespaces/a/pods?labelSelector=x",
                "404 page not found\n"
            ),
            "the server could not find the requested resource (get pods.metrics.k8s.io)"
        );
        assert_eq!(
            message_of(
                503,
                Method::PUT,
                "/api/v1/namespaces/a/pods/b/status",
                "service unavailable\n"
            ),
            "the server is currently unable to handle the request (put pods b)"
        );
        assert_eq!(
            message_of(500, Method::GET, "/version", "what?\n"),
            "an error on the server (\"what?\") has prevented the request from succeeding"
        );
        assert_eq!(
            message_of(409, Method::POST, "/api/v1/nodes", ""),
            "the server reported a conflict (post nodes)"
        );
        assert_eq!(
            message_of(418, Method::GET, "/", ""),
            "the server responded with the status code 418 but did not return more information"
        );
    }
}
