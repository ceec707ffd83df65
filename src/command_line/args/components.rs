//! Flags that pass arguments to the components of Kubernetes.

use clap::Args;

/// Arguments of the components of a server.
#[derive(Debug, Args, Clone, Default)]
pub struct ComponentArgs {
    /// Argument of kube-controller-manager, such as node-monitor-grace-period=40s; one that would
    /// change something and is not supported is rejected
    #[arg(long, value_name = "NAME=VALUE", help_heading = "Components")]
    pub kube_controller_manager_arg: Vec<String>,
    /// Argument of kube-scheduler
    #[arg(long, value_name = "NAME=VALUE", help_heading = "Components")]
    pub kube_scheduler_arg: Vec<String>,
    /// Argument of kube-cloud-controller-manager
    #[arg(long, value_name = "NAME=VALUE", help_heading = "Components")]
    pub kube_cloud_controller_manager_arg: Vec<String>,
    /// Argument of etcd, such as quota-backend-bytes=4294967296
    #[arg(long, value_name = "NAME=VALUE", help_heading = "Components")]
    pub etcd_arg: Vec<String>,
}

/// Arguments of the components of a node.
#[derive(Debug, Args, Clone, Default)]
pub struct NodeComponentArgs {
    /// Argument of the kubelet, such as max-pods=200; one that would change something and is not
    /// supported is rejected
    #[arg(long, value_name = "NAME=VALUE", help_heading = "Node")]
    pub kubelet_arg: Vec<String>,
    /// Argument of kube-proxy, such as healthz-bind-address=0.0.0.0:10256
    #[arg(long, value_name = "NAME=VALUE", help_heading = "Node")]
    pub kube_proxy_arg: Vec<String>,
}
