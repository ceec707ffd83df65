//! `localDriver/volumes/{name}` and `localDriver/snapshots/{name}`: what the controller of the
//! built-in CSI driver requests of this node, with the bodies and answers of [`api::local_driver`].

use api::Status;
use api::local_driver::{GrowRequest, SnapshotRequest, VolumeRequest};
use bytes::Bytes;
use http::{Method, Response, StatusCode};
use serde::de::DeserializeOwned;

use super::response::{Body, response, text_response};
use super::state::KubeletApi;
use crate::local_driver::error::LocalDriverError;
use crate::local_driver::requests::Action;
use crate::local_driver::store::StoredKind;

/// Maximum size of a body, which consists of a few names.
pub(super) const BODY_MAX: usize = 16 << 10;

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, LocalDriverError> {
    serde_json::from_slice(body).map_err(|error| LocalDriverError::Request(error.to_string()))
}

/// What a request means; `None` for a method or kind that does not exist.
fn action(method: &Method, kind: &str, body: &[u8]) -> Option<Result<Action, LocalDriverError>> {
    Some(match (kind, method.as_str()) {
        ("volumes", "POST") => parse::<VolumeRequest>(body).map(Action::Create),
        ("volumes", "PUT") => parse::<GrowRequest>(body).map(|r| Action::Grow(r.size)),
        ("snapshots", "POST") => parse::<SnapshotRequest>(body).map(|r| Action::Snapshot(r.volume)),
        ("volumes", "DELETE") => Ok(Action::Delete(StoredKind::Volume)),
        ("snapshots", "DELETE") => Ok(Action::Delete(StoredKind::Snapshot)),
        _ => return None,
    })
}

fn json(code: u16, body: String) -> Response<Body> {
    let code = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response(code, "application/json", body)
}

/// Serves a request about the volume or snapshot `name`.
pub(super) async fn serve(
    api: &KubeletApi,
    method: &Method,
    (kind, name): (&str, &str),
    body: &Bytes,
) -> Response<Body> {
    let Some(action) = action(method, kind, body) else {
        return text_response(StatusCode::METHOD_NOT_ALLOWED, "405 method not allowed\n");
    };
    let csi = &api.node.csi;
    let done = match (action, csi.drivers.built_in()) {
        (Err(error), _) => Err(error),
        (Ok(_), None) => Err(LocalDriverError::Stopped),
        (Ok(action), Some(driver)) => {
            // A volume of this node is usable once the CSINode has the driver.
            let registered = match &action {
                Action::Create(_) => csi.install_built_in().await,
                _ => Ok(()),
            };
            match registered {
                Ok(()) => driver.request(name, action).await,
                Err(error) => Err(LocalDriverError::Register(error.to_string())),
            }
        }
    };
    match done {
        Ok(stored) => json(200, serde_json::to_string(&stored).unwrap_or_default()),
        Err(error) => {
            let status: Status = error.status();
            json(status.code, serde_json::to_string(&status).unwrap_or_default())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_parsed_by_method_and_kind() {
        let parsed = |method: Method, kind: &str, body: &str| {
            action(&method, kind, body.as_bytes()).map(|a| a.map_err(|e| e.status().code))
        };
        assert_eq!(parsed(Method::PUT, "volumes", r#"{"size":5}"#), Some(Ok(Action::Grow(5))));
        let snapshot = parsed(Method::POST, "snapshots", r#"{"volume":"pvc-a"}"#);
        assert_eq!(snapshot, Some(Ok(Action::Snapshot("pvc-a".to_owned()))));
        let delete = parsed(Method::DELETE, "snapshots", "");
        assert_eq!(delete, Some(Ok(Action::Delete(StoredKind::Snapshot))));
        assert_eq!(parsed(Method::POST, "volumes", "{"), Some(Err(400)));
        for (method, kind) in
            [(Method::GET, "volumes"), (Method::PUT, "snapshots"), (Method::POST, "other")]
        {
            assert_eq!(parsed(method, kind, "{}"), None);
        }
    }
}
