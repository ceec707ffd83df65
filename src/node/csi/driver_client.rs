//! The client of the node service of a CSI driver: gRPC over a unix socket, with a deadline for
//! each call.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use proto::csi::v1 as csi;
use proto::csi::v1::node_client::NodeClient;
use proto::csi::v1::node_service_capability::{Type as CapabilityType, rpc};
use proto::csi::v1::volume_capability::access_mode::Mode;
use proto::csi::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use tonic::Code;
use tonic::transport::Channel;

use super::metrics::CsiMetrics;
use crate::local_driver::LocalDriver;
use crate::runtime::cri::channel;

/// Deadline of a call (`csiTimeout`).
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(120);

/// A call that a driver did not answer, or answered with an error; formatted as a Go gRPC client
/// does.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("rpc error: code = {} desc = {message}", code_name(*code))]
pub(crate) struct RpcError {
    pub(crate) code: Code,
    pub(crate) message: String,
}

/// Go's name of a code.
pub(crate) fn code_name(code: Code) -> String {
    match code {
        Code::Cancelled => "Canceled".to_owned(),
        Code::Ok => "OK".to_owned(),
        other => format!("{other:?}"),
    }
}

impl RpcError {
    /// Whether the operation is certainly not in progress in the driver (`isFinalError`).
    pub(crate) fn is_final(&self) -> bool {
        !matches!(
            self.code,
            Code::Cancelled
                | Code::DeadlineExceeded
                | Code::Unavailable
                | Code::ResourceExhausted
                | Code::Aborted
        )
    }
}

impl From<tonic::Status> for RpcError {
    fn from(status: tonic::Status) -> Self {
        // A status with a source is an error of the connection, not an answer of the driver.
        let Some(mut cause) = status.source() else {
            return Self { code: status.code(), message: status.message().to_owned() };
        };
        while let Some(deeper) = cause.source() {
            cause = deeper;
        }
        let message = format!("connection error: desc = \"transport: {cause}\"");
        Self { code: Code::Unavailable, message }
    }
}

/// The optional parts of the node service that a driver has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Capabilities(HashSet<i32>);

impl Capabilities {
    fn of(response: csi::NodeGetCapabilitiesResponse) -> Self {
        let types = response.capabilities.into_iter().filter_map(|capability| {
            let CapabilityType::Rpc(rpc) = capability.r#type?;
            Some(rpc.r#type)
        });
        Self(types.collect())
    }

    fn has(&self, capability: rpc::Type) -> bool {
        self.0.contains(&i32::from(capability))
    }

    /// Volumes are staged once per node before they are published for pods.
    pub(crate) fn stage(&self) -> bool {
        self.has(rpc::Type::StageUnstageVolume)
    }

    /// The driver changes the group of the files itself.
    pub(crate) fn mount_group(&self) -> bool {
        self.has(rpc::Type::VolumeMountGroup)
    }

    /// The driver reports how full volumes are.
    pub(crate) fn volume_stats(&self) -> bool {
        self.has(rpc::Type::GetVolumeStats)
    }

    /// The driver enlarges volumes on the node.
    pub(crate) fn expand(&self) -> bool {
        self.has(rpc::Type::ExpandVolume)
    }

    /// The driver distinguishes one and several writers on a node.
    pub(crate) fn single_node_multi_writer(&self) -> bool {
        self.has(rpc::Type::SingleNodeMultiWriter)
    }
}

/// How a volume is accessed, as part of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Access {
    Block,
    Mount {
        fs_type: String,
        options: Vec<String>,
        /// The group that the driver gives the files to.
        group: Option<i64>,
    },
}

/// Converts an access mode of a PersistentVolume (`getNodeV1AccessModeMapper`).
pub(crate) fn access_mode(mode: &str, capabilities: &Capabilities) -> Mode {
    match (mode, capabilities.single_node_multi_writer()) {
        ("ReadWriteOnce", true) => Mode::SingleNodeMultiWriter,
        ("ReadWriteOncePod", true) => Mode::SingleNodeSingleWriter,
        ("ReadWriteOnce" | "ReadWriteOncePod", false) => Mode::SingleNodeWriter,
        ("ReadOnlyMany", _) => Mode::MultiNodeReaderOnly,
        ("ReadWriteMany", _) => Mode::MultiNodeMultiWriter,
        _ => Mode::Unknown,
    }
}

/// Returns the capability of a volume in a call.
pub(crate) fn volume_capability(mode: Mode, access: Access) -> csi::VolumeCapability {
    let access_type = match access {
        Access::Block => AccessType::Block(BlockVolume {}),
        Access::Mount { fs_type, options, group } => AccessType::Mount(MountVolume {
            fs_type,
            mount_flags: options,
            volume_mount_group: group.map(|g| g.to_string()).unwrap_or_default(),
        }),
    };
    csi::VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(access_type),
    }
}

/// Converts a map of the API into one of a call.
pub(crate) fn map(entries: &BTreeMap<String, String>) -> HashMap<String, String> {
    entries.iter().map(|(k, v)| (k.clone(), v.clone())).collect()
}

/// Where the node service of a driver is.
#[derive(Debug, Clone)]
enum NodeService {
    /// At a socket. It connects with the first call.
    Socket(NodeClient<Channel>),
    /// In this process.
    BuiltIn(Arc<LocalDriver>),
}

/// The node service of a registered driver.
#[derive(Debug, Clone)]
pub(crate) struct CsiClient {
    driver: String,
    service: NodeService,
    metrics: Arc<CsiMetrics>,
    /// The calls are about a volume of an in-tree plugin.
    is_migrated: bool,
}

/// Makes a call: `call!(client, method, "Method", message)`.
macro_rules! call {
    ($own:expr, $method:ident, $name:literal, $message:expr) => {
        match &$own.service {
            NodeService::Socket(node) => {
                let mut request = tonic::Request::new($message);
                request.set_timeout(CALL_TIMEOUT);
                let mut node = node.clone();
                $own.finish($name, answer(node.$method(request))).await
            }
            NodeService::BuiltIn(driver) => $own.finish($name, driver.$method($message)).await,
        }
    };
}

/// The message of an answer over the network.
async fn answer<T>(
    call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<T, RpcError> {
    Ok(call.await?.into_inner())
}

impl CsiClient {
    /// Creates a client for the driver at a socket.
    pub(crate) fn new(driver: &str, endpoint: &Path, metrics: &Arc<CsiMetrics>) -> Self {
        let service = NodeService::Socket(NodeClient::new(channel(endpoint)));
        Self {
            driver: driver.to_owned(),
            service,
            metrics: Arc::clone(metrics),
            is_migrated: false,
        }
    }

    /// Creates a client for the driver of this process.
    pub(crate) fn built_in(
        name: &str,
        driver: &Arc<LocalDriver>,
        metrics: &Arc<CsiMetrics>,
    ) -> Self {
        let service = NodeService::BuiltIn(Arc::clone(driver));
        Self { driver: name.to_owned(), service, metrics: Arc::clone(metrics), is_migrated: false }
    }

    /// The client for calls about a volume, which is of an in-tree plugin or not.
    #[must_use]
    pub(crate) fn about(mut self, is_migrated: bool) -> Self {
        self.is_migrated = is_migrated;
        self
    }

    /// Awaits the answer to a call, and enforces its deadline if the driver does not.
    async fn finish<T>(
        &self,
        method: &'static str,
        call: impl Future<Output = Result<T, RpcError>>,
    ) -> Result<T, RpcError> {
        let begun = base::clock::now();
        let outcome = tokio::time::timeout(CALL_TIMEOUT + Duration::from_secs(1), call).await;
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(_) => Err(RpcError {
                code: Code::DeadlineExceeded,
                message: "context deadline exceeded".to_owned(),
            }),
        };
        let code = outcome.as_ref().err().map_or(Code::Ok, |e| e.code);
        let driver = (self.driver.as_str(), self.is_migrated);
        self.metrics.record(driver, method, code, begun.elapsed());
        outcome
    }

    /// Returns how the driver names this node.
    pub(crate) async fn info(&self) -> Result<csi::NodeGetInfoResponse, RpcError> {
        call!(self, node_get_info, "NodeGetInfo", csi::NodeGetInfoRequest {})
    }

    /// Returns the optional parts of the service.
    pub(crate) async fn capabilities(&self) -> Result<Capabilities, RpcError> {
        let message = csi::NodeGetCapabilitiesRequest {};
        let answer = call!(self, node_get_capabilities, "NodeGetCapabilities", message)?;
        Ok(Capabilities::of(answer))
    }

    /// Prepares a volume on this node.
    pub(crate) async fn stage(&self, message: csi::NodeStageVolumeRequest) -> Result<(), RpcError> {
        call!(self, node_stage_volume, "NodeStageVolume", message).map(drop)
    }

    /// Undoes [`CsiClient::stage`]; idempotent.
    pub(crate) async fn unstage(&self, handle: &str, staging: &Path) -> Result<(), RpcError> {
        let message = csi::NodeUnstageVolumeRequest {
            volume_id: handle.to_owned(),
            staging_target_path: staging.to_string_lossy().into_owned(),
        };
        call!(self, node_unstage_volume, "NodeUnstageVolume", message).map(drop)
    }

    /// Makes a volume available to a pod.
    pub(crate) async fn publish(
        &self,
        message: csi::NodePublishVolumeRequest,
    ) -> Result<(), RpcError> {
        call!(self, node_publish_volume, "NodePublishVolume", message).map(drop)
    }

    /// Undoes [`CsiClient::publish`]; idempotent.
    pub(crate) async fn unpublish(&self, handle: &str, target: &Path) -> Result<(), RpcError> {
        let message = csi::NodeUnpublishVolumeRequest {
            volume_id: handle.to_owned(),
            target_path: target.to_string_lossy().into_owned(),
        };
        call!(self, node_unpublish_volume, "NodeUnpublishVolume", message).map(drop)
    }

    /// Returns how full the volume at a path is.
    pub(crate) async fn volume_stats(
        &self,
        handle: &str,
        path: &Path,
    ) -> Result<csi::NodeGetVolumeStatsResponse, RpcError> {
        let message = csi::NodeGetVolumeStatsRequest {
            volume_id: handle.to_owned(),
            volume_path: path.to_string_lossy().into_owned(),
            staging_target_path: String::new(),
        };
        call!(self, node_get_volume_stats, "NodeGetVolumeStats", message)
    }

    /// Enlarges a volume on this node.
    pub(crate) async fn expand(
        &self,
        message: csi::NodeExpandVolumeRequest,
    ) -> Result<(), RpcError> {
        call!(self, node_expand_volume, "NodeExpandVolume", message).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capabilities(types: &[rpc::Type]) -> Capabilities {
        Capabilities(types.iter().map(|t| i32::from(*t)).collect())
    }

    /// `TestAsCSIAccessModeV1` and its variant with the capability.
    #[test]
    fn access_modes_depend_on_the_capability_of_the_driver() {
        let (without, with) =
            (capabilities(&[]), capabilities(&[rpc::Type::SingleNodeMultiWriter]));
        for (mode, plain, distinguished) in [
            ("ReadWriteOnce", Mode::SingleNodeWriter, Mode::SingleNodeMultiWriter),
            ("ReadOnlyMany", Mode::MultiNodeReaderOnly, Mode::MultiNodeReaderOnly),
            ("ReadWriteMany", Mode::MultiNodeMultiWriter, Mode::MultiNodeMultiWriter),
            ("ReadWriteOncePod", Mode::SingleNodeWriter, Mode::SingleNodeSingleWriter),
            ("Other", Mode::Unknown, Mode::Unknown),
        ] {
            assert_eq!(access_mode(mode, &without), plain, "{mode}");
            assert_eq!(access_mode(mode, &with), distinguished, "{mode}");
        }
    }

    #[test]
    fn errors_have_the_text_of_a_go_client() {
        let error = |code, message: &str| RpcError { code, message: message.to_owned() };
        assert_eq!(
            error(Code::InvalidArgument, "no such volume").to_string(),
            "rpc error: code = InvalidArgument desc = no such volume"
        );
        assert_eq!(error(Code::Cancelled, "x").to_string(), "rpc error: code = Canceled desc = x");
        assert!(error(Code::InvalidArgument, "").is_final());
        for code in [
            Code::Cancelled,
            Code::DeadlineExceeded,
            Code::Unavailable,
            Code::ResourceExhausted,
            Code::Aborted,
        ] {
            assert!(!error(code, "").is_final(), "{code:?}");
        }
    }

    #[tokio::test]
    async fn a_driver_that_does_not_run_is_unavailable() {
        let home = tempfile::tempdir().unwrap();
        let client = CsiClient::new("d", &home.path().join("missing.sock"), &Arc::default());
        let error = client.capabilities().await.unwrap_err();
        assert_eq!(error.code, Code::Unavailable);
        assert_eq!(
            error.to_string(),
            "rpc error: code = Unavailable desc = connection error: desc = \"transport: No such \
             file or directory (os error 2)\""
        );
    }

    #[test]
    fn a_group_is_part_of_the_capability_of_mounted_volumes_only() {
        let access = Access::Mount {
            fs_type: "ext4".into(),
            options: vec!["noatime".into()],
            group: Some(2000),
        };
        let mounted = volume_capability(Mode::SingleNodeWriter, access);
        assert_eq!(
            mounted.access_type,
            Some(AccessType::Mount(MountVolume {
                fs_type: "ext4".into(),
                mount_flags: vec!["noatime".into()],
                volume_mount_group: "2000".into()
            }))
        );
        let block = volume_capability(Mode::SingleNodeWriter, Access::Block);
        assert_eq!(block.access_type, Some(AccessType::Block(BlockVolume {})));
    }
}
