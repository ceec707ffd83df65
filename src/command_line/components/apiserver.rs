//! Arguments of kube-apiserver, apart from those of audit, authentication, authorization,
//! admission, encryption, flow control and tracing, which the modules of the API server parse.

use super::Component;
use super::Effect::{Fixed, List, NoEffect, Refused, Value};

const CACHE: &str = "the sizes of caches follow from the use";
const PROFILING: &str = "there is no profiling endpoint";
const OWN_CA: &str = "certificates are of the cluster's own CAs; `kube-lite certificate rotate-ca --path DIR` \
     installs others";
const STORE: &str = "the store is part of the server; use --datastore-endpoint for an external one";
const KUBELETS: &str = "the server reaches kubelets through their tunnels";
const HEADERS: &str = "the names of headers of the aggregation layer are fixed";

/// What kube-lite does with each argument.
pub const APISERVER: Component = Component {
    flag: "kube-apiserver-arg",
    arguments: &[
        (super::feature_gates::ARGUMENT, List),
        ("advertise-address", Refused("use --advertise-address of kube-lite")),
        ("allow-privileged", Fixed("true", "use Pod Security labels of namespaces")),
        ("apiserver-count", NoEffect("each server registers itself")),
        ("bind-address", Refused("use --bind-address of kube-lite")),
        ("cert-dir", NoEffect(OWN_CA)),
        ("client-ca-file", Refused(OWN_CA)),
        ("contention-profiling", NoEffect(PROFILING)),
        ("cors-allowed-origins", Refused("browsers of other origins are not served")),
        ("default-not-ready-toleration-seconds", Value),
        ("default-unreachable-toleration-seconds", Value),
        ("default-watch-cache-size", NoEffect(CACHE)),
        ("delete-collection-workers", NoEffect("the number of workers is fixed")),
        ("egress-selector-config-file", Refused(KUBELETS)),
        ("enable-aggregator-routing", NoEffect("the server connects to pods of a Service itself")),
        ("enable-bootstrap-token-auth", Fixed("true", "tokens of `kube-lite token` need it")),
        ("enable-garbage-collector", Fixed("true", "owners are always collected")),
        ("endpoint-reconciler-type", Fixed("lease", "servers register by leases")),
        ("etcd-cafile", Refused(STORE)),
        ("etcd-certfile", Refused(STORE)),
        ("etcd-compaction-interval", Fixed("5m", "the store is compacted every five minutes")),
        ("etcd-keyfile", Refused(STORE)),
        ("etcd-servers", Refused(STORE)),
        ("event-ttl", Value),
        ("external-hostname", Refused("use --tls-san and --advertise-address")),
        ("goaway-chance", Fixed("0", "connections of clients are not moved to other servers")),
        ("http2-max-streams-per-connection", NoEffect("the number of streams is fixed")),
        ("kubelet-certificate-authority", Refused(OWN_CA)),
        ("kubelet-client-certificate", Refused(OWN_CA)),
        ("kubelet-client-key", Refused(OWN_CA)),
        ("kubelet-preferred-address-types", NoEffect(KUBELETS)),
        ("kubelet-timeout", NoEffect(KUBELETS)),
        ("livez-grace-period", NoEffect("/livez answers at once")),
        ("logging-format", Fixed("text", "kube-lite writes text lines")),
        ("profiling", NoEffect(PROFILING)),
        ("proxy-client-cert-file", Refused(OWN_CA)),
        ("proxy-client-key-file", Refused(OWN_CA)),
        ("request-timeout", Value),
        ("requestheader-allowed-names", Refused(HEADERS)),
        ("requestheader-client-ca-file", Refused(HEADERS)),
        ("requestheader-extra-headers-prefix", Fixed("X-Remote-Extra-", HEADERS)),
        ("requestheader-group-headers", Fixed("X-Remote-Group", HEADERS)),
        ("requestheader-username-headers", Fixed("X-Remote-User", HEADERS)),
        ("runtime-config", Refused("the served versions of the API are fixed")),
        ("secure-port", Refused("use --https-listen-port")),
        ("service-account-extend-token-expiration", Fixed("false", "tokens are never extended")),
        ("service-account-issuer", List),
        ("service-account-key-file", Refused(OWN_CA)),
        ("service-account-lookup", Fixed("true", "deleted accounts have no access")),
        ("service-account-max-token-expiration", Value),
        ("service-account-signing-key-file", Refused(OWN_CA)),
        ("service-cluster-ip-range", Refused("use --service-cidr of kube-lite")),
        ("service-node-port-range", Refused("use --service-node-port-range of kube-lite")),
        ("shutdown-delay-duration", Fixed("0s", "the server stops listening at once")),
        ("storage-backend", Fixed("etcd3", STORE)),
        ("storage-media-type", NoEffect("objects are stored as JSON")),
        ("strict-transport-security-directives", Refused("the header is not sent")),
        ("tls-cert-file", Refused(OWN_CA)),
        ("tls-cipher-suites", Value),
        ("tls-min-version", Value),
        ("tls-private-key-file", Refused(OWN_CA)),
        ("token-auth-file", Refused("use --token-auth-file of kube-lite")),
        ("v", NoEffect("use -v or --debug of kube-lite")),
        ("watch-cache", Fixed("true", "watches are always served from the cache")),
        ("watch-cache-sizes", NoEffect(CACHE)),
    ],
};
