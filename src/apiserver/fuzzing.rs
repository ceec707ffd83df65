//! What fuzzers feed beside the public readers: tokens, options, paths of columns and the files of
//! administrators.

use std::path::Path;

use serde_json::json;

use crate::handlers;
use crate::request::Query;
use crate::response::table::CustomColumns;

/// A token that continues a list, for a list of this namespace or, when it is empty, of all.
///
/// # Panics
/// When a token that is taken could leave the listed prefix, or is another one when it is written
/// again.
pub fn token(text: &str, namespace: &str) {
    handlers::fuzz_token(text, namespace);
}

/// The options of lists, watches, writes and deletions.
pub fn options(query: &Query) {
    handlers::fuzz_options(query);
}

/// The path of a column of custom resources, and what it finds.
pub fn column(path: &str) {
    let definition = json!([{"name": "c", "type": "string", "jsonPath": path}]);
    let Ok(columns) = CustomColumns::new(Some(&definition)) else { return };
    let object = json!({"metadata": {"name": "a", "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"a": [1, {"b": "c", "type": "Ready"}], "x.y": null}});
    let now = jiff::Timestamp::UNIX_EPOCH;
    assert_eq!(columns.row(&object, now).len(), 2, "{path}");
}

/// A file: the number says which.
pub fn configuration(which: u8, text: &[u8]) {
    match which % 4 {
        0 => {
            drop(crate::webhook::kubeconfig::WebhookEndpoint::of(text, Path::new("/"), "a fuzzer"))
        }
        1 => drop(crate::audit::fuzz_policy(text)),
        2 => drop(crate::authn::fuzz_configuration(text)),
        _ => crate::authz::fuzz_configuration(text),
    }
}
