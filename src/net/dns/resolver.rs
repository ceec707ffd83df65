//! Questions about names outside the cluster: from the cache, from upstream servers, or from what
//! was known when they do not answer.

use std::sync::Arc;

use base::{Kind, Tasks};
use hickory_proto::op::{Message, ResponseCode};
use tokio::sync::{Semaphore, oneshot};

use crate::dns::cache::{Cache, CacheLookup, Key};
use crate::dns::forward::{self, NodeServers, Tls};
use crate::dns::message::{plain, response};
use crate::dns::metrics;
use crate::dns::rules::{Block, Rules};

/// An answer and the plugin that gave it.
pub(crate) type Answered = (Message, &'static str);

/// Resolves names by the rules of their server block.
pub(crate) struct Resolver {
    node: NodeServers,
    tls: Tls,
    cache: Cache,
    tasks: Tasks,
    /// Questions and connections at once.
    work: Arc<Semaphore>,
}

impl Resolver {
    pub(crate) fn new(node: NodeServers, tasks: Tasks, work: Arc<Semaphore>) -> Self {
        Self { node, tls: Tls::default(), cache: Cache::default(), tasks, work }
    }

    /// Forgets all answers.
    pub(crate) fn clear(&self) {
        self.cache.clear();
    }

    /// The answer to a question that the plugins of its server block leave to upstream servers;
    /// SERVFAIL when none answers.
    pub(crate) async fn resolve(
        self: &Arc<Self>,
        rules: &Arc<Rules>,
        index: usize,
        request: &Message,
        tcp: bool,
    ) -> Answered {
        let failed = || (response(request, ResponseCode::ServFail), "forward");
        let Some(block) = rules.blocks.get(index) else { return failed() };
        let (Some(settings), Some(key)) = (&block.cache, Key::of(index, request)) else {
            let found = self.upstream(block, request, tcp).await;
            return found.map_or_else(failed, |found| (found, "forward"));
        };
        let old = match self.cache.find(&key, request, settings) {
            CacheLookup::Fresh(answer) => return (answer, "cache"),
            CacheLookup::Stale(answer) => answer,
            CacheLookup::Nothing => {
                let found = self.renew(block, key, request, tcp).await;
                return found.map_or_else(failed, |found| (found, "forward"));
            }
        };
        let wait = settings.stale.as_ref().and_then(|stale| stale.wait);
        let is_failing = self.is_failing(block, &key_name(request));
        match wait.filter(|_| !is_failing) {
            Some(wait) => {
                let (send, receive) = oneshot::channel();
                self.spawn(rules, index, request, tcp, Some(send));
                if let Ok(Ok(found)) = tokio::time::timeout(wait, receive).await {
                    return (found, "forward");
                }
            }
            None => {
                let is_due = !is_failing || self.takes_retry(block, &key_name(request));
                if is_due && self.cache.begin_refresh(&key) {
                    self.spawn(rules, index, request, tcp, None);
                }
            }
        }
        metrics::CACHE_STALE.inc(&metrics::CACHE_LABELS);
        (old, "cache")
    }

    fn is_failing(&self, block: &Block, name: &str) -> bool {
        let mut fitting = block.forwards.iter().filter(|forward| forward.is_for(name));
        fitting.all(|forward| forward.is_failing(&self.node))
    }

    fn takes_retry(&self, block: &Block, name: &str) -> bool {
        let mut fitting = block.forwards.iter().filter(|forward| forward.is_for(name));
        fitting.any(|forward| forward.takes_retry(&self.node))
    }

    /// Asks in a task of its own, which goes on when the client has its answer. Sends only answers
    /// that are better than an old one.
    fn spawn(
        self: &Arc<Self>,
        rules: &Arc<Rules>,
        index: usize,
        request: &Message,
        tcp: bool,
        send: Option<oneshot::Sender<Message>>,
    ) {
        let Some(key) = Key::of(index, request) else { return };
        let Ok(permit) = Arc::clone(&self.work).try_acquire_owned() else {
            self.cache.end_refresh(&key);
            return;
        };
        let (this, rules, request) = (Arc::clone(self), Arc::clone(rules), request.clone());
        self.tasks.spawn(Kind::Request, "dns-refresh", async move {
            let _permit = permit;
            let Some(block) = rules.blocks.get(index) else {
                return Ok::<(), std::convert::Infallible>(());
            };
            let found = this.renew(block, key.clone(), &request, tcp).await;
            this.cache.end_refresh(&key);
            let is_better = |found: &Message| {
                matches!(
                    found.metadata.response_code,
                    ResponseCode::NoError | ResponseCode::NXDomain
                )
            };
            if let (Some(found), Some(send)) = (found.filter(is_better), send) {
                // The client may have gone.
                let _ = send.send(found);
            }
            Ok(())
        });
    }

    /// Asks upstream servers and keeps the answer.
    async fn renew(
        &self,
        block: &Block,
        key: Key,
        request: &Message,
        tcp: bool,
    ) -> Option<Message> {
        let mut found = self.upstream(block, request, tcp).await?;
        if let Some(settings) = &block.cache {
            self.cache.keep(key, &mut found, settings);
        }
        Some(found)
    }

    async fn upstream(&self, block: &Block, request: &Message, tcp: bool) -> Option<Message> {
        let with = (&self.node, &self.tls);
        let answer = forward::ask(&block.forwards, with, request, tcp).await?;
        let mut out = response(request, answer.metadata.response_code);
        out.metadata.truncation = answer.metadata.truncation;
        out.insert_answers(answer.answers);
        out.insert_authorities(answer.authorities);
        out.insert_additionals(answer.additionals);
        Some(out)
    }
}

fn key_name(request: &Message) -> String {
    request.queries.first().map(|query| plain(query.name())).unwrap_or_default()
}
