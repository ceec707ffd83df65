//! A volume that cannot be unstaged: its pod ends, and the next pod stages it again.

use super::*;

const IN_USE: [&str; 1] = ["kubernetes.io/csi/d.example.com^handle"];

/// A fixture with an attached volume that the pod uses.
async fn with_pod(pod: &Arc<Pod>) -> Fixture {
    let fixture = Fixture::new(&[rpc::Type::StageUnstageVolume], Value::Null).await;
    fixture.put_volume(json!({}));
    fixture.set_up(pod).await.unwrap_err();
    fixture.report_volumes_in_use();
    fixture.attach().await;
    fixture.set_up(pod).await.unwrap();
    assert_eq!(fixture.driver.take_methods(), ["NodeStageVolume", "NodePublishVolume"]);
    fixture
}

/// Waits until the driver was asked to unstage the volume, and forgets its calls.
async fn unstage_fails(fixture: &Fixture) {
    until(|| !fixture.tasks.problems().list().is_empty()).await;
    let methods = fixture.driver.take_methods();
    assert_eq!(methods[..2], ["NodeUnpublishVolume", "NodeUnstageVolume"]);
    assert!(methods[2..].iter().all(|method| method == "NodeUnstageVolume"));
}

/// Cases of the specs "NodeUnstage error cases" with two pods.
#[tokio::test]
async fn a_volume_that_is_not_unstaged_does_not_hold_its_pod_and_is_staged_again() {
    for code in [Code::InvalidArgument, Code::DeadlineExceeded] {
        let (first, second) = (claiming("a"), claiming("b"));
        let fixture = with_pod(&first).await;
        fixture.driver.fail("NodeUnstageVolume", Some(code));
        volumes::tear_down(&fixture.node, "a").await.unwrap();
        assert!(!fixture.pod_dir("a").exists());
        unstage_fails(&fixture).await;
        assert!(fixture.staging_dir().exists());
        assert_eq!(fixture.node.csi.volumes_in_use(), IN_USE, "it must not be detached");
        // The second pod waits for an attempt that is under way, and ends the attempts.
        fixture.set_up(&second).await.unwrap();
        let methods = fixture.driver.take_methods();
        let last = &methods[methods.len() - 2..];
        assert_eq!(last, ["NodeStageVolume", "NodePublishVolume"], "{code:?}");
        until(|| fixture.tasks.problems().list().is_empty()).await;
        assert!(fixture.driver.take_methods().is_empty());
        assert_eq!(fixture.node.csi.volumes_in_use(), IN_USE);
        fixture.driver.fail("NodeUnstageVolume", None);
        volumes::tear_down(&fixture.node, "b").await.unwrap();
        until(|| fixture.node.csi.volumes_in_use().is_empty()).await;
        assert_eq!(fixture.driver.take_methods(), ["NodeUnpublishVolume", "NodeUnstageVolume"]);
        assert!(!fixture.staging_dir().exists());
    }
}

#[tokio::test]
async fn a_volume_is_unstaged_once_its_driver_can() {
    let fixture = with_pod(&claiming("a")).await;
    fixture.driver.fail("NodeUnstageVolume", Some(Code::Unavailable));
    volumes::tear_down(&fixture.node, "a").await.unwrap();
    unstage_fails(&fixture).await;
    fixture.driver.fail("NodeUnstageVolume", None);
    until(|| fixture.node.csi.volumes_in_use().is_empty()).await;
    assert!(!fixture.staging_dir().exists());
    until(|| fixture.tasks.problems().list().is_empty()).await;
}

#[tokio::test]
async fn a_restarted_process_unstages_what_an_earlier_one_left() {
    let fixture = with_pod(&claiming("a")).await;
    fixture.driver.fail("NodeUnstageVolume", Some(Code::Internal));
    volumes::tear_down(&fixture.node, "a").await.unwrap();
    unstage_fails(&fixture).await;
    let status = core::NodeStatus {
        volumes_in_use: Some(IN_USE.map(str::to_owned).into()),
        ..Default::default()
    };
    fixture.tasks.shutdown().request();
    // The next process; the driver is not registered yet.
    let tasks = Tasks::new(Shutdown::new());
    let node = Fixture::node(fixture.home.path(), &fixture.api, &tasks, Selinux::default()).await;
    let left = node.csi.read_volumes_in_use(Some(&status)).await;
    volumes::unstage_left(&node, left);
    assert_eq!(node.csi.volumes_in_use(), IN_USE);
    until(|| !tasks.problems().list().is_empty()).await;
    assert_eq!(node.csi.volumes_in_use(), IN_USE);
    let socket = fixture.home.path().join("again.sock");
    let capabilities = [rpc::Type::StageUnstageVolume];
    let driver = FakeDriver::serve(&tasks, "d.example.com", &socket, &capabilities);
    let registry = node.identity.config.root_dir.join("plugins_registry");
    std::fs::remove_file(registry.join("d.example.com-reg.sock")).unwrap();
    let handlers: PluginHandlers = vec![Arc::new(CsiPluginHandler::new(&node.csi, &tasks))];
    let (problems, shutdown) = (tasks.problems().clone(), tasks.shutdown().clone());
    tasks.spawn(
        Kind::Request,
        "plugins",
        plugins::run(registry.clone(), handlers, problems, shutdown),
    );
    driver.listen(&tasks, &registry.join("again-reg.sock"));
    until(|| node.csi.volumes_in_use().is_empty()).await;
    assert!(!fixture.staging_dir().exists());
    assert!(driver.take_methods().contains(&"NodeUnstageVolume".to_owned()));
    until(|| tasks.problems().list().is_empty()).await;
    tasks.shutdown().request();
}
