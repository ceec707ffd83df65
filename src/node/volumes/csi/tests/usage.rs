//! How full volumes are, as their driver reports it.

use super::*;

#[tokio::test]
async fn the_usage_of_published_volumes_is_that_of_their_driver() {
    let spec = json!({"volumeLifecycleModes": ["Ephemeral"]});
    let fixture = Fixture::new(&[rpc::Type::GetVolumeStats], spec).await;
    let pod = pod_with("a", json!({"csi": {"driver": "d.example.com"}}));
    let (node, uids) = (&fixture.node, || vec!["a".to_owned(), "none".to_owned()]);
    assert!(node.csi.usage(&node.tasks, uids()).await.is_empty());
    fixture.set_up(&pod).await.unwrap();
    fixture.driver.take_calls();
    let measured = async {
        loop {
            let usage = node.csi.usage(&node.tasks, uids()).await;
            if let Some(usage) = usage["a"]["v"] {
                return usage;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let bytes = tokio::time::timeout(WAIT, measured).await.unwrap().bytes;
    assert_eq!([bytes.available, bytes.total, bytes.used], [1, 3, 2]);
    assert_eq!(node.csi.usage(&node.tasks, uids()).await["a"]["v"].unwrap().bytes, bytes);
    let calls = fixture.driver.take_calls();
    assert_eq!(calls.len(), 1, "it is kept for a minute");
    let asked: csi::NodeGetVolumeStatsRequest = calls[0].decode();
    let target = fixture.pod_dir("a").join("volumes/kubernetes.io~csi/v/mount");
    assert_eq!(asked.volume_path, target.to_string_lossy());
}

#[tokio::test]
async fn a_driver_that_does_not_report_usage_is_not_asked() {
    let spec = json!({"volumeLifecycleModes": ["Ephemeral"]});
    let fixture = Fixture::new(&[], spec).await;
    fixture.set_up(&pod_with("a", json!({"csi": {"driver": "d.example.com"}}))).await.unwrap();
    fixture.driver.take_calls();
    let usage = fixture.node.csi.usage(&fixture.tasks, vec!["a".to_owned()]).await;
    assert_eq!(usage["a"]["v"], None, "the volume is that of a driver nevertheless");
    assert!(fixture.driver.take_calls().is_empty());
}
