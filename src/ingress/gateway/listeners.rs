//! The listeners of a Gateway, its own and those of ListenerSets: what they accept, and whether
//! they can serve.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustls::sign::CertifiedKey;

use super::objects::{Objects, Problem, References, RouteKind, is_chosen};
use super::types::{
    FrontendValidation, GROUP, GatewaySpec, GroupKind, ListenerSpec, Resource, SetSpec,
};
use http_proxy::proxy::entry::ClientValidation;
use http_proxy::proxy::upstream::Roots;

/// The protocol of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP.
    Http,
    /// HTTPS.
    Https,
    /// TLS, terminated.
    Tls,
    /// TLS, passed on as it is.
    Passthrough,
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Protocol {
    fn new(spec: &ListenerSpec) -> Option<Self> {
        let mode = spec.tls.as_ref().and_then(|tls| tls.mode.as_deref()).unwrap_or("Terminate");
        Some(match (spec.protocol.as_str(), mode) {
            ("HTTP", _) => Self::Http,
            ("HTTPS", _) => Self::Https,
            ("TLS", "Passthrough") => Self::Passthrough,
            ("TLS", _) => Self::Tls,
            ("TCP", _) => Self::Tcp,
            ("UDP", _) => Self::Udp,
            _ => return None,
        })
    }

    /// The kinds of routes that may attach.
    pub fn kinds(self) -> &'static [RouteKind] {
        match self {
            Self::Http | Self::Https => &[RouteKind::Http, RouteKind::Grpc],
            Self::Tls | Self::Passthrough => &[RouteKind::Tls],
            Self::Tcp => &[RouteKind::Tcp],
            Self::Udp => &[RouteKind::Udp],
        }
    }

    /// Whether the listener decrypts.
    pub fn terminates_tls(self) -> bool {
        matches!(self, Self::Https | Self::Tls)
    }

    /// Listeners of one family share a port by their host names.
    fn family(self) -> u8 {
        match self {
            Self::Http => 0,
            Self::Https | Self::Tls | Self::Passthrough => 1,
            Self::Tcp => 2,
            Self::Udp => 3,
        }
    }
}

/// A listener.
#[derive(Debug)]
pub struct Listener {
    /// The ListenerSet that it belongs to, by its position; `None` for the Gateway's own.
    pub set: Option<usize>,
    /// Namespace of the Gateway or ListenerSet.
    pub namespace: String,
    /// The specification.
    pub spec: ListenerSpec,
    /// Its protocol; `None` if it is not supported.
    pub protocol: Option<Protocol>,
    /// Why another listener has its place.
    pub conflict: Option<Problem>,
    /// The kinds that it accepts.
    pub kinds: Vec<RouteKind>,
    /// Condition `Accepted`.
    pub accepted: Result<(), Problem>,
    /// Condition `ResolvedRefs`.
    pub resolved: Result<(), Problem>,
    /// Certificates for clients.
    pub certificates: Vec<Arc<CertifiedKey>>,
    /// Verification of clients.
    pub validation: Option<ClientValidation>,
    /// Attached routes.
    pub attached: usize,
}

impl Listener {
    /// Whether it serves clients.
    pub fn serves(&self) -> bool {
        let has_certificates =
            !self.protocol.is_some_and(Protocol::terminates_tls) || !self.certificates.is_empty();
        self.accepted.is_ok() && has_certificates && !self.kinds.is_empty()
    }
}

/// The listeners of a Gateway in their order of precedence: its own, then those of its
/// ListenerSets, of which the oldest comes first. `sets` are positions in `objects.sets`.
pub fn build(
    objects: &Objects,
    gateway: &Resource<GatewaySpec>,
    sets: &[usize],
    references: &impl References,
) -> Vec<Listener> {
    let own = gateway.spec.listeners.iter().map(|spec| (None, &gateway.metadata.namespace, spec));
    let of_sets = sets.iter().filter_map(|at| Some((*at, objects.sets.get(*at)?))).flat_map(
        |(at, set): (usize, &Resource<SetSpec>)| {
            set.spec.listeners.iter().map(move |spec| (Some(at), &set.metadata.namespace, spec))
        },
    );
    let builder = Builder { objects, gateway, references };
    let mut listeners: Vec<Listener> = own
        .chain(of_sets)
        .map(|(set, namespace, spec)| builder.listener(set, namespace, spec))
        .collect();
    mark_conflicts(&mut listeners);
    listeners
}

/// The first listener of a port decides its family; of equal hosts the first one wins.
fn mark_conflicts(listeners: &mut [Listener]) {
    let mut ports: BTreeMap<(bool, u16), (u8, BTreeMap<String, Protocol>)> = BTreeMap::new();
    for listener in listeners {
        let Some(protocol) = listener.protocol else { continue };
        let port = (protocol == Protocol::Udp, listener.spec.port);
        let (family, hosts) =
            ports.entry(port).or_insert_with(|| (protocol.family(), BTreeMap::new()));
        let host = listener.spec.hostname.as_deref().unwrap_or_default().to_ascii_lowercase();
        let number = listener.spec.port;
        let conflict = match hosts.get(&host) {
            _ if *family != protocol.family() => Some(Problem::new(
                "ProtocolConflict",
                format!("another listener serves a different protocol on port {number}"),
            )),
            Some(other) if *other != protocol => Some(Problem::new(
                "ProtocolConflict",
                format!("another listener serves this host on port {number} with another protocol"),
            )),
            Some(_) => Some(Problem::new(
                "HostnameConflict",
                format!("another listener serves this host on port {number}"),
            )),
            None => None,
        };
        match conflict {
            Some(problem) => {
                listener.accepted = Err(problem.clone());
                listener.conflict = Some(problem);
            }
            None => drop(hosts.insert(host, protocol)),
        }
    }
}

struct Builder<'a, R> {
    objects: &'a Objects,
    gateway: &'a Resource<GatewaySpec>,
    references: &'a R,
}

impl<R: References> Builder<'_, R> {
    fn listener(&self, set: Option<usize>, namespace: &str, spec: &ListenerSpec) -> Listener {
        let protocol = Protocol::new(spec);
        let mut listener = Listener {
            set,
            namespace: namespace.to_owned(),
            spec: spec.clone(),
            protocol,
            conflict: None,
            kinds: Vec::new(),
            accepted: Ok(()),
            resolved: Ok(()),
            certificates: Vec::new(),
            validation: None,
            attached: 0,
        };
        let Some(protocol) = protocol else {
            let message = format!(
                "protocol {} is not supported; use HTTP, HTTPS, TLS, TCP or UDP",
                spec.protocol
            );
            listener.accepted = Err(Problem::new("UnsupportedProtocol", message));
            return listener;
        };
        let kinds = spec.allowed_routes.as_ref().map(|a| a.kinds.as_slice()).unwrap_or_default();
        let (kinds, invalid) = supported(protocol, kinds);
        listener.kinds = kinds;
        if let Some(kind) = invalid {
            let message = format!("a listener of protocol {} cannot serve {kind}", spec.protocol);
            listener.resolved = Err(Problem::new("InvalidRouteKinds", message));
        }
        if protocol.terminates_tls() {
            self.add_certificates(&mut listener);
            self.add_validation(&mut listener);
        }
        listener
    }

    fn add_certificates(&self, listener: &mut Listener) {
        let kind = if listener.set.is_some() { "ListenerSet" } else { "Gateway" };
        let references = listener.spec.tls.iter().flat_map(|tls| &tls.certificate_refs);
        let invalid = "InvalidCertificateRef";
        let mut problem = None;
        for reference in references {
            let from = (kind, listener.namespace.as_str());
            match self.objects.certificate(self.references, from, reference, invalid) {
                Ok(certificate) => listener.certificates.push(certificate),
                Err(error) => problem = problem.or(Some(error)),
            }
        }
        if listener.certificates.is_empty() && problem.is_none() {
            problem = Some(Problem::new(invalid, "tls.certificateRefs is empty"));
        }
        if let Some(problem) = problem {
            listener.resolved = Err(problem);
        }
    }

    fn add_validation(&self, listener: &mut Listener) {
        let frontend = self.gateway.spec.tls.as_ref().and_then(|tls| tls.frontend.as_ref());
        let Some(frontend) = frontend else { return };
        let of_port = frontend.per_port.iter().find(|port| port.port == listener.spec.port);
        let config = of_port.map_or(&frontend.default, |port| &port.tls);
        let Some(validation) = &config.validation else { return };
        match self.roots(validation) {
            Ok((roots, problem)) => {
                if let Some(problem) = problem {
                    listener.resolved = Err(problem);
                }
                let allows_invalid = validation.mode.as_deref() == Some("AllowInsecureFallback");
                listener.validation = Some(ClientValidation { roots, allows_invalid });
            }
            Err(problem) => {
                let message = problem.message.clone();
                listener.resolved = Err(problem);
                listener.accepted = Err(Problem::new("NoValidCACertificate", message));
            }
        }
    }

    /// The authorities of clients, and the first problem of a reference if others are valid.
    fn roots(
        &self,
        validation: &FrontendValidation,
    ) -> Result<(Arc<Roots>, Option<Problem>), Problem> {
        let own = self.gateway.metadata.namespace.as_str();
        let mut pem = String::new();
        let mut first = None;
        for reference in &validation.ca_certificate_refs {
            let namespace = reference.namespace.as_deref().unwrap_or(own);
            let group = reference.group.as_deref().unwrap_or_default();
            let kind = reference.kind.as_deref().unwrap_or_default();
            let full = format!("ConfigMap {namespace}/{}", reference.name);
            let to = (group, kind, namespace, reference.name.as_str());
            let found = if !group.is_empty() || kind != "ConfigMap" {
                let message = format!("{kind} is not supported, use a ConfigMap");
                Err(Problem::new("InvalidCACertificateKind", message))
            } else if !self.objects.permits(("Gateway", own), to) {
                let message = format!("no ReferenceGrant permits the reference to {full}");
                Err(Problem::new("RefNotPermitted", message))
            } else {
                bundle(self.references, namespace, &reference.name)
            };
            match found {
                Ok(bundle) => pem.push_str(&bundle),
                Err(problem) => first = first.or(Some(problem)),
            }
        }
        match Roots::new(&pem) {
            Ok(roots) => Ok((Arc::new(roots), first)),
            Err(error) => {
                Err(first
                    .unwrap_or_else(|| Problem::new("InvalidCACertificateRef", error.to_string())))
            }
        }
    }
}

/// The CA certificates of a ConfigMap.
///
/// # Errors
/// The reason `InvalidCACertificateRef`.
pub(super) fn bundle(
    references: &impl References,
    namespace: &str,
    name: &str,
) -> Result<String, Problem> {
    let problem = |what: String| {
        let message = format!("ConfigMap {namespace}/{name} {what}");
        Problem::new("InvalidCACertificateRef", message)
    };
    let data = references.config_map(namespace, name);
    let data = data.ok_or_else(|| problem("does not exist".into()))?;
    let pem = data.get("ca.crt").ok_or_else(|| problem("has no ca.crt".into()))?;
    Roots::new(pem).map_err(|error| problem(format!("has an invalid ca.crt: {error}")))?;
    Ok(format!("{pem}\n"))
}

/// The kinds of a listener, and the first one that it cannot serve.
fn supported(protocol: Protocol, wanted: &[GroupKind]) -> (Vec<RouteKind>, Option<String>) {
    let all = protocol.kinds();
    if wanted.is_empty() {
        return (all.to_vec(), None);
    }
    let (mut kinds, mut invalid) = (Vec::new(), None);
    for GroupKind { group, kind } in wanted {
        let is_ours = group.as_deref().unwrap_or(GROUP) == GROUP;
        match all.iter().find(|known| is_ours && known.name() == kind) {
            Some(known) => kinds.push(*known),
            None => invalid = invalid.or_else(|| Some(kind.clone())),
        }
    }
    (kinds, invalid)
}

/// Whether a Gateway lets a ListenerSet of a namespace attach; none by default.
pub fn allows_set(
    gateway: &Resource<GatewaySpec>,
    namespace: &str,
    references: &impl References,
) -> bool {
    let choice = gateway.spec.allowed_listeners.as_ref().and_then(|a| a.namespaces.as_ref());
    is_chosen(choice, "None", &gateway.metadata.namespace, namespace, references)
}
