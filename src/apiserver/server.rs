//! Builds the API server and starts its background tasks.

use std::sync::Arc;

use api::Status;
use base::Tasks;

use crate::aggregator;
use crate::audit::Audit;
use crate::discovery::health;
use crate::metrics::request_totals::Metrics;
use crate::priority_and_fairness::max_in_flight::Limits;
use crate::registry::objects::Objects;
use crate::registry::service_pools::{ServicePools, ServicePoolsError};
use crate::request_tracing::Tracer;
use crate::state::{ApiServer, Config, Parts, ServerState};
use crate::{discovery, priority_and_fairness};

mod background;

/// Why a server cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A service range or the range of node ports cannot be used.
    #[error("{0}")]
    ServicePools(#[source] ServicePoolsError),
}

/// Builds the server; it serves once [`ApiServer::serve`] or [`ApiServer::call`] is used.
///
/// # Errors
/// When a service range or the node ports cannot be used.
pub fn build(config: Config, parts: Parts, tasks: Tasks) -> Result<ApiServer, BuildError> {
    let services = ServicePools::new(&config.service_cidrs, config.node_ports)
        .map_err(BuildError::ServicePools)?;
    let objects = Arc::clone(&parts.objects);
    objects.storage().set_primary_family(services.primary_family());
    let documents = discovery::Cached::default();
    let priority_and_fairness::flags::FlowFlags { reads, writes, enabled } = config.flow;
    let limits = Limits::new(reads, writes);
    let control =
        || priority_and_fairness::Control::new(reads + writes, Arc::clone(&objects), tasks.clone());
    let flow = enabled.then(control);
    let inner = ServerState {
        services,
        documents,
        openapi: crate::discovery::openapi::OpenApi::default(),
        aggregator: Arc::default(),
        audit: std::sync::OnceLock::new(),
        tracer: std::sync::OnceLock::new(),
        resource_metrics: std::sync::OnceLock::new(),
        extra_metrics: std::sync::OnceLock::new(),
        limits,
        flow,
        metrics: Metrics::new(),
        deprecated: crate::deprecated_apis::DeprecatedApiUsage::default(),
        ready: health::Checks::new(Arc::clone(&objects)),
        config,
        objects,
        parts,
        tasks,
    };
    let server = ApiServer { inner: Arc::new(inner) };
    server.start_compaction();
    server.start_address_repair();
    server.follow_definitions();
    Ok(server)
}

impl ApiServer {
    /// Keeps the server from being ready until [`ApiServer::complete_step`] is called with the same
    /// name, which must be that of one of upstream's post-start hooks (`rbac/bootstrap-roles`).
    pub fn require_step(&self, step: &'static str) {
        self.inner.ready.wait_for(step);
    }

    /// Completes a step of [`ApiServer::require_step`].
    pub fn complete_step(&self, step: &'static str) {
        self.inner.ready.done(step);
    }

    /// Proxies the group versions of other API servers that APIServices name. Await this before
    /// serving.
    ///
    /// # Errors
    /// When a cache does not load.
    pub async fn aggregate(&self, settings: &aggregator::Settings) -> Result<(), Status> {
        let ServerState { aggregator, objects, tasks, .. } = &*self.inner;
        aggregator.follow(objects, settings, tasks).await
    }

    /// Turns on auditing. Call it once, before the first request.
    pub fn audit(&self, audit: Arc<Audit>) {
        // Later calls are ignored.
        let _ = self.inner.audit.set(audit);
    }

    /// Turns on tracing. Call it once, before the first request.
    pub fn trace(&self, tracer: Arc<Tracer>) {
        // Later calls are ignored.
        let _ = self.inner.tracer.set(tracer);
    }

    /// Adds families to `/metrics`; the first call counts.
    pub fn add_metrics(&self, metrics: Arc<dyn crate::interfaces::ExtraMetrics>) {
        let _ = self.inner.extra_metrics.set(metrics);
    }

    /// Serves the resource metrics API from `store`, unless an APIService delegates it. Call it
    /// once, before [`ApiServer::aggregate`].
    pub fn serve_resource_metrics(&self, store: Arc<resource_metrics::Store>) {
        // Later calls are ignored.
        if self.inner.resource_metrics.set(store).is_ok() {
            self.inner.objects.update_registry(|registry| registry.add_resource_metrics());
        }
    }

    /// Counts the stored objects whose kind, or one of whose fields, has no effect.
    pub async fn unused(&self) -> Vec<crate::Unused> {
        crate::registry::unsupported::in_use(&self.inner.objects).await
    }

    /// Deprecated APIs that were used since this server started.
    pub fn deprecated(&self) -> Vec<crate::Deprecated> {
        self.inner.deprecated.all()
    }

    /// Registry, storage and caches, for callers in the same process.
    pub fn objects(&self) -> &Arc<Objects> {
        &self.inner.objects
    }

    /// Serves the resources of CustomResourceDefinitions; the server is not ready before the stored
    /// definitions are served.
    fn follow_definitions(&self) {
        self.require_step(crate::crd::STEP);
        let server = self.clone();
        crate::crd::follow(&self.inner.objects, &self.inner.tasks, move || {
            server.complete_step(crate::crd::STEP);
        });
    }
}

#[cfg(test)]
pub(crate) mod tests;
