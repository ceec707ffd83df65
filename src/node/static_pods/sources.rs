//! The static pods of all sources: of manifests on disk, and of a URL.

use std::sync::Arc;

use base::{Problem, Problems};
use tokio::sync::watch;

use crate::pods::pod::Pod;

/// Prefix of the keys of problem entries of pods that two sources have.
const PROBLEMS: &str = "static-pods/twice/";

/// A source of static pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PodSource {
    /// Manifests on disk.
    Files,
    /// The document at a URL.
    Url,
}

/// The current static pods of each source; `None` before a source was read.
#[derive(Debug, Clone, Default)]
pub(crate) struct StaticPods {
    files: Option<Vec<Arc<Pod>>>,
    url: Option<Vec<Arc<Pod>>>,
}

impl StaticPods {
    /// The pods before any source was read.
    pub(crate) fn new(has_url: bool) -> Self {
        Self { files: None, url: (!has_url).then(Vec::new) }
    }

    /// Whether each source was read. Until then, a pod that is in no source may be in one that was
    /// not read: it keeps running (upstream's `AllReady`).
    pub(crate) fn is_complete(&self) -> bool {
        self.files.is_some() && self.url.is_some()
    }

    /// All pods. A pod of the URL with the name or uid of one on disk is left out.
    pub(crate) fn pods(&self) -> Vec<Arc<Pod>> {
        let files = self.files.iter().flatten();
        files.chain(self.of_url(false)).cloned().collect()
    }

    /// The pods of the URL, by whether another source has the same name or uid.
    fn of_url(&self, is_twice: bool) -> impl Iterator<Item = &Arc<Pod>> {
        let has =
            |pod: &Pod| self.files.iter().flatten().any(|p| p.key == pod.key || p.uid == pod.uid);
        self.url.iter().flatten().filter(move |pod| has(pod) == is_twice)
    }

    fn set(&mut self, source: PodSource, pods: Vec<Arc<Pod>>) {
        match source {
            PodSource::Files => self.files = Some(pods),
            PodSource::Url => self.url = Some(pods),
        }
    }

    /// A problem entry for each pod that is left out.
    fn problems(&self) -> Vec<(String, Problem)> {
        let problem = |pod: &Arc<Pod>| {
            let what =
                format!("a manifest on disk and the manifest URL contain the pod {}", pod.key);
            let fix = "remove one of them; until then the one on disk runs";
            (format!("{PROBLEMS}{}", pod.key), Problem { what, fix: fix.to_owned() })
        };
        self.of_url(true).map(problem).collect()
    }
}

/// Publishes the pods of a source.
#[derive(Debug, Clone)]
pub(crate) struct StaticPodPublisher {
    sender: watch::Sender<StaticPods>,
    problems: Problems,
}

impl StaticPodPublisher {
    /// A publisher for all sources, and the pods that it publishes.
    pub(crate) fn new(has_url: bool, problems: Problems) -> (Self, watch::Receiver<StaticPods>) {
        let (sender, pods) = watch::channel(StaticPods::new(has_url));
        (Self { sender, problems }, pods)
    }

    /// Replaces the pods of a source.
    pub(crate) fn publish(&self, source: PodSource, pods: Vec<Arc<Pod>>) {
        self.sender.send_modify(|all| all.set(source, pods));
        let twice = self.sender.borrow().problems();
        self.problems.replace(PROBLEMS, twice);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::static_pods::document::tests::WEB;
    use crate::static_pods::document::{ManifestSource, parse};

    fn pod(name: &str, source: ManifestSource<'_>) -> Arc<Pod> {
        let text = WEB.replace("name: web", &format!("name: {name}"));
        Arc::new(parse(text.as_bytes(), source, "n").unwrap())
    }

    #[test]
    fn pods_are_complete_once_each_source_was_read() {
        let problems = Problems::default();
        let file = ManifestSource::File("/m/a.yaml".as_ref());
        let (publisher, pods) = StaticPodPublisher::new(true, problems.clone());
        publisher.publish(PodSource::Files, vec![pod("a", file)]);
        assert_eq!((pods.borrow().pods().len(), pods.borrow().is_complete()), (1, false));
        publisher.publish(PodSource::Url, Vec::new());
        assert!(pods.borrow().is_complete());
        let (publisher, pods) = StaticPodPublisher::new(false, problems);
        publisher.publish(PodSource::Files, Vec::new());
        assert!(pods.borrow().is_complete(), "there is no URL");
    }

    #[test]
    fn a_pod_on_disk_takes_precedence_over_one_of_the_url() {
        let problems = Problems::default();
        let (file, url) = (ManifestSource::File("/m/a.yaml".as_ref()), ManifestSource::Url("u"));
        let (publisher, pods) = StaticPodPublisher::new(true, problems.clone());
        publisher.publish(PodSource::Url, vec![pod("a", url), pod("b", url)]);
        assert_eq!((pods.borrow().pods().len(), problems.list().len()), (2, 0));
        let on_disk = pod("a", file);
        publisher.publish(PodSource::Files, vec![Arc::clone(&on_disk)]);
        let all = pods.borrow().pods();
        assert_eq!((all.len(), &all[0].uid), (2, &on_disk.uid));
        let whats: Vec<_> = problems.list().into_iter().map(|(_, p)| p.what).collect();
        let want = "a manifest on disk and the manifest URL contain the pod default/a-n";
        assert_eq!(whats, [want]);
        publisher.publish(PodSource::Files, Vec::new());
        assert!(problems.list().is_empty());
    }
}
