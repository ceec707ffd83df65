//! The fields of Gateway API objects that routing needs. The five kinds of routes share one form.

mod routes;

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

pub use routes::*;

/// API group of Gateway API.
pub const GROUP: &str = "gateway.networking.k8s.io";

/// `metadata` of an object.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Metadata {
    /// Name.
    pub name: String,
    /// Namespace; empty for a GatewayClass.
    pub namespace: String,
    /// Identifier.
    pub uid: String,
    /// Version of the specification.
    pub generation: i64,
    /// Version of the object.
    pub resource_version: String,
    creation_timestamp: String,
}

impl Metadata {
    /// A number that orders objects by their creation.
    pub fn created(&self) -> i64 {
        let digits = self.creation_timestamp.bytes().filter(u8::is_ascii_digit).take(14);
        digits.fold(0, |number, digit| number * 10 + i64::from(digit - b'0'))
    }

    /// The order in which conflicts are resolved: the oldest, then the first by name.
    pub fn precedence(&self) -> (i64, &str, &str) {
        (self.created(), &self.namespace, &self.name)
    }

    /// `namespace/name`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// An object with its specification.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Resource<S> {
    /// Metadata.
    pub metadata: Metadata,
    /// Specification.
    pub spec: S,
    /// Status as it is stored.
    pub status: Value,
}

/// GatewayClass.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClassSpec {
    /// The controller that serves the class.
    pub controller_name: String,
    /// Parameters; none are supported.
    pub parameters_ref: Option<Value>,
}

/// Gateway.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GatewaySpec {
    /// Name of the class.
    pub gateway_class_name: String,
    /// Listeners.
    pub listeners: Vec<ListenerSpec>,
    /// Requested addresses.
    pub addresses: Vec<Address>,
    /// Labels and annotations of generated objects.
    pub infrastructure: Option<Infrastructure>,
    /// Which ListenerSets may attach.
    pub allowed_listeners: Option<AllowedListeners>,
    /// TLS of the whole Gateway.
    pub tls: Option<GatewayTls>,
}

/// An address of a Gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Address {
    /// `IPAddress` (default), `Hostname` or another type.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// The address; empty for any.
    pub value: String,
}

/// `spec.infrastructure`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Infrastructure {
    /// Labels of generated objects.
    pub labels: BTreeMap<String, String>,
    /// Annotations of generated objects.
    pub annotations: BTreeMap<String, String>,
    /// Parameters; none are supported.
    pub parameters_ref: Option<Value>,
}

/// `spec.allowedListeners`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct AllowedListeners {
    /// Namespaces.
    pub namespaces: Option<Namespaces>,
}

/// A choice of namespaces.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Namespaces {
    /// `All`, `Same`, `Selector` or `None`.
    pub from: Option<String>,
    /// Labels of the namespaces.
    pub selector: Option<Selector>,
}

/// A label selector.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Selector {
    match_labels: BTreeMap<String, String>,
    match_expressions: Vec<Expression>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Expression {
    key: String,
    operator: String,
    values: Vec<String>,
}

impl Selector {
    /// Whether labels match; an empty selector matches all.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.match_expressions.iter().all(|expression| {
                let value = labels.get(&expression.key);
                let listed = value.is_some_and(|value| expression.values.contains(value));
                match expression.operator.as_str() {
                    "In" => listed,
                    "NotIn" => !listed,
                    "Exists" => value.is_some(),
                    "DoesNotExist" => value.is_none(),
                    _ => false,
                }
            })
    }
}

/// `spec.tls` of a Gateway.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct GatewayTls {
    /// Towards backends.
    pub backend: Option<BackendTls>,
    /// Towards clients.
    pub frontend: Option<FrontendTls>,
}

/// `spec.tls.backend`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BackendTls {
    /// The certificate that backends see.
    pub client_certificate_ref: Option<ObjectRef>,
}

/// `spec.tls.frontend`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FrontendTls {
    /// For all ports without their own.
    pub default: FrontendConfig,
    /// For single ports.
    pub per_port: Vec<PortConfig>,
}

/// TLS of one port.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct PortConfig {
    /// The port.
    pub port: u16,
    /// Its configuration.
    pub tls: FrontendConfig,
}

/// `TLSConfig`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct FrontendConfig {
    /// How clients are validated.
    pub validation: Option<FrontendValidation>,
}

/// `FrontendTLSValidation`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FrontendValidation {
    /// CA certificates.
    #[serde(rename = "caCertificateRefs")]
    pub ca_certificate_refs: Vec<ObjectRef>,
    /// `AllowValidOnly` (default) or `AllowInsecureFallback`.
    pub mode: Option<String>,
}

/// A reference to an object.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ObjectRef {
    /// API group.
    pub group: Option<String>,
    /// Kind.
    pub kind: Option<String>,
    /// Namespace; that of the referring object if absent.
    pub namespace: Option<String>,
    /// Name.
    pub name: String,
}

/// A listener of a Gateway or ListenerSet.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ListenerSpec {
    /// Name.
    pub name: String,
    /// Hosts; all if absent.
    pub hostname: Option<String>,
    /// Port.
    pub port: u16,
    /// Protocol.
    pub protocol: String,
    /// TLS.
    pub tls: Option<ListenerTls>,
    /// Which routes may attach.
    pub allowed_routes: Option<AllowedRoutes>,
}

/// TLS of a listener.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ListenerTls {
    /// `Terminate` (default) or `Passthrough`.
    pub mode: Option<String>,
    /// Certificates.
    pub certificate_refs: Vec<ObjectRef>,
}

/// `allowedRoutes` of a listener.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct AllowedRoutes {
    /// Namespaces of routes.
    pub namespaces: Option<Namespaces>,
    /// Kinds of routes; those of the protocol if empty.
    pub kinds: Vec<GroupKind>,
}

/// Group and kind.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct GroupKind {
    /// API group; that of Gateway API if absent.
    pub group: Option<String>,
    /// Kind.
    pub kind: String,
}

/// ListenerSet.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SetSpec {
    /// The Gateway.
    pub parent_ref: ObjectRef,
    /// Listeners.
    pub listeners: Vec<ListenerSpec>,
}

/// ReferenceGrant.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct GrantSpec {
    /// Objects that may refer.
    pub from: Vec<ObjectRef>,
    /// Objects that they may refer to.
    pub to: Vec<ObjectRef>,
}

/// BackendTLSPolicy.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PolicySpec {
    /// Services.
    pub target_refs: Vec<TargetRef>,
    /// How their certificates are verified.
    pub validation: PolicyValidation,
}

/// A Service, or one of its ports.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TargetRef {
    /// API group.
    pub group: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
    /// Name of a port.
    pub section_name: Option<String>,
}

/// `BackendTLSPolicyValidation`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PolicyValidation {
    /// CA certificates.
    #[serde(rename = "caCertificateRefs")]
    pub ca_certificate_refs: Vec<ObjectRef>,
    /// `System`: those of the machine.
    #[serde(rename = "wellKnownCACertificates")]
    pub well_known_ca_certificates: Option<String>,
    /// Server name, which the certificate must have unless `subjectAltNames` is set.
    pub hostname: String,
    /// Names of which the certificate must have one.
    pub subject_alt_names: Vec<SubjectAltName>,
}

/// A name of a certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct SubjectAltName {
    /// `Hostname` or `URI`.
    #[serde(rename = "type")]
    pub kind: String,
    /// A host name.
    pub hostname: String,
    /// A URI.
    pub uri: String,
}
