//! Watches that begin with the current objects, and clients that read slowly.

use http_body_util::BodyExt;

use super::*;

const MAPS: &str = "/api/v1/namespaces/n/configmaps";

/// The events of a frame: type, name, value.
fn events(frame: &[u8]) -> Vec<(String, String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let event = |line: &str| {
        let event: Value = serde_json::from_str(line).unwrap();
        let object = &event["object"];
        (text(&event["type"]), text(&object["metadata"]["name"]), text(&object["data"]["v"]))
    };
    std::str::from_utf8(frame).unwrap().lines().map(event).collect()
}

#[tokio::test]
async fn a_watch_begins_with_small_frames_of_one_revision() {
    let server = server();
    let map = |name: &str, value: &str| {
        let data = json!({"v": value, "fill": "x".repeat(700)});
        json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name}, "data": data})
    };
    for n in 0..300 {
        assert_eq!(post(&server, MAPS, map(&format!("m-{n:03}"), "old")).await.0, 201);
    }
    let query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=30";
    let request = Request::get(format!("{MAPS}?{query}")).body(body::empty()).unwrap();
    let mut answer = server.call(None, request).await.into_body();
    let mut next = async || answer.frame().await.unwrap().unwrap().into_data().unwrap();
    let first = next().await;
    // Frames grow as the client reads: 4 KiB, 8 KiB, …, plus at most one object.
    assert!((3 * 1024..5 * 1024 + 512).contains(&first.len()), "{}", first.len());
    let mut seen = events(&first);
    // A later change is not in the initial frames and follows them.
    let changed = map("m-299", "new").to_string();
    let url = format!("{MAPS}/m-299");
    assert_eq!(ask(&server, "PUT", &url, "application/json", &changed).await.0, 200);
    assert_eq!(ask(&server, "DELETE", &format!("{MAPS}/m-298"), "", "").await.0, 200);
    let mut sizes = Vec::new();
    while !seen.iter().any(|(kind, ..)| kind == "DELETED") {
        let frame = next().await;
        sizes.push(frame.len());
        seen.extend(events(&frame));
    }
    assert!(sizes[0] < 9 * 1024 + 512 && sizes[1] > 14 * 1024, "{sizes:?}");
    assert!(sizes.iter().all(|size| *size < 34 * 1024), "{sizes:?}");
    let event =
        |kind: &str, name: &str, value: &str| (kind.to_owned(), name.to_owned(), value.to_owned());
    let mut wanted: Vec<_> =
        (0..300).map(|n| event("ADDED", &format!("m-{n:03}"), "old")).collect();
    wanted.push(event("BOOKMARK", "", ""));
    wanted.push(event("MODIFIED", "m-299", "new"));
    wanted.push(event("DELETED", "m-298", "old"));
    assert_eq!(seen, wanted);
}
