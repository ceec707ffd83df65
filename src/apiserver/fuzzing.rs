//! Entry points of fuzzers for parsers that are not public: continue tokens, options, column paths
//! and configuration files.

use std::path::Path;

use serde_json::json;

use crate::handlers;
use crate::request::Query;
use printers::CustomColumns;

/// Parses a continue token for a list of this namespace, or of all when it is empty.
///
/// # Panics
/// When an accepted token leaves the listed prefix, or differs after it is encoded again.
pub fn token(text: &str, namespace: &str) {
    handlers::fuzz_token(text, namespace);
}

/// Parses the options of lists, watches, writes and deletions.
pub fn options(query: &Query) {
    handlers::fuzz_options(query);
}

/// Parses and evaluates the path of a column of custom resources.
pub fn column(path: &str) {
    let definition = json!([{"name": "c", "type": "string", "jsonPath": path}]);
    let Ok(columns) = CustomColumns::new(Some(&definition)) else { return };
    let object = json!({"metadata": {"name": "a", "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"a": [1, {"b": "c", "type": "Ready"}], "x.y": null}});
    let now = jiff::Timestamp::UNIX_EPOCH;
    assert_eq!(columns.row(&object, now).len(), 2, "{path}");
}

/// Parses a configuration file; `which` selects its format.
pub fn configuration(which: u8, text: &[u8]) {
    match which % 4 {
        0 => drop(webhook::kubeconfig::WebhookEndpoint::of(text, Path::new("/"), "a fuzzer")),
        1 => drop(crate::audit::fuzz_policy(text)),
        2 => drop(crate::authn::fuzz_configuration(text)),
        _ => crate::authz::fuzz_configuration(text),
    }
}
