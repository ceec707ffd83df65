//! Throw-away network namespaces for tests.

use std::process::Command;

/// Whether tests that need root may run; without it they say so, and fail where `CI=true`.
pub(crate) fn privileged(test: &str) -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        #[expect(clippy::disallowed_methods, reason = "tests may ask whether they run in CI")]
        let ci = std::env::var("CI").is_ok_and(|v| v == "true");
        assert!(!ci, "{test} needs root");
        #[expect(clippy::print_stderr, reason = "a skipped test says so")]
        {
            eprintln!("skipped: {test} needs root");
        }
    }
    root
}

/// Runs `work` on a thread of its own in a new network namespace with `lo` up.
pub(crate) fn in_namespace<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::spawn(|| {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        shell("ip link set lo up");
        work()
    });
    match thread.join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Runs a shell command in the thread's namespace and returns its output.
pub(crate) fn shell(command: &str) -> String {
    let output = Command::new("sh").args(["-ec", command]).output().unwrap();
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    assert!(output.status.success(), "{command}: {}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// Makes two connected links, `d0` and `d1`, that are up, in the thread's namespace.
pub(crate) fn connected_links() {
    shell("ip link add d0 type veth peer name d1; ip link set d0 up; ip link set d1 up");
}

/// Waits until something holds; on a timeout it panics with the output of the command.
pub(crate) async fn eventually(what: &str, state: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..1500 {
        if holds() {
            return;
        }
        base::clock::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("never: {what}\n{}", shell(state));
}

type Work = Box<dyn FnOnce() + Send>;

/// A namespace of its own that lives as long as this value: a pod, or another machine.
pub(crate) struct Pod {
    work: Option<std::sync::mpsc::Sender<Work>>,
    thread: Option<std::thread::JoinHandle<()>>,
    pub(crate) tid: i32,
}

impl Pod {
    pub(crate) fn new() -> Self {
        let (work, queue) = std::sync::mpsc::channel::<Work>();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            tell.send(nix::unistd::gettid().as_raw()).unwrap();
            for work in queue {
                work();
            }
        });
        Self { work: Some(work), thread: Some(thread), tid: told.recv().unwrap() }
    }

    /// The path of its namespace.
    pub(crate) fn path(&self) -> String {
        format!("/proc/self/task/{}/ns/net", self.tid)
    }

    /// Runs `work` inside and waits for it.
    pub(crate) fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (tell, told) = std::sync::mpsc::channel();
        let work = Box::new(move || {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            tell.send(result).unwrap();
        });
        self.work.as_ref().unwrap().send(work).unwrap();
        told.recv().unwrap().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        self.work.take();
        self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// A dual-stack node's settings with all files under `directory`.
pub(crate) fn config(directory: &std::path::Path) -> crate::Config {
    let blocks = |list: &[&str]| list.iter().map(|b| b.parse().unwrap()).collect();
    crate::Config {
        node_name: "me".into(),
        cluster: settings::ClusterSettings {
            cluster_cidrs: blocks(&["10.42.0.0/16", "fd00:42::/48"]),
            service_cidrs: blocks(&["10.43.0.0/16", "fd00:43::/112"]),
            cluster_dns: vec!["10.43.0.10".parse().unwrap()],
            backend: settings::Backend::None,
            ..settings::ClusterSettings::default()
        },
        addresses: tokio::sync::watch::Sender::new(vec!["192.0.2.1".parse().unwrap()]),
        left_out: tokio::sync::watch::Sender::default(),
        addresses_held: true,
        interface: None,
        external_addresses: Vec::new(),
        cni_list: None,
        table: "kube-lite".into(),
        bridge: "cni0".into(),
        pod_cidrs: blocks(&["10.42.0.0/24", "fd00:42::/64"]),
        resolv_conf: directory.join("resolv.conf"),
        dns: crate::DnsState::default(),
        state_dir: directory.join("state"),
        socket: directory.join("cni.sock"),
        cni_conf_dir: directory.join("net.d"),
        cni_bin_dir: directory.join("bin"),
        localhost_node_ports: true,
        proxy_healthz: None,
        virtual_addresses: None,
        api_vip: None,
        proxy_metrics: None,
        guard: None,
        dropped_packets: crate::DroppedPackets::default(),
    }
}

/// A CNI call for `eth0` of a pod.
pub(crate) fn request(
    command: &str,
    container: &str,
    pod: &Pod,
    runtime: serde_json::Value,
) -> crate::cni::Request {
    crate::cni::Request {
        command: command.into(),
        container: container.into(),
        netns: pod.path(),
        interface: "eth0".into(),
        args: String::new(),
        config: serde_json::json!({"cniVersion": "1.0.0", "runtimeConfig": runtime}),
    }
}
