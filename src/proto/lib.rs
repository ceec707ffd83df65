//! Generated clients of CRI v1, of CSI v1, DRA v1 and the registration of kubelet plugins, of
//! containerd's own services and of gRPC health checks, and servers of etcd v3, of the registration
//! of device plugins and of the kubelet's pod resources; `cargo run -p xtask -- protos` generates
//! them from `proto/`.
//!
//! Modules have the names of the protobuf packages: [`runtime::v1`],
//! `containerd::services::events::v1`, ….

#[allow(clippy::all, clippy::too_many_lines, rustdoc::all, unreachable_pub, reason = "generated")]
mod generated {
    include!("gen/includes.rs");
    include!("gen/served.rs");
}

// Drivers of dynamic resource allocation. The other versions of their services have the same
// messages.
pub use generated::k8s::io::kubelet::pkg::apis::dra;
// The packages of the device plugin API, of the pod resources API and of the health of devices of
// drivers are named by their versions.
pub use generated::v1 as dra_health;
pub use generated::{
    authpb, containerd, csi, etcdserverpb, grpc, mvccpb, pluginregistration, runtime,
};
pub use generated::{v1 as podresources, v1beta1 as deviceplugin};
