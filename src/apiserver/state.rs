//! The state of the API server, which filters and handlers share; it does not depend on either.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base::Tasks;

use crate::admission::Plugin;
use crate::aggregator::Aggregator;
use crate::audit::Audit;
use crate::authn::Authenticator;
use crate::authz::Authorizer;
use crate::discovery::health;
use crate::interfaces::{Connect, ExtraMetrics, ReviewHandler, TokenIssuer};
use crate::metrics::request_totals::Metrics;
use crate::priority_and_fairness::max_in_flight::Limits;
use crate::registry::objects::Objects;
use crate::registry::service_pools::ServicePools;
use crate::request_tracing::Tracer;
use crate::{discovery, priority_and_fairness};

/// Settings of the server.
#[derive(Debug, Clone)]
pub struct Config {
    /// Version reported in addition to that of Kubernetes, such as `0.1.0`.
    pub product_version: String,
    /// Ranges of Service addresses: one, or two of different families; the first is the primary.
    pub service_cidrs: Vec<String>,
    /// First and last node port.
    pub node_ports: (u16, u16),
    /// Settings of flow control.
    pub flow: priority_and_fairness::flags::FlowFlags,
    /// The time limit of a request that is not long-running.
    pub request_timeout: Duration,
    /// The flags in effect without secrets, shown at `/flagz`.
    pub flags: Arc<BTreeMap<String, String>>,
}

impl Default for Config {
    /// The defaults of upstream, with the service range of k3s.
    fn default() -> Self {
        Self {
            product_version: env!("CARGO_PKG_VERSION").to_owned(),
            service_cidrs: vec!["10.43.0.0/16".into()],
            node_ports: (30000, 32767),
            flow: priority_and_fairness::flags::FlowFlags::default(),
            request_timeout: Duration::from_secs(60),
            flags: Arc::default(),
        }
    }
}

/// The components that the server is built from.
pub struct Parts {
    /// Registry, storage and caches.
    pub objects: Arc<Objects>,
    /// Identifies the user of a request.
    pub authenticator: Arc<dyn Authenticator>,
    /// Decides whether the user may send a request.
    pub authorizer: Arc<dyn Authorizer>,
    /// Admission plugins in order.
    pub admission: Vec<Arc<dyn Plugin>>,
    /// Issues service-account tokens.
    pub token_issuer: Option<Arc<dyn TokenIssuer>>,
    /// Handles the review kinds.
    pub reviews: Option<Arc<dyn ReviewHandler>>,
    /// Connects to nodes and pods, for logs, exec, attach, port-forward and proxies.
    pub connect: Option<Arc<dyn Connect>>,
    /// Replaces the user of an impersonating request.
    pub impersonation: Option<Arc<dyn crate::interfaces::Impersonation>>,
}

/// The state that all requests share.
pub(crate) struct ServerState {
    pub(crate) config: Config,
    pub(crate) objects: Arc<Objects>,
    pub(crate) parts: Parts,
    pub(crate) limits: Limits,
    /// `None` when flow control is off.
    pub(crate) flow: Option<Arc<priority_and_fairness::Control>>,
    pub(crate) metrics: Metrics,
    pub(crate) deprecated: crate::deprecated_apis::DeprecatedApiUsage,
    pub(crate) tasks: Tasks,
    pub(crate) services: ServicePools,
    pub(crate) ready: health::Checks,
    pub(crate) documents: discovery::Cached,
    pub(crate) openapi: crate::discovery::openapi::OpenApi,
    pub(crate) aggregator: Arc<Aggregator>,
    pub(crate) audit: OnceLock<Arc<Audit>>,
    pub(crate) tracer: OnceLock<Arc<Tracer>>,
    /// Usages of nodes and pods; empty when the resource metrics API is not served.
    pub(crate) resource_metrics: OnceLock<Arc<resource_metrics::Store>>,
    /// Adds families to `/metrics`.
    pub(crate) extra_metrics: OnceLock<Arc<dyn ExtraMetrics>>,
}

/// The API server.
#[derive(Clone)]
pub struct ApiServer {
    pub(crate) inner: Arc<ServerState>,
}
