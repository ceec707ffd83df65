//! Volumes that are larger than their claims show.

use super::*;

/// A fixture whose volume has 2 GiB, and a claim that shows 1 GiB.
async fn with_larger_volume() -> Fixture {
    let spec = json!({"attachRequired": false, "volumeLifecycleModes": ["Persistent"]});
    let fixture = Fixture::new(&[rpc::Type::ExpandVolume], spec).await;
    fixture.put_volume(json!({"capacity": {"storage": "2Gi"}}));
    let mut claim = fixture.api.get(CLAIM).unwrap();
    claim["spec"]["resources"] = json!({"requests": {"storage": "2Gi"}});
    claim["status"] = json!({"phase": "Bound", "capacity": {"storage": "1Gi"},
        "allocatedResources": {"storage": "2Gi"},
        "allocatedResourceStatuses": {"storage": "NodeResizePending"},
        "conditions": [{"type": "FileSystemResizePending", "status": "True"}]});
    fixture.api.put(CLAIM, claim);
    fixture
}

#[tokio::test]
async fn a_volume_that_is_larger_than_its_claim_is_expanded_once() {
    let fixture = with_larger_volume().await;
    fixture.set_up(&claiming("a")).await.unwrap();
    let calls = fixture.driver.take_calls();
    let methods: Vec<&str> = calls.iter().map(|c| c.method.as_str()).collect();
    assert_eq!(methods, ["NodePublishVolume", "NodeExpandVolume"]);
    let expanded: csi::NodeExpandVolumeRequest = calls[1].decode();
    assert_eq!(expanded.capacity_range.unwrap().required_bytes, 2 << 30);
    let target = fixture.pod_dir("a").join("volumes/kubernetes.io~csi/pv/mount");
    assert_eq!(expanded.volume_path, target.to_string_lossy());
    let status = &fixture.api.get(CLAIM).unwrap()["status"];
    assert_eq!(status["capacity"]["storage"], "2Gi");
    assert_eq!(status["conditions"], json!([]));
    assert_eq!(status["allocatedResourceStatuses"], json!({}));
    fixture.set_up(&claiming("a")).await.unwrap();
    assert!(fixture.driver.take_methods().is_empty());
}

#[tokio::test]
async fn a_pod_does_not_start_before_its_volume_is_expanded() {
    let fixture = with_larger_volume().await;
    fixture.driver.fail("NodeExpandVolume", Some(Code::Internal));
    for _ in 0..2 {
        assert_eq!(
            fixture.set_up(&claiming("a")).await.unwrap_err().to_string(),
            "MountVolume.Setup failed while expanding volume for volume \"pv\" : \
             Expander.NodeExpand failed to expand the volume : rpc error: code = Internal desc = \
             NodeExpandVolume fails"
        );
        assert_eq!(fixture.driver.take_methods(), ["NodePublishVolume", "NodeExpandVolume"]);
    }
    let status = &fixture.api.get(CLAIM).unwrap()["status"];
    assert_eq!(status["allocatedResourceStatuses"]["storage"], "NodeResizeInProgress");
    assert_eq!(status["conditions"][1]["type"], "NodeResizeError");
    // A driver that does not expand volumes in use lets the pod start.
    fixture.driver.fail("NodeExpandVolume", Some(Code::FailedPrecondition));
    fixture.set_up(&claiming("a")).await.unwrap();
    fixture.driver.take_calls();
    fixture.set_up(&claiming("a")).await.unwrap();
    assert!(fixture.driver.take_methods().is_empty());
}
