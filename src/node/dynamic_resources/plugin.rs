//! One plugin of a driver: the versions of its services, and the calls to it.

use std::path::PathBuf;
use std::time::Duration;

use base::Shutdown;
use http::Uri;
use proto::dra::v1 as dra;
use proto::dra::v1::dra_plugin_client::DraPluginClient;
use proto::dra_health as health;
use proto::dra_health::dra_resource_health_client::DraResourceHealthClient;
use tonic::{Code, Streaming};

use super::claim::NodeOperation;
use super::connection::PluginConnection;
use super::metrics;
use crate::csi::driver_client::{RpcError, code_name};

/// Deadline of a call (`defaultClientCallTimeout`).
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(45);

/// A version of the service that prepares devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PluginApi {
    V1,
    V1Beta1,
}

impl PluginApi {
    /// All versions, newest first.
    const ALL: [Self; 2] = [Self::V1, Self::V1Beta1];

    /// The name by which plugins list it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::V1 => "v1.DRAPlugin",
            Self::V1Beta1 => "v1beta1.DRAPlugin",
        }
    }

    /// The name of the gRPC service.
    fn service(self) -> &'static str {
        match self {
            Self::V1 => "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
            Self::V1Beta1 => "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin",
        }
    }
}

/// A version of the service that reports the health of devices; plugins list it by the name of the
/// gRPC service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HealthApi {
    V1,
    V1Alpha1,
}

impl HealthApi {
    /// The name of the gRPC service.
    pub(super) fn service(self) -> &'static str {
        match self {
            Self::V1 => "v1.DRAResourceHealth",
            Self::V1Alpha1 => "v1alpha1.DRAResourceHealth",
        }
    }

    /// Returns the newest version that a plugin has, if any.
    pub(super) fn choose(services: &[String]) -> Option<Self> {
        let has = |api: &Self| services.iter().any(|service| service == api.service());
        [Self::V1, Self::V1Alpha1].into_iter().find(has)
    }
}

/// Why none of the services of a plugin is used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnsupportedServices {
    #[error("empty list of supported gRPC services (aka supported versions)")]
    Empty,
    #[error(
        "none of services supported by the plugin ({}) are supported by the kubelet ({})",
        go_list(.0.iter().map(String::as_str)),
        go_list(PluginApi::ALL.iter().map(|api| api.name()))
    )]
    Unknown(Vec<String>),
}

/// Formats texts as Go does with `%q`.
fn go_list<'a>(texts: impl Iterator<Item = &'a str>) -> String {
    let quoted: Vec<String> = texts.map(|text| format!("{text:?}")).collect();
    format!("[{}]", quoted.join(" "))
}

impl PluginApi {
    /// Returns the first supported service of the plugin's list, as upstream: the order of the
    /// plugin counts.
    pub(super) fn choose(services: &[String]) -> Result<Self, UnsupportedServices> {
        if services.is_empty() {
            return Err(UnsupportedServices::Empty);
        }
        let known = |service: &String| Self::ALL.into_iter().find(|api| api.name() == service);
        let chosen = services.iter().find_map(known);
        chosen.ok_or_else(|| UnsupportedServices::Unknown(services.to_vec()))
    }
}

/// A registered plugin of a driver.
#[derive(Debug)]
pub(crate) struct DraPlugin {
    pub(super) driver: String,
    /// The socket at which it serves.
    pub(super) endpoint: PathBuf,
    pub(super) api: PluginApi,
    /// `None` if the plugin does not report the health of devices.
    pub(super) health: Option<HealthApi>,
    pub(super) connection: PluginConnection,
    /// Deadline of a call.
    pub(super) call_timeout: Duration,
    /// Requested when the plugin is gone.
    pub(super) end: Shutdown,
}

/// What the generated clients say they connect to; the connection replaces it.
fn origin() -> Uri {
    Uri::from_static("http://localhost")
}

impl DraPlugin {
    /// Has the driver prepare claims.
    ///
    /// # Errors
    ///
    /// The plugin does not answer in time, or answers with an error.
    pub(super) async fn prepare(
        &self,
        claims: Vec<dra::Claim>,
    ) -> Result<dra::NodePrepareResourcesResponse, RpcError> {
        let call = async {
            let mut request = tonic::Request::new(dra::NodePrepareResourcesRequest { claims });
            request.set_timeout(self.call_timeout);
            let service = self.connection.service(self.api.service()).await?;
            let mut client = DraPluginClient::with_origin(service, origin());
            Ok(client.node_prepare_resources(request).await?.into_inner())
        };
        self.finish(NodeOperation::Prepare, call).await
    }

    /// Has the driver release claims.
    ///
    /// # Errors
    ///
    /// The plugin does not answer in time, or answers with an error.
    pub(super) async fn unprepare(
        &self,
        claims: Vec<dra::Claim>,
    ) -> Result<dra::NodeUnprepareResourcesResponse, RpcError> {
        let call = async {
            let mut request = tonic::Request::new(dra::NodeUnprepareResourcesRequest { claims });
            request.set_timeout(self.call_timeout);
            let service = self.connection.service(self.api.service()).await?;
            let mut client = DraPluginClient::with_origin(service, origin());
            Ok(client.node_unprepare_resources(request).await?.into_inner())
        };
        self.finish(NodeOperation::Unprepare, call).await
    }

    /// Awaits a call, enforces its deadline and records its duration.
    async fn finish<T>(
        &self,
        operation: NodeOperation,
        call: impl Future<Output = Result<T, RpcError>>,
    ) -> Result<T, RpcError> {
        let begun = base::clock::now();
        let late = || RpcError {
            code: Code::DeadlineExceeded,
            message: "context deadline exceeded".to_owned(),
        };
        let outcome = tokio::time::timeout(self.call_timeout, call).await;
        let outcome = outcome.unwrap_or_else(|_| Err(late()));
        let code = outcome.as_ref().err().map_or(Code::Ok, |error| error.code);
        let method = format!("/{}/{}", self.api.service(), operation.name());
        metrics::CALLS.took(&[&self.driver, &code_name(code), &method], begun.elapsed());
        outcome
    }

    /// Opens the stream of reports about the health of devices. It has no deadline: a plugin may
    /// send its first report late. The caller ends it with the plugin.
    ///
    /// # Errors
    ///
    /// The plugin cannot be reached or has no such service.
    pub(super) async fn watch_health(
        &self,
        api: HealthApi,
    ) -> Result<Streaming<health::NodeWatchResourcesResponse>, RpcError> {
        let service = self.connection.service(api.service()).await?;
        let mut client = DraResourceHealthClient::with_origin(service, origin());
        Ok(client.node_watch_resources(health::NodeWatchResourcesRequest {}).await?.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(services: &[&str]) -> Vec<String> {
        services.iter().map(|s| (*s).to_owned()).collect()
    }

    #[test]
    fn the_first_known_service_of_the_plugin_is_chosen() {
        let choose = |services: &[&str]| PluginApi::choose(&texts(services));
        assert_eq!(choose(&["v1beta1.DRAPlugin"]), Ok(PluginApi::V1Beta1));
        assert_eq!(choose(&["v1.DRAPlugin", "v1beta1.DRAPlugin"]), Ok(PluginApi::V1));
        assert_eq!(choose(&["v1beta1.DRAPlugin", "v1.DRAPlugin"]), Ok(PluginApi::V1Beta1));
        assert_eq!(choose(&["v1beta1.DRAPlugin", "v1alpha1.NodeHealth"]), Ok(PluginApi::V1Beta1));
        assert_eq!(
            choose(&[]).unwrap_err().to_string(),
            "empty list of supported gRPC services (aka supported versions)"
        );
        assert_eq!(
            choose(&["1.0.0", "x"]).unwrap_err().to_string(),
            "none of services supported by the plugin ([\"1.0.0\" \"x\"]) are supported by the \
             kubelet ([\"v1.DRAPlugin\" \"v1beta1.DRAPlugin\"])"
        );
    }

    #[test]
    fn the_newest_health_service_is_chosen() {
        let choose = |services: &[&str]| HealthApi::choose(&texts(services));
        assert_eq!(choose(&[]), None);
        assert_eq!(choose(&["v1.DRAPlugin"]), None);
        assert_eq!(choose(&["v1alpha1.DRAResourceHealth"]), Some(HealthApi::V1Alpha1));
        assert_eq!(choose(&["v1.DRAResourceHealth"]), Some(HealthApi::V1));
        let both = ["v1alpha1.DRAResourceHealth", "v1.DRAResourceHealth"];
        assert_eq!(choose(&both), Some(HealthApi::V1));
    }

    #[test]
    fn names_of_services_are_those_of_the_interface_files() {
        use proto::dra_health::dra_resource_health_server::SERVICE_NAME;
        assert_eq!(HealthApi::V1.service(), SERVICE_NAME);
    }
}
