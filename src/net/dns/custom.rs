//! Follows the ConfigMap `coredns-custom`. A configuration with an error is reported, and the last
//! valid one stays in force, also over restarts and without a server.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use api::k8s::api::core::v1::ConfigMap;
use arc_swap::ArcSwap;
use base::tasks::blocking;
use base::{Kind, Problems, Shutdown, Tasks};
use client::events::EventType;
use client::{EventRecorder, Informer, Informers, Scope, gvr_of};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::config::Error;
use crate::dns::corefile::CorefileError;
use crate::dns::metrics;
use crate::dns::plugins::hosts::Hosts;
use crate::dns::resolver::Resolver;
use crate::dns::rules::Rules;

const NAMESPACE: &str = "kube-system";
const NAME: &str = "coredns-custom";
/// The last valid configuration, in the network's state directory.
const SAVED: &str = "dns-custom.json";

/// The key of the problem that `kube-lite status` shows.
const PROBLEM: &str = "dns/coredns-custom";

/// The state of cluster DNS, shared with `kube-lite status`.
#[derive(Debug, Clone, Default)]
pub struct DnsState(Arc<Mutex<Vec<String>>>);

impl DnsState {
    /// The plugins in the ConfigMap `coredns-custom` without effect, each with the reason.
    pub fn without_effect(&self) -> Vec<String> {
        self.0.lock().clone()
    }
}

type Data = BTreeMap<String, String>;

/// Keeps the rules equal to the ConfigMap.
pub(crate) struct Custom {
    map: Informer<ConfigMap>,
    recorder: EventRecorder,
    rules: Arc<ArcSwap<Rules>>,
    resolver: Arc<Resolver>,
    state: DnsState,
    board: Problems,
    saved: PathBuf,
    /// The data that was read last, valid or not.
    data: Option<Data>,
}

fn data_of(map: ConfigMap) -> Data {
    map.data.unwrap_or_default()
}

impl Custom {
    pub(crate) fn start(
        config: &crate::Config,
        informers: &Informers,
        (rules, resolver): (Arc<ArcSwap<Rules>>, Arc<Resolver>),
        tasks: &Tasks,
    ) {
        let scope = Scope { namespace: NAMESPACE.into(), ..Scope::all(gvr_of::<ConfigMap>()) };
        let map: Informer<ConfigMap> =
            informers.scoped(scope.fields(format!("metadata.name={NAME}")));
        let (changed, changes) = watch::channel(());
        map.on_change(move |_| changed.send_modify(|()| ()));
        let client = informers.client().clone();
        let custom = Self {
            map,
            recorder: EventRecorder::new(client, "cluster-dns", &config.node_name, tasks),
            rules,
            resolver,
            state: config.dns.clone(),
            board: tasks.problems().clone(),
            saved: config.state_dir.join(SAVED),
            data: None,
        };
        let shutdown = tasks.shutdown().clone();
        tasks.spawn(Kind::Critical, "dns-configuration", custom.run(changes, shutdown));
    }

    async fn run(
        mut self,
        mut changes: watch::Receiver<()>,
        shutdown: Shutdown,
    ) -> Result<(), Error> {
        self.load_saved().await?;
        tokio::select! {
            () = shutdown.requested() => return Ok(()),
            () = self.map.synced() => {}
        }
        loop {
            changes.mark_unchanged();
            self.follow().await?;
            tokio::select! {
                () = shutdown.requested() => return Ok(()),
                changed = changes.changed() => {
                    if changed.is_err() {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Puts the configuration of an earlier run into force until the API says what it is now.
    async fn load_saved(&mut self) -> Result<(), Error> {
        let path = self.saved.clone();
        let read = blocking(move || -> Option<Result<Rules, CorefileError>> {
            let text = base::fs::read_to_string(&path).ok()?;
            let data: Data = serde_json::from_str(&text).ok()?;
            Some(Rules::compile(&data))
        });
        match read.await? {
            Some(Ok(rules)) => self.enforce(rules),
            // A later version may refuse what an earlier one accepted.
            Some(Err(error)) => {
                tracing::warn!(%error, "dns: cannot use the saved configuration");
            }
            None => {}
        }
        Ok(())
    }

    async fn follow(&mut self) -> Result<(), Error> {
        let map = self.map.get(NAMESPACE, NAME);
        let data = map.clone().map(data_of);
        if data.is_some() && data == self.data {
            return Ok(());
        }
        self.data.clone_from(&data);
        let (path, shown) = (self.saved.clone(), data.clone().unwrap_or_default());
        let compiled = blocking(move || -> Result<Rules, CorefileError> {
            let rules = Rules::compile(&shown)?;
            let saved = match data {
                None => match std::fs::remove_file(&path) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
                    _ => Ok(()),
                },
                Some(data) => serde_json::to_vec(&data)
                    .map_err(std::io::Error::other)
                    .and_then(|text| base::fs::write_atomic(&path, &text, 0o600)),
            };
            if let Err(error) = saved {
                let path = path.display();
                tracing::warn!(%path, %error, "dns: cannot save the configuration for restarts");
            }
            Ok(rules)
        });
        match (compiled.await?, map) {
            (Ok(rules), map) => {
                if map.is_some() {
                    tracing::info!(blocks = rules.blocks.len(), "dns: loaded coredns-custom");
                }
                self.enforce(rules);
            }
            (Err(error), map) => self.report(&error, map.as_ref()),
        }
        Ok(())
    }

    fn enforce(&self, rules: Rules) {
        let hosts = rules.blocks.iter().filter_map(|block| block.hosts.as_ref());
        metrics::hosts_entries(hosts.map(Hosts::len).sum());
        let note = |note: &String| format!("ConfigMap {NAMESPACE}/{NAME}: {note}");
        *self.state.0.lock() = rules.notices.iter().map(note).collect();
        self.board.clear(PROBLEM);
        self.rules.store(Arc::new(rules));
        self.resolver.clear();
    }

    fn report(&self, error: &CorefileError, map: Option<&ConfigMap>) {
        metrics::RELOAD_FAILED.inc(&[]);
        if let Some(map) = map {
            let text = format!("{error}; the last valid configuration stays in force");
            self.recorder.event(map, EventType::Warning, "InvalidCorefile", text);
        }
        let what = format!("ConfigMap {NAMESPACE}/{NAME} is not valid: {error}");
        let fix = format!(
            "correct that line (`kubectl -n {NAMESPACE} edit configmap {NAME}`); until then the \
             last valid configuration stays in force"
        );
        self.board.put(PROBLEM, what, fix);
    }
}
