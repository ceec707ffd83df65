//! Static pods of a URL: reads the document at an interval, as HTTP has no event for a change
//! (upstream: `pkg/kubelet/config/http.go`).

mod fetch;

use std::sync::Arc;

use base::{Problem, Problems, Shutdown};
use bytes::Bytes;

use self::fetch::{FetchError, Fetcher};
use super::document::{ManifestSource, is_equal, parse_all};
use super::sources::{PodSource, StaticPodPublisher};
use super::url_config::StaticPodUrl;
use crate::digest::sha256;
use crate::pods::pod::Pod;

/// Key of the problem entry.
const PROBLEM: &str = "static-pods/url";

/// What was read of the URL.
#[derive(Debug)]
struct UrlReader {
    source: String,
    node_name: String,
    /// Of the last document.
    digest: Option<String>,
    /// Of the last document that was accepted.
    pods: Vec<Arc<Pod>>,
    /// Why there is no new document.
    fetch_error: Option<String>,
    /// Why the last document is rejected.
    document_error: Option<String>,
}

impl UrlReader {
    fn new(source: String, node_name: String) -> Self {
        Self {
            source,
            node_name,
            digest: None,
            pods: Vec::new(),
            fetch_error: None,
            document_error: None,
        }
    }

    /// Takes the outcome of a request; returns the pods if a document has replaced them. The
    /// previous pods keep running when the URL cannot be read or its document is rejected; an empty
    /// body removes them.
    fn accept(&mut self, outcome: Result<Bytes, FetchError>) -> Option<Vec<Arc<Pod>>> {
        let body = match outcome {
            Ok(body) => body,
            Err(error) => {
                self.fetch_error = Some(error.to_string());
                return None;
            }
        };
        self.fetch_error = None;
        if body.is_empty() {
            // The next document is new, also if it is the same as before.
            self.digest = None;
            self.document_error = Some("zero-length data received".to_owned());
            self.pods.clear();
            return Some(Vec::new());
        }
        let digest = sha256(&body);
        if self.digest.as_ref() == Some(&digest) {
            return None;
        }
        self.digest = Some(digest);
        match parse_all(&body, ManifestSource::Url(&self.source), &self.node_name) {
            Ok(pods) => {
                self.document_error = None;
                let pods = pods.into_iter().map(|pod| self.known(pod)).collect();
                self.pods.clone_from(&pods);
                Some(pods)
            }
            Err(error) => {
                self.document_error = Some(error.to_string());
                None
            }
        }
    }

    /// The pod of the previous document if it is the same: it does not start again.
    fn known(&self, pod: Pod) -> Arc<Pod> {
        let old = self.pods.iter().find(|old| is_equal(old, &pod));
        old.cloned().unwrap_or_else(|| Arc::new(pod))
    }

    fn problems(&self) -> Vec<(String, Problem)> {
        let source = ManifestSource::Url(&self.source);
        let problem = |what: String, fix: &str| {
            vec![(PROBLEM.to_owned(), Problem { what, fix: fix.to_owned() })]
        };
        match (&self.fetch_error, &self.document_error) {
            (Some(error), _) => problem(
                format!("the static pods of {source} cannot be read: {error}"),
                "correct --kubelet-arg=manifest-url or its server; the URL is read again at an \
                 interval",
            ),
            (None, Some(error)) => problem(
                format!("the static pods of {source} are invalid: {error}"),
                "correct the document; it is read again at an interval",
            ),
            (None, None) => Vec::new(),
        }
    }
}

/// Reads the URL now and after each interval, until shutdown, and publishes its pods.
pub(crate) async fn run(
    url: StaticPodUrl,
    node_name: String,
    publisher: StaticPodPublisher,
    problems: Problems,
    shutdown: Shutdown,
) -> Result<(), std::convert::Infallible> {
    let interval = url.interval;
    let mut reader = UrlReader::new(url.source(), node_name);
    let fetcher = Fetcher::new(url);
    loop {
        let outcome = tokio::select! {
            () = shutdown.requested() => return Ok(()),
            outcome = fetcher.get() => outcome,
        };
        let accept = base::tasks::blocking(move || {
            let pods = reader.accept(outcome);
            (reader, pods)
        });
        let Ok((back, pods)) = accept.await else { return Ok(()) };
        reader = back;
        problems.replace(PROBLEM, reader.problems());
        if let Some(pods) = pods {
            publisher.publish(PodSource::Url, pods);
        }
        tokio::select! {
            () = shutdown.requested() => return Ok(()),
            () = base::clock::sleep(interval) => {}
        }
    }
}

#[cfg(test)]
mod tests;
