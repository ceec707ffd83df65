//! The objects that Gateways are compiled from, and what they permit each other.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::k8s::api::core::v1::{Secret, Service};
use rustls::sign::CertifiedKey;
use sorting::CompactSort as _;

use super::types::{
    ClassSpec, GROUP, GatewaySpec, GrantSpec, Namespaces, ObjectRef, PolicySpec, Resource,
    RouteSpec, SetSpec,
};
use http_proxy::proxy::Certificates;

/// `controllerName` of the classes that are served.
pub const CONTROLLER: &str = "kube-lite.io/gateway";

/// A reason and message of a condition that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// `reason` of the condition.
    pub reason: &'static str,
    /// `message` of the condition.
    pub message: String,
}

impl Problem {
    /// A problem.
    pub fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

/// The kinds of routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RouteKind {
    /// HTTPRoute.
    Http,
    /// GRPCRoute.
    Grpc,
    /// TLSRoute.
    Tls,
    /// TCPRoute.
    Tcp,
    /// UDPRoute.
    Udp,
}

impl RouteKind {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Http, Self::Grpc, Self::Tls, Self::Tcp, Self::Udp];

    /// The name of the kind.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http => "HTTPRoute",
            Self::Grpc => "GRPCRoute",
            Self::Tls => "TLSRoute",
            Self::Tcp => "TCPRoute",
            Self::Udp => "UDPRoute",
        }
    }

    /// The resource in the API.
    pub fn resource(self) -> &'static str {
        match self {
            Self::Http => "httproutes",
            Self::Grpc => "grpcroutes",
            Self::Tls => "tlsroutes",
            Self::Tcp => "tcproutes",
            Self::Udp => "udproutes",
        }
    }
}

/// All objects of Gateway API in the cluster.
#[derive(Debug, Default)]
pub struct Objects {
    /// GatewayClasses.
    pub classes: Vec<Resource<ClassSpec>>,
    /// Gateways.
    pub gateways: Vec<Resource<GatewaySpec>>,
    /// ListenerSets.
    pub sets: Vec<Resource<SetSpec>>,
    /// Routes.
    pub routes: Vec<(RouteKind, Resource<RouteSpec>)>,
    /// ReferenceGrants.
    pub grants: Vec<Resource<GrantSpec>>,
    /// BackendTLSPolicies.
    pub policies: Vec<Resource<PolicySpec>>,
}

/// Reads the other objects that Gateways and routes refer to.
pub trait References {
    /// A Service.
    fn service(&self, namespace: &str, name: &str) -> Option<Service>;
    /// A Secret.
    fn secret(&self, namespace: &str, name: &str) -> Option<Secret>;
    /// `data` of a ConfigMap.
    fn config_map(&self, namespace: &str, name: &str) -> Option<BTreeMap<String, String>>;
    /// The labels of a namespace.
    fn namespace_labels(&self, name: &str) -> Option<BTreeMap<String, String>>;
}

impl Objects {
    /// Whether the class of a Gateway is served.
    pub fn is_served(&self, gateway: &Resource<GatewaySpec>) -> bool {
        self.classes.iter().any(|class| {
            class.metadata.name == gateway.spec.gateway_class_name
                && class.spec.controller_name == CONTROLLER
        })
    }

    /// Sorts the objects so that an earlier one wins a conflict.
    pub fn sort(&mut self) {
        self.gateways.compact_sort_by(|a, b| a.metadata.precedence().cmp(&b.metadata.precedence()));
        self.sets.compact_sort_by(|a, b| a.metadata.precedence().cmp(&b.metadata.precedence()));
        self.routes.compact_sort_by(|(_, a), (_, b)| {
            a.metadata.precedence().cmp(&b.metadata.precedence())
        });
        self.policies.compact_sort_by(|a, b| a.metadata.precedence().cmp(&b.metadata.precedence()));
    }

    /// Whether an object may refer to another one: in its own namespace, or by a ReferenceGrant in
    /// the namespace of the other. `from` is kind and namespace of a kind of Gateway API, `to`
    /// group, kind, namespace and name.
    pub fn permits(&self, from: (&str, &str), to: (&str, &str, &str, &str)) -> bool {
        let (group, kind, namespace, name) = to;
        from.1 == namespace
            || self.grants.iter().filter(|grant| grant.metadata.namespace == namespace).any(
                |grant| {
                    let is_from = |source: &ObjectRef| {
                        source.group.as_deref() == Some(GROUP)
                            && source.kind.as_deref() == Some(from.0)
                            && source.namespace.as_deref() == Some(from.1)
                    };
                    let is_to = |target: &ObjectRef| {
                        target.group.as_deref().unwrap_or_default() == group
                            && target.kind.as_deref() == Some(kind)
                            && (target.name.is_empty() || target.name == name)
                    };
                    grant.spec.from.iter().any(is_from) && grant.spec.to.iter().any(is_to)
                },
            )
    }

    /// The certificate of a Secret that an object of `from` (kind and namespace) refers to.
    /// `invalid` is the reason for everything but a missing permission.
    ///
    /// # Errors
    /// The reason why there is none.
    pub fn certificate(
        &self,
        references: &impl References,
        from: (&str, &str),
        reference: &ObjectRef,
        invalid: &'static str,
    ) -> Result<Arc<CertifiedKey>, Problem> {
        let group = reference.group.as_deref().unwrap_or_default();
        let kind = reference.kind.as_deref().unwrap_or("Secret");
        if !group.is_empty() || kind != "Secret" {
            let message = format!("{kind} {:?} is not supported, use a Secret", reference.name);
            return Err(Problem::new(invalid, message));
        }
        let namespace = reference.namespace.as_deref().unwrap_or(from.1);
        let full = format!("Secret {namespace}/{}", reference.name);
        if !self.permits(from, ("", "Secret", namespace, &reference.name)) {
            let message = format!("no ReferenceGrant permits the reference to {full}");
            return Err(Problem::new("RefNotPermitted", message));
        }
        let problem = |message: String| Problem::new(invalid, message);
        let secret = references.secret(namespace, &reference.name);
        let secret = secret
            .ok_or_else(|| problem(format!("{full} of type kubernetes.io/tls does not exist")))?;
        let data = secret.data.unwrap_or_default();
        let field = |key: &str| data.get(key).map(|bytes| bytes.0.as_slice()).unwrap_or_default();
        Certificates::pair(field("tls.crt"), field("tls.key"))
            .map_err(|error| problem(format!("{full}: {error}")))
    }
}

/// Whether a namespace is chosen; `own` is the namespace of the choosing object.
pub fn is_chosen(
    choice: Option<&Namespaces>,
    default: &str,
    own: &str,
    namespace: &str,
    references: &impl References,
) -> bool {
    let from = choice.and_then(|choice| choice.from.as_deref()).unwrap_or(default);
    match from {
        "All" => true,
        "Same" => own == namespace,
        "Selector" => choice.and_then(|choice| choice.selector.as_ref()).is_some_and(|selector| {
            references.namespace_labels(namespace).is_some_and(|labels| selector.matches(&labels))
        }),
        _ => false,
    }
}

/// Whether a listener's and a route's host have hosts in common; `None` is every host.
pub fn intersect(listener: Option<&str>, route: Option<&str>) -> bool {
    let (Some(listener), Some(route)) = (listener, route) else { return true };
    let (listener, route) = (listener.to_ascii_lowercase(), route.to_ascii_lowercase());
    let covers = |wildcard: &str, host: &str| {
        wildcard.strip_prefix('*').is_some_and(|suffix| {
            host.strip_prefix('*').unwrap_or(host).ends_with(suffix) && host != suffix
        })
    };
    listener == route || covers(&listener, &route) || covers(&route, &listener)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    // The examples of `HTTPRouteSpec.hostnames` and `Listener.hostname`.
    #[test]
    fn hosts_of_listeners_and_routes_intersect() {
        for (listener, route, expected) in [
            (None, Some("a.example"), true),
            (Some("test.example.com"), None, true),
            (Some("test.example.com"), Some("test.example.com"), true),
            (Some("test.example.com"), Some("*.example.com"), true),
            (Some("test.example.com"), Some("test.example.net"), false),
            (Some("*.example.com"), Some("test.example.com"), true),
            (Some("*.example.com"), Some("*.example.com"), true),
            (Some("*.example.com"), Some("foo.test.example.com"), true),
            (Some("*.example.com"), Some("*.test.example.com"), true),
            (Some("*.test.example.com"), Some("*.example.com"), true),
            (Some("*.example.com"), Some("example.com"), false),
            (Some("*.example.com"), Some("*.com"), true),
            (Some("*.example.com"), Some("test.Example.com"), true),
            (Some("*.example.com"), Some("testexample.com"), false),
        ] {
            assert_eq!(intersect(listener, route), expected, "{listener:?} {route:?}");
        }
    }

    fn grant(value: Value) -> Resource<GrantSpec> {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn references_to_other_namespaces_need_a_grant() {
        let from = json!([{"group": GROUP, "kind": "HTTPRoute", "namespace": "a"}]);
        let one = json!([{"group": "", "kind": "Service", "name": "s"}]);
        let grants = vec![
            grant(json!({"metadata": {"namespace": "b"}, "spec": {"from": from, "to": one}})),
            grant(json!({"metadata": {"namespace": "c"},
                "spec": {"from": from, "to": [{"kind": "Service"}]}})),
        ];
        let objects = Objects { grants, ..Objects::default() };
        for (from, namespace, name, expected) in [
            (("HTTPRoute", "a"), "a", "x", true),
            (("HTTPRoute", "a"), "b", "s", true),
            (("HTTPRoute", "a"), "b", "x", false),
            (("HTTPRoute", "a"), "c", "x", true),
            (("GRPCRoute", "a"), "c", "x", false),
            (("HTTPRoute", "d"), "c", "x", false),
        ] {
            let permitted = objects.permits(from, ("", "Service", namespace, name));
            assert_eq!(permitted, expected, "{from:?} {namespace}/{name}");
        }
        assert!(!objects.permits(("HTTPRoute", "a"), ("", "Secret", "c", "x")));
    }
}
