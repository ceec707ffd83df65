//! Generated clients of CRI v1, of CSI v1 and the registration of kubelet plugins, of containerd's own
//! services and of gRPC health checks, and servers of etcd v3; `cargo run -p xtask -- protos` generates them from `proto/`.
//!
//! Modules have the names of the protobuf packages: [`runtime::v1`],
//! `containerd::services::events::v1`, ….

#[allow(clippy::all, clippy::too_many_lines, rustdoc::all, reason = "generated")]
mod generated {
    include!("gen/includes.rs");
    include!("gen/served.rs");
}

pub use generated::{
    authpb, containerd, csi, etcdserverpb, grpc, mvccpb, pluginregistration, runtime,
};
