//! Runs the machine's containerd in its own directories.

use std::time::Duration;

use base::{Kind, Shutdown, Tasks};
use proto::runtime::v1 as cri;

use super::{import, supervise};
use crate::Config;
use crate::runtime::Runtime;
use crate::runtime::cri::CriRuntime;

/// Whether containers can be started here; prints why not.
fn privileged() -> bool {
    let able = nix::unistd::Uid::effective().is_root()
        && ["/usr/bin/containerd", "/usr/local/bin/containerd"]
            .iter()
            .any(|p| std::path::Path::new(p).exists());
    if !able {
        assert!(std::env::var_os("CI").is_none(), "CI must have root and containerd");
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), "skipped: needs root and containerd");
    }
    able
}

fn sandbox(name: &str) -> cri::PodSandboxConfig {
    let namespaces = cri::NamespaceOption {
        network: cri::NamespaceMode::Node.into(),
        pid: cri::NamespaceMode::Container.into(),
        ..Default::default()
    };
    let security = cri::LinuxSandboxSecurityContext {
        namespace_options: Some(namespaces),
        ..Default::default()
    };
    cri::PodSandboxConfig {
        metadata: Some(cri::PodSandboxMetadata {
            name: name.to_owned(),
            uid: name.to_owned(),
            namespace: "test".to_owned(),
            attempt: 0,
        }),
        linux: Some(cri::LinuxPodSandboxConfig {
            cgroup_parent: format!("/kube-lite-test-{}", std::process::id()),
            security_context: Some(security),
            ..Default::default()
        }),
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_of_the_built_in_image_survives_a_restart_of_the_supervisor() {
    if !privileged() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (data, run) = (directory.path().join("data"), directory.path().join("run"));
    let config = Config::new("n", [127, 0, 0, 1].into(), data, run.clone()).runtime;

    let (mut first, supervisor, _) = supervise::prepare(&config).await.unwrap();
    let tasks = Tasks::new(Shutdown::new());
    tasks.spawn(Kind::Critical, "containerd", supervisor.run(tasks.shutdown().clone()));
    first.ready().await;
    import::pause_image(first.socket()).await.unwrap();
    import::pause_image(first.socket()).await.unwrap();
    let runtime = CriRuntime::new(first.socket());
    let mut backoff = base::Backoff::new(Duration::from_millis(5), Duration::from_millis(50));
    while runtime.image(crate::runtime::images::pause::IMAGE).await.unwrap().is_none() {
        assert!(backoff.wait(tasks.shutdown()).await);
    }
    let id = runtime.run_sandbox(sandbox("one"), "").await.unwrap();
    tasks.shutdown().request();
    assert!(tasks.drain(Duration::from_secs(60)).await.is_empty());

    let (mut second, supervisor, _) = supervise::prepare(&config).await.unwrap();
    let tasks = Tasks::new(Shutdown::new());
    tasks.spawn(Kind::Critical, "containerd", supervisor.run(tasks.shutdown().clone()));
    second.ready().await;
    let ready = runtime.sandbox_status(&id).await.unwrap().state();
    assert_eq!(ready, cri::PodSandboxState::SandboxReady);
    runtime.stop_sandbox(&id).await.unwrap();
    runtime.remove_sandbox(&id).await.unwrap();
    assert!(runtime.sandbox_status(&id).await.unwrap_err().is_not_found());
    tasks.shutdown().request();
    let pid: i32 = std::fs::read_to_string(run.join("containerd.pid")).unwrap().parse().unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGTERM)
        .unwrap();
}
