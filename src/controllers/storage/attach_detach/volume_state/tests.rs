//! Decisions about one volume, with the cases of upstream's reconciler: the test applies what is
//! planned to a view, as the API server and external-attacher would.

use base::clock;

use super::*;

/// How external-attacher and the API server answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// At once.
    Done,
    /// Not at all.
    Silent,
    /// With an error in the status.
    Failed,
    /// The request is refused.
    Refused,
}

struct World {
    state: VolumeState,
    view: VolumeView,
    attach: Answer,
    detach: Answer,
    writes_lists: bool,
    forces_on_timeout: bool,
    /// All requests in order: `attach n1`.
    requests: Vec<String>,
    attached: Vec<String>,
    detached: Vec<(String, Option<ForcedReason>)>,
    events: Vec<String>,
    recheck: Option<Instant>,
}

const HEALTHY: NodeCondition =
    NodeCondition { is_mounted: false, is_healthy: true, is_out_of_service: false };

fn persistent_volume() -> AttachSource {
    AttachSource::PersistentVolume("pv".into())
}

impl World {
    fn new(is_exclusive: bool) -> Self {
        Self {
            state: VolumeState::default(),
            view: VolumeView {
                name: VolumeName::new("d", "h"),
                is_migrated: false,
                is_exclusive,
                users: Vec::new(),
                nodes: BTreeMap::new(),
            },
            attach: Answer::Done,
            detach: Answer::Done,
            writes_lists: true,
            forces_on_timeout: true,
            requests: Vec::new(),
            attached: Vec::new(),
            detached: Vec::new(),
            events: Vec::new(),
            recheck: None,
        }
    }

    fn on(&mut self, node: &str) -> &mut VolumeOnNode {
        self.view.nodes.entry(node.into()).or_insert(VolumeOnNode {
            attachment: None,
            is_listed: false,
            is_removed: false,
            condition: HEALTHY,
        })
    }

    fn add_pod(&mut self, namespace: &str, name: &str, node: &str) {
        self.on(node);
        self.view.users.push(VolumeUser {
            pod: ObjectReference {
                namespace: Some(namespace.into()),
                name: Some(name.into()),
                ..ObjectReference::default()
            },
            node: node.into(),
            source: persistent_volume(),
            is_exclusive: self.view.is_exclusive,
        });
    }

    fn remove_pod(&mut self, name: &str) {
        self.view.users.retain(|user| user.pod.name.as_deref() != Some(name));
    }

    /// A volume that is attached and listed from before this process.
    fn attached_before(&mut self, node: &str) {
        let on = self.on(node);
        on.attachment = Some(Attachment { is_attached: true, ..Attachment::default() });
        on.is_listed = true;
    }

    fn refusal() -> client::Error {
        client::Error::Transport("refused".into())
    }

    fn apply(&mut self, step: Step) -> Vec<Step> {
        let now = clock::now();
        match step {
            Step::Event { pod, kind, message, .. } => {
                let name = pod.name.unwrap_or_default();
                self.events.push(format!("{name} {kind:?} {message}"));
                Vec::new()
            }
            Step::Attach { node, source } => {
                assert_eq!(source, persistent_volume());
                self.attached.push(node.to_string());
                self.requests.push(format!("attach {node}"));
                let result = match self.attach {
                    Answer::Refused => Err(Self::refusal()),
                    answer => {
                        let on = self.on(&node);
                        on.attachment = Some(Attachment {
                            is_attached: answer == Answer::Done,
                            attach_error: (answer == Answer::Failed).then(|| "no".into()),
                            ..Attachment::default()
                        });
                        Ok(())
                    }
                };
                self.state.attach_requested(&self.view, &node, result, now)
            }
            Step::Detach { node, forced } => {
                assert!(self.view.nodes[&node].is_removed);
                self.detached.push((node.to_string(), forced));
                self.requests.push(format!("detach {node}"));
                let had_attachment = self.on(&node).attachment.is_some();
                let before = self.view.clone();
                let result = match self.detach {
                    Answer::Refused => Err(DetachError::InUse),
                    Answer::Done => {
                        self.on(&node).attachment = None;
                        Ok(if had_attachment { Deletion::Accepted } else { Deletion::NotFound })
                    }
                    answer => {
                        if let Some(attachment) = &mut self.on(&node).attachment {
                            attachment.is_deleting = true;
                            let is_failed = answer == Answer::Failed;
                            attachment.detach_error = is_failed.then(|| "busy".into());
                        }
                        Ok(Deletion::Accepted)
                    }
                };
                let step = self.state.detach_requested(&before, &node, result, now);
                step.into_iter().collect()
            }
            Step::List { node, is_listed, is_awaited } => {
                if self.writes_lists {
                    let on = self.on(&node);
                    on.is_listed = is_listed;
                    on.is_removed = !is_listed && (is_awaited || on.is_removed);
                }
                Vec::new()
            }
            Step::Forget { .. } | Step::Completed { .. } => Vec::new(),
        }
    }

    /// Plans until nothing more happens at this time.
    fn settle(&mut self) {
        for _ in 0..6 {
            let Plan { steps, recheck } =
                self.state.plan(&self.view, self.forces_on_timeout, clock::now());
            self.recheck = recheck;
            let mut steps = std::collections::VecDeque::from(steps);
            while let Some(step) = steps.pop_front() {
                steps.extend(self.apply(step));
            }
        }
    }

    /// Lets the earliest timer fire.
    async fn wait(&mut self) {
        let now = clock::now();
        let due = self.state.next_due(now).into_iter().chain(self.recheck).min();
        tokio::time::advance(due.expect("a timer runs") - now).await;
        self.settle();
    }

    fn listed(&self) -> Vec<&str> {
        let listed = self.view.nodes.iter().filter(|(_, on)| on.is_listed);
        listed.map(|(node, _)| &**node).collect()
    }

    fn confirmed(&self) -> Vec<&str> {
        let confirmed = self.view.nodes.iter().filter(|(_, on)| on.is_confirmed());
        confirmed.map(|(node, _)| &**node).collect()
    }
}

const SUCCESS: &str = "AttachVolume.Attach succeeded for volume \"pv\" ";

#[tokio::test(start_paused = true)]
async fn nothing_to_do_does_nothing() {
    let mut world = World::new(true);
    world.settle();
    assert!(world.attached.is_empty() && world.detached.is_empty() && world.state.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_needed_volume_is_attached_listed_and_reported_once() {
    let mut world = World::new(true);
    world.add_pod("a", "p", "n1");
    world.settle();
    assert_eq!((world.attached.len(), world.detached.len()), (1, 0));
    assert_eq!(world.listed(), ["n1"]);
    assert_eq!(world.events, [format!("p Normal {SUCCESS}")]);
    // Another pod on the same node shares the attachment.
    world.add_pod("a", "q", "n1");
    world.settle();
    assert_eq!((world.attached.len(), world.events.len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn an_unmounted_volume_is_detached_after_it_has_left_the_list() {
    let mut world = World::new(true);
    world.add_pod("a", "p", "n1");
    world.settle();
    world.remove_pod("p");
    world.writes_lists = false;
    world.settle();
    assert!(world.detached.is_empty(), "the list cannot be written");
    assert_eq!(world.confirmed(), ["n1"]);
    world.writes_lists = true;
    world.settle();
    assert_eq!(world.detached, [("n1".into(), None)]);
    assert!(world.listed().is_empty());
    assert_eq!(world.attached.len(), 1);
    assert!(world.state.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_returns_before_the_list_is_written_keeps_its_volume() {
    let mut world = World::new(true);
    world.add_pod("a", "p", "n1");
    world.settle();
    world.remove_pod("p");
    world.writes_lists = false;
    world.settle();
    world.add_pod("a", "q", "n1");
    world.writes_lists = true;
    world.settle();
    assert!(world.detached.is_empty());
    assert_eq!((world.listed(), world.events.len()), (vec!["n1"], 1));
}

#[tokio::test(start_paused = true)]
async fn a_mounted_volume_of_an_unhealthy_node_is_detached_after_six_minutes() {
    let mut world = World::new(true);
    world.add_pod("a", "p", "n1");
    world.settle();
    world.remove_pod("p");
    world.on("n1").condition = NodeCondition { is_mounted: true, is_healthy: false, ..HEALTHY };
    world.settle();
    assert!(world.detached.is_empty());
    assert_eq!(world.listed(), ["n1"], "the kubelet still has it");
    let before = clock::now();
    world.wait().await;
    assert_eq!((clock::now() - before).as_secs(), 360);
    assert_eq!(world.detached, [("n1".into(), Some(ForcedReason::Timeout))]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_returns_stops_the_clock() {
    let mut world = World::new(true);
    world.add_pod("a", "p", "n1");
    world.settle();
    world.on("n1").condition = NodeCondition { is_mounted: true, is_healthy: false, ..HEALTHY };
    for _ in 0..2 {
        world.remove_pod("p");
        world.settle();
        tokio::time::advance(Duration::from_secs(350)).await;
        world.add_pod("a", "p", "n1");
        world.settle();
    }
    assert!(world.detached.is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_time_alone_detaches_nothing_from_a_healthy_node() {
    let mut world = World::new(true);
    world.add_pod("a", "p", "n1");
    world.settle();
    world.remove_pod("p");
    world.on("n1").condition.is_mounted = true;
    world.settle();
    world.wait().await;
    assert!(world.detached.is_empty() && world.recheck.is_none());
    world.on("n1").condition.is_healthy = false;
    world.settle();
    assert_eq!(world.detached, [("n1".into(), Some(ForcedReason::Timeout))]);
}

#[tokio::test(start_paused = true)]
async fn an_out_of_service_node_loses_its_volume_at_once() {
    let mut world = World::new(true);
    world.add_pod("a", "p", "n1");
    world.settle();
    world.remove_pod("p");
    world.on("n1").condition.is_mounted = true;
    world.settle();
    assert!(world.detached.is_empty(), "there is no taint");
    world.on("n1").condition.is_out_of_service = true;
    world.settle();
    assert_eq!(world.detached, [("n1".into(), Some(ForcedReason::OutOfService))]);
}

#[tokio::test(start_paused = true)]
async fn without_forced_detaches_the_taint_alone_releases_a_mounted_volume() {
    let mut world = World::new(true);
    world.forces_on_timeout = false;
    world.add_pod("a", "p", "n1");
    world.settle();
    world.remove_pod("p");
    world.on("n1").condition = NodeCondition { is_mounted: true, is_healthy: false, ..HEALTHY };
    world.settle();
    assert!(world.recheck.is_none());
    tokio::time::advance(Duration::from_secs(3600)).await;
    world.settle();
    assert!(world.detached.is_empty());
    world.on("n1").condition.is_out_of_service = true;
    world.settle();
    assert_eq!(world.detached, [("n1".into(), Some(ForcedReason::OutOfService))]);
}

#[tokio::test(start_paused = true)]
async fn a_shared_volume_is_attached_to_several_nodes() {
    let mut world = World::new(false);
    world.add_pod("a", "p1", "n1");
    world.add_pod("a", "p2", "n2");
    world.settle();
    assert_eq!((world.attached.len(), world.listed()), (2, vec!["n1", "n2"]));
    world.remove_pod("p1");
    world.settle();
    assert_eq!(world.detached, [("n1".into(), None)]);
    world.remove_pod("p2");
    world.settle();
    assert_eq!(world.detached.len(), 2);
    assert!(world.confirmed().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_exclusive_volume_moves_after_it_was_detached() {
    let mut world = World::new(true);
    world.add_pod("a", "p1", "n1");
    world.settle();
    world.add_pod("a", "p2", "n2");
    world.settle();
    assert_eq!(world.attached, ["n1"]);
    let conflict = "p2 Warning Waiting for detach for volume \"pv\" Volume is already used by \
                    pod(s) p1";
    assert_eq!(world.events[1..], [conflict]);
    world.add_pod("a", "p3", "n2");
    world.settle();
    assert_eq!(world.events.len(), 2, "reported once per node");
    world.remove_pod("p1");
    world.detach = Answer::Silent;
    world.settle();
    assert_eq!((world.detached.len(), world.attached.len()), (1, 1));
    // The driver is done.
    world.on("n1").attachment = None;
    world.settle();
    assert_eq!(world.attached, ["n1", "n2"]);
    assert_eq!((world.confirmed(), world.listed()), (vec!["n2"], vec!["n2"]));
}

#[tokio::test(start_paused = true)]
async fn a_holder_without_pods_blocks_with_another_message() {
    let mut world = World::new(true);
    world.attached_before("n1");
    world.on("n1").condition.is_mounted = true;
    world.add_pod("a", "p2", "n2");
    world.settle();
    assert_eq!(
        world.events,
        ["p2 Warning Waiting for detach for volume \"pv\" Volume is already exclusively attached \
          to one node, waiting on detach before it can be attached to another node"]
    );
    assert!(world.attached.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_refused_attachment_is_retried_and_reported() {
    let mut world = World::new(true);
    world.attach = Answer::Refused;
    world.add_pod("a", "p", "n1");
    world.settle();
    assert_eq!(world.attached.len(), 1);
    assert_eq!(
        world.events,
        ["p Warning AttachVolume.Attach failed for volume \"pv\" : kubernetes.io/csi: \
          attacher.Attach failed: cannot reach the API server: refused"]
    );
    world.attach = Answer::Done;
    let before = clock::now();
    world.wait().await;
    assert!(clock::now() - before >= Duration::from_millis(500));
    assert_eq!((world.attached.len(), world.listed()), (2, vec!["n1"]));
    assert_eq!(world.events[1..], [format!("p Normal {SUCCESS}")]);
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_driver_is_reported_at_each_retry_until_it_is_over() {
    let mut world = World::new(true);
    world.attach = Answer::Failed;
    world.add_pod("a", "p", "n1");
    world.settle();
    world.wait().await;
    world.wait().await;
    let failed = "p Warning AttachVolume.Attach failed for volume \"pv\" : no";
    assert_eq!(world.events, [failed; 3]);
    assert_eq!(world.attached.len(), 1, "external-attacher retries on its own");
    // It succeeds between two retries.
    world.attached_before("n1");
    world.on("n1").is_listed = false;
    world.settle();
    assert_eq!(world.events[3..], [format!("p Normal {SUCCESS}")]);
    assert_eq!(world.listed(), ["n1"]);
    assert_eq!(world.state.next_due(clock::now()), None);
}

#[tokio::test(start_paused = true)]
async fn an_attacher_without_an_answer_fails_after_two_minutes() {
    let mut world = World::new(true);
    world.attach = Answer::Silent;
    world.add_pod("a", "p", "n1");
    world.settle();
    let before = clock::now();
    world.wait().await;
    assert_eq!((clock::now() - before).as_secs(), 120);
    assert_eq!(
        world.events,
        ["p Warning AttachVolume.Attach failed for volume \"pv\" : timed out waiting for \
          external-attacher of d CSI driver to attach volume h"]
    );
    assert!(world.listed().is_empty() && world.confirmed().is_empty());
    // The pod moves: the uncertain attachment is removed, then the other node gets the volume.
    world.remove_pod("p");
    world.attach = Answer::Done;
    world.add_pod("a", "q", "n2");
    world.settle();
    assert_eq!(world.requests, ["attach n1", "detach n1", "attach n2"]);
    assert_eq!((world.confirmed(), world.listed()), (vec!["n2"], vec!["n2"]));
}

#[tokio::test(start_paused = true)]
async fn a_failed_detachment_leaves_the_volume_uncertain_and_unlisted() {
    let mut world = World::new(true);
    world.add_pod("a", "p", "n1");
    world.settle();
    world.remove_pod("p");
    world.detach = Answer::Failed;
    world.settle();
    assert_eq!(world.detached.len(), 1);
    assert!(world.listed().is_empty() && world.confirmed().is_empty());
    world.wait().await;
    assert_eq!(world.detached.len(), 2, "retried");
    // A pod needs it on the same node again, before the driver is done.
    world.add_pod("a", "q", "n1");
    world.settle();
    let deleting = "q Warning AttachVolume.Attach failed for volume \"pv\" : volume attachment is \
                    being deleted";
    assert_eq!(world.events[1..], [deleting]);
    world.on("n1").attachment = None;
    world.wait().await;
    assert_eq!((world.attached.len(), world.listed()), (2, vec!["n1"]));
    // A third pod elsewhere changes nothing there.
    world.add_pod("a", "r", "n2");
    world.settle();
    assert_eq!((world.confirmed(), world.detached.len()), (vec!["n1"], 2));
}

#[tokio::test(start_paused = true)]
async fn a_volume_in_use_by_the_live_node_still_blocks_other_nodes() {
    let mut world = World::new(true);
    world.add_pod("a", "p", "n1");
    world.settle();
    world.remove_pod("p");
    world.add_pod("a", "q", "n2");
    world.detach = Answer::Refused;
    world.settle();
    assert_eq!((world.detached.len(), world.attached.len()), (1, 1));
    world.wait().await;
    assert_eq!((world.detached.len(), world.attached.len()), (2, 1));
    world.detach = Answer::Done;
    world.wait().await;
    assert_eq!((world.confirmed(), world.attached.len()), (vec!["n2"], 2));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_returns_during_the_detachment_waits_for_its_end() {
    let mut world = World::new(true);
    world.add_pod("a", "p", "n1");
    world.settle();
    world.remove_pod("p");
    world.detach = Answer::Silent;
    world.settle();
    world.add_pod("a", "q", "n1");
    world.settle();
    assert_eq!(world.attached.len(), 1);
    world.on("n1").attachment = None;
    world.settle();
    assert_eq!((world.attached.len(), world.listed()), (2, vec!["n1"]));
    assert_eq!(world.events[1..], [format!("q Normal {SUCCESS}")]);
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_needed_volumes_stay_and_dangling_ones_go() {
    let mut world = World::new(false);
    world.attached_before("needed");
    world.add_pod("a", "p", "needed");
    world.attached_before("dangling");
    world.attached_before("mounted");
    world.on("mounted").condition.is_mounted = true;
    // A detachment had begun, and an attachment was never completed.
    world.attached_before("unlisted");
    world.on("unlisted").is_listed = false;
    world.on("unattached").attachment = Some(Attachment::default());
    world.settle();
    assert!(world.attached.is_empty() && world.events.is_empty());
    let mut detached: Vec<&str> = world.detached.iter().map(|(node, _)| node.as_str()).collect();
    detached.sort_unstable();
    assert_eq!(detached, ["dangling", "unattached", "unlisted"]);
    assert_eq!(world.listed(), ["mounted", "needed"]);
}

#[tokio::test(start_paused = true)]
async fn a_listed_volume_without_an_attachment_leaves_the_list() {
    let mut world = World::new(true);
    world.attached_before("n1");
    world.on("n1").attachment = None;
    world.settle();
    assert!(world.listed().is_empty() && world.state.is_empty());
    // A pod needs it: it is attached before it is listed.
    world.on("n1").is_listed = true;
    world.attach = Answer::Silent;
    world.add_pod("a", "p", "n1");
    world.settle();
    assert_eq!(world.attached, ["n1"]);
    assert!(world.listed().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_attachment_that_someone_else_deletes_is_made_again() {
    let mut world = World::new(true);
    world.add_pod("a", "p", "n1");
    world.settle();
    world.on("n1").attachment = None;
    world.settle();
    assert_eq!(world.attached.len(), 2);
    assert_eq!(world.events, vec![format!("p Normal {SUCCESS}"); 2]);
}
