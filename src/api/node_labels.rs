//! The labels that a node may set on itself. The admission plugin NodeRestriction and the
//! validation of flags use these rules.

/// The labels in Kubernetes' namespaces that a node may set on itself (upstream's
/// `IsKubeletLabel`).
const OWN: [&str; 11] = [
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];

/// The reason why a node may not set a label on itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reserved {
    /// The namespace `node-restriction.kubernetes.io` is reserved for administrators.
    Administrators,
    /// The other names in `kubernetes.io` and `k8s.io` are reserved for the Kubernetes project.
    Kubernetes,
}

/// Returns the reason why a node may not set the label with this key on itself, or `None` if it
/// may.
pub fn reserved(key: &str) -> Option<Reserved> {
    let namespace = key.split_once('/').map_or("", |(namespace, _)| namespace);
    let within = |domain: &str| {
        namespace == domain
            || namespace.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'))
    };
    if within("node-restriction.kubernetes.io") {
        return Some(Reserved::Administrators);
    }
    let open =
        OWN.contains(&key) || within("kubelet.kubernetes.io") || within("node.kubernetes.io");
    ((within("kubernetes.io") || within("k8s.io")) && !open).then_some(Reserved::Kubernetes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_sets_its_own_labels_and_those_of_nobody() {
        for free in [
            "rack",
            "example.com/rack",
            "notkubernetes.io/x",
            "kubernetes.io/hostname",
            "topology.kubernetes.io/zone",
            "node.kubernetes.io/speed",
            "a.kubelet.kubernetes.io/b",
        ] {
            assert_eq!(reserved(free), None, "{free}");
        }
        for (key, why) in [
            ("node-restriction.kubernetes.io/a", Reserved::Administrators),
            ("x.node-restriction.kubernetes.io/a", Reserved::Administrators),
            ("kubernetes.io/a", Reserved::Kubernetes),
            ("node-role.kubernetes.io/edge", Reserved::Kubernetes),
            ("x.k8s.io/y", Reserved::Kubernetes),
        ] {
            assert_eq!(reserved(key), Some(why), "{key}");
        }
    }
}
