//! The CustomResourceDefinitions of Gateway API, channel standard, release 1.7.0: the files of its
//! module as they are, compressed. Those that a user installed in a newer release or in the channel
//! experimental are kept.

use std::collections::BTreeMap;

use client::{Client, Error};
use serde_json::Value;

use crate::document::ManifestObject;
use crate::error::ManifestError;
use crate::packaged::unpack;

/// The name for `--disable`, that of the chart in which k3s packages them.
pub(crate) const COMPONENT: &str = "gateway-api-crd";
const PACKED: &[u8] = include_bytes!("../../manifests/gateway-api-crds.yaml.gz");
/// The release of the files.
const RELEASE: [u32; 3] = [1, 7, 0];
const ANNOTATIONS: &str = "/metadata/annotations";
const BUNDLE: &str = "gateway.networking.k8s.io/bundle-version";
const CHANNEL: &str = "gateway.networking.k8s.io/channel";
/// Definitions by name, without their schemas.
const LIST: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const METADATA: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
/// Names of the definitions end with it.
const GROUP: &str = ".gateway.networking.k8s.io";
/// Number of the definitions.
const COUNT: usize = 10;

/// The release and the channel of a definition in the cluster.
type Installed = BTreeMap<String, (String, String)>;

fn installed(list: &Value) -> Installed {
    let items = list.get("items").and_then(Value::as_array);
    let read = |item: &Value| {
        let name = item.pointer("/metadata/name")?.as_str()?;
        let annotation = |key: &str| {
            let value = item.pointer(ANNOTATIONS).and_then(|all| all.get(key)?.as_str());
            value.unwrap_or_default().to_owned()
        };
        name.ends_with(GROUP).then(|| (name.to_owned(), (annotation(BUNDLE), annotation(CHANNEL))))
    };
    items.into_iter().flatten().filter_map(read).collect()
}

/// Whether an installed definition is older than ours: only such a one is replaced.
fn is_older((bundle, channel): &(String, String)) -> bool {
    let numbers = bundle.strip_prefix('v').unwrap_or_default();
    let (numbers, is_preliminary) = match numbers.split_once('-') {
        Some((numbers, _)) => (numbers, true),
        None => (numbers, false),
    };
    let parsed: Vec<u32> = numbers.split('.').filter_map(|part| part.parse().ok()).collect();
    let is_known = parsed.len() == RELEASE.len() && channel == "standard";
    is_known && (parsed[..] < RELEASE[..] || (parsed[..] == RELEASE[..] && is_preliminary))
}

fn wanted(installed: &Installed) -> bool {
    installed.len() < COUNT || installed.values().any(is_older)
}

/// The definitions that the cluster lacks, or has in an older release.
///
/// # Errors
/// The server's refusal to list definitions.
pub(crate) async fn missing(client: &Client) -> Result<Vec<ManifestObject>, ManifestError> {
    let list = client.get_as(LIST, METADATA).await?;
    let list: Value = serde_json::from_slice(&list).map_err(Error::from)?;
    let installed = installed(&list);
    if !wanted(&installed) {
        return Ok(Vec::new());
    }
    let mut all = unpack(PACKED).await?;
    all.retain(|object| installed.get(&object.name).is_none_or(is_older));
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[tokio::test]
    async fn the_files_are_those_of_the_release() {
        let all = unpack(PACKED).await.unwrap();
        assert_eq!(all.len(), COUNT);
        for object in all {
            assert_eq!(object.kind, "CustomResourceDefinition");
            assert!(object.name.ends_with(GROUP), "{}", object.name);
            let annotations = object.value.pointer(ANNOTATIONS).unwrap();
            assert_eq!(annotations[BUNDLE], "v1.7.0");
            assert_eq!(annotations[CHANNEL], "standard");
        }
    }

    #[test]
    fn only_older_definitions_of_the_standard_channel_are_replaced() {
        for (bundle, channel, expected) in [
            ("v1.6.3", "standard", true),
            ("v1.7.0-rc.1", "standard", true),
            ("v1.7.0", "standard", false),
            ("v1.7.1", "standard", false),
            ("v1.10.0", "standard", false),
            ("v2.0.0", "standard", false),
            ("v1.6.3", "experimental", false),
            ("", "", false),
            ("main", "standard", false),
        ] {
            assert_eq!(is_older(&(bundle.into(), channel.into())), expected, "{bundle} {channel}");
        }
        let item = |name: &str| {
            json!({"metadata": {"name": name, "annotations":
            {BUNDLE: "v1.6.0", CHANNEL: "standard"}}})
        };
        let list =
            json!({"items": [item("a.example"), item("gateways.gateway.networking.k8s.io")]});
        let installed = installed(&list);
        assert_eq!(installed.len(), 1);
        assert!(wanted(&installed));
    }
}
