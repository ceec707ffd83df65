//! The annotations that limit the bandwidth of a pod.
//!
//! containerd reads them, and the network plugin applies them. With an invalid one, containerd
//! leaves a sandbox that it cannot stop, because it reads the annotations then, too; so the node
//! agent rejects invalid ones before a sandbox exists.

use std::collections::BTreeMap;

use api::quantity::{BadQuantity, Quantity};

/// What a pod receives and what it sends, in upstream's order.
const ANNOTATIONS: [&str; 2] =
    ["kubernetes.io/ingress-bandwidth", "kubernetes.io/egress-bandwidth"];
const KILO: i64 = 1000;
const PETA: i64 = 1_000_000_000_000_000;

/// A limit that containerd does not accept, with upstream's texts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid annotation {annotation}: {why}; set 1k to 1P bits per second, or remove it")]
pub(crate) struct InvalidBandwidth {
    annotation: &'static str,
    why: Why,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum Why {
    #[error(transparent)]
    Quantity(#[from] BadQuantity),
    #[error("resource is unreasonably small (< 1kbit)")]
    Small,
    #[error("resource is unreasonably large (> 1Pbit)")]
    Large,
}

/// Checks the limits of a pod, as `ExtractPodBandwidthResources` of Kubernetes.
///
/// # Errors
/// The first invalid limit.
pub(crate) fn check_bandwidth(
    annotations: &BTreeMap<String, String>,
) -> Result<(), InvalidBandwidth> {
    for annotation in ANNOTATIONS {
        let Some(text) = annotations.get(annotation) else { continue };
        let range = |limit: Quantity| match limit.value() {
            ..KILO => Err(Why::Small),
            KILO..=PETA => Ok(()),
            _ => Err(Why::Large),
        };
        let checked = Quantity::parse(text).map_err(Why::from).and_then(range);
        checked.map_err(|why| InvalidBandwidth { annotation, why })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_from_1k_to_1p_are_valid() {
        let check = |annotation: &str, text: &str| {
            check_bandwidth(&[(annotation.to_owned(), text.to_owned())].into())
        };
        assert_eq!(check_bandwidth(&BTreeMap::new()), Ok(()));
        for (text, why) in [
            ("1k", None),
            ("10M", None),
            ("1P", None),
            ("999", Some("resource is unreasonably small (< 1kbit)")),
            ("1m", Some("resource is unreasonably small (< 1kbit)")),
            ("-1M", Some("resource is unreasonably small (< 1kbit)")),
            ("1001T", Some("resource is unreasonably large (> 1Pbit)")),
            ("fast", Some("quantities must match the regular expression")),
            ("", Some("quantities must match the regular expression")),
        ] {
            for annotation in ANNOTATIONS {
                let message = check(annotation, text).err().map(|error| error.to_string());
                match (&message, why) {
                    (Some(message), Some(why)) => {
                        assert!(message.contains(why) && message.contains(annotation), "{message}");
                    }
                    _ => assert_eq!((message.as_deref(), why), (None, None), "{text}"),
                }
            }
        }
        assert_eq!(check("kubernetes.io/other", "fast"), Ok(()));
    }
}
