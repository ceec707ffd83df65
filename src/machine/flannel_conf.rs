//! The file of `--flannel-conf`.
//!
//! flannel reads its network configuration with Go's JSON decoder: names of fields match in any
//! case. Fields that flannel has and kube-lite does not are refused by name.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use settings::addr::Family;
use settings::{Backend, Cidr, ClusterSettings, OverlaySettings};

use crate::error_catalogue::{CommandError, invalid_flag};

/// Maximum size of a file in bytes.
const FILE_BYTES_MAX: u64 = 64 * 1024;
/// Smallest and largest MTU of a link between nodes: IPv6's minimum, and the largest packet.
const MTU: std::ops::RangeInclusive<u64> = 1280..=65535;
/// Prefix lengths of the ranges of nodes, of IPv4 and of IPv6, where no argument sets them.
const NODE_MASKS: (u8, u8) = (24, 64);

/// Why a file is not a network configuration that kube-lite can act on.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConfError {
    /// It cannot be read.
    #[error("cannot read the file: {0}")]
    Read(#[from] std::io::Error),
    /// It is larger than this program reads.
    #[error("the file has more than {FILE_BYTES_MAX} bytes")]
    TooLarge,
    /// It cannot be parsed.
    #[error("is not JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// It is another JSON value than an object.
    #[error("must be a JSON object such as {{\"Backend\": {{\"Type\": \"vxlan\"}}}}")]
    NotAnObject,
    /// A field with a value of another type, or outside of its range.
    #[error("{field} must be {must}")]
    Value {
        /// The path of the field.
        field: String,
        /// What is valid.
        must: String,
    },
    /// A field that kube-lite does not act on.
    #[error("{field} is not supported: {why}")]
    Unsupported {
        /// The path of the field.
        field: String,
        /// The reason, and what to do instead.
        why: &'static str,
    },
    /// A field that differs from the settings of the cluster.
    #[error("{field} is {given}, but {own}")]
    Differs {
        /// The path of the field.
        field: &'static str,
        /// Its value.
        given: String,
        /// What the cluster has.
        own: String,
    },
}

/// Fields of flannel that are refused, and the reason.
const REFUSED: &[(&str, &str)] = &[
    ("SubnetMin", "the servers choose the ranges of nodes; remove it"),
    ("SubnetMax", "the servers choose the ranges of nodes; remove it"),
    ("IPv6SubnetMin", "the servers choose the ranges of nodes; remove it"),
    ("IPv6SubnetMax", "the servers choose the ranges of nodes; remove it"),
    ("Networks", "--cluster-cidr sets the ranges of pods; remove it"),
    ("IPv6Networks", "--cluster-cidr sets the ranges of pods; remove it"),
];

/// The checked content of a file of `--flannel-conf`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FlannelConf {
    /// The file.
    pub(super) path: PathBuf,
    /// The backend.
    pub(super) backend: Backend,
    /// The settings of its links.
    pub(super) overlay: OverlaySettings,
    families: Vec<Family>,
    networks: Vec<(Family, Cidr)>,
    node_masks: Vec<(Family, u8)>,
    /// Settings without effect, each with the reason.
    pub(super) without_effect: Vec<String>,
}

/// One object of the file; each field is taken once.
struct Fields {
    prefix: &'static str,
    fields: Map<String, Value>,
}

impl Fields {
    fn new(prefix: &'static str, value: Value) -> Result<Self, ConfError> {
        match value {
            Value::Object(fields) => Ok(Self { prefix, fields }),
            _ if prefix.is_empty() => Err(ConfError::NotAnObject),
            _ => Err(ConfError::Value {
                field: prefix.trim_end_matches('.').to_owned(),
                must: "an object with the field Type".into(),
            }),
        }
    }

    fn path(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn invalid(&self, name: &str, must: impl Into<String>) -> ConfError {
        ConfError::Value { field: self.path(name), must: must.into() }
    }

    /// The value of a field; `null` counts as absent, as in Go.
    fn take(&mut self, name: &str) -> Option<Value> {
        let mut found = None;
        while let Some(key) = self.fields.keys().find(|k| k.eq_ignore_ascii_case(name)).cloned() {
            found = self.fields.remove(&key);
        }
        found.filter(|value| !value.is_null())
    }

    fn boolean(&mut self, name: &str) -> Result<Option<bool>, ConfError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(_) => Err(self.invalid(name, "true or false")),
        }
    }

    fn number(
        &mut self,
        name: &str,
        range: std::ops::RangeInclusive<u64>,
    ) -> Result<Option<u64>, ConfError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match value.as_u64().filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => {
                let must = format!("a number from {} to {}", range.start(), range.end());
                Err(self.invalid(name, must))
            }
        }
    }

    /// A number whose type has the upper limit of `range`.
    fn small<T: TryFrom<u64>>(
        &mut self,
        name: &str,
        range: std::ops::RangeInclusive<u64>,
    ) -> Result<Option<T>, ConfError> {
        Ok(self.number(name, range)?.and_then(|number| T::try_from(number).ok()))
    }

    fn cidr(&mut self, name: &str) -> Result<Option<Cidr>, ConfError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match value.as_str().unwrap_or_default() {
            "" if value.is_string() => Ok(None),
            text => match text.parse() {
                Ok(block) => Ok(Some(block)),
                Err(_) => Err(self.invalid(name, "a range of addresses such as 10.42.0.0/16")),
            },
        }
    }

    /// Refuses a field that is on.
    fn off(&mut self, name: &str, why: &'static str) -> Result<(), ConfError> {
        match self.boolean(name)? {
            Some(true) => Err(ConfError::Unsupported { field: self.path(name), why }),
            _ => Ok(()),
        }
    }

    /// Refuses all fields that were not taken.
    fn finish(self) -> Result<(), ConfError> {
        let Some(name) = self.fields.keys().next() else { return Ok(()) };
        let known = REFUSED.iter().find(|(field, _)| field.eq_ignore_ascii_case(name));
        let why = known.map_or("kube-lite does not know this field; remove it", |(_, why)| why);
        Err(ConfError::Unsupported { field: self.path(name), why })
    }
}

/// The backend and the settings of its links.
fn backend(value: Option<Value>) -> Result<(Backend, OverlaySettings), ConfError> {
    let mut fields = Fields::new("Backend.", value.unwrap_or_default())?;
    let mut overlay = OverlaySettings::default();
    let kind = fields.take("Type");
    let backend = match kind.as_ref().and_then(Value::as_str).unwrap_or_default() {
        "vxlan" => vxlan(&mut fields, &mut overlay)?,
        "wireguard" | "wireguard-native" => wireguard(&mut fields, &mut overlay)?,
        "host-gw" => Backend::HostGateway,
        "none" => Backend::None,
        _ => return Err(fields.invalid("Type", "vxlan, host-gw, wireguard or none")),
    };
    fields.finish()?;
    Ok((backend, overlay))
}

/// The options of VXLAN; with `DirectRouting` nodes on one link need no tunnel, which is the
/// backend `auto`.
fn vxlan(fields: &mut Fields, overlay: &mut OverlaySettings) -> Result<Backend, ConfError> {
    let default = OverlaySettings::default();
    let vni_max = OverlaySettings::vni_max(&[Family::V4]).into();
    overlay.vni = fields.small("VNI", 1..=vni_max)?.unwrap_or(default.vni);
    // flannel reads zero as the default of the kernel.
    overlay.vxlan_port = match fields.small("Port", 0..=65535)? {
        None | Some(0) => default.vxlan_port,
        Some(port) => port,
    };
    overlay.link_mtu = fields.small("MTU", MTU)?;
    fields.off("GBP", "group policies of VXLAN packets are not implemented; remove it")?;
    fields.off("Learning", "nodes know all addresses from the API; remove it")?;
    Ok(match fields.boolean("DirectRouting")? {
        Some(true) => Backend::Auto,
        _ => Backend::Vxlan,
    })
}

fn wireguard(fields: &mut Fields, overlay: &mut OverlaySettings) -> Result<Backend, ConfError> {
    let default = OverlaySettings::default();
    let port = fields.small("ListenPort", 1..=65535)?;
    overlay.wireguard_port_v4 = port.unwrap_or(default.wireguard_port_v4);
    let port = fields.small("ListenPortV6", 1..=65535)?;
    overlay.wireguard_port_v6 = port.unwrap_or(default.wireguard_port_v6);
    overlay.wireguard_keepalive = fields.small("PersistentKeepaliveInterval", 0..=65535)?;
    overlay.link_mtu = fields.small("MTU", MTU)?;
    match fields.take("Mode").as_ref().map(|mode| mode.as_str().unwrap_or_default()) {
        None | Some("" | "separate") => {}
        Some(_) => {
            return Err(ConfError::Unsupported {
                field: "Backend.Mode".into(),
                why: "each family has a tunnel of its own, as with separate; remove it",
            });
        }
    }
    match fields.take("PSK").as_ref().map(|key| key.as_str().unwrap_or("?")) {
        None | Some("") => {}
        Some(_) => {
            return Err(ConfError::Unsupported {
                field: "Backend.PSK".into(),
                why: "preshared keys are not implemented; remove it",
            });
        }
    }
    if overlay.wireguard_port_v4 == overlay.wireguard_port_v6 {
        return Err(fields.invalid("ListenPortV6", "another port than ListenPort"));
    }
    Ok(Backend::WireGuard)
}

/// Reads a file of limited size.
///
/// # Errors
/// The file cannot be read, or is too large.
pub(super) fn read(path: &Path) -> Result<String, ConfError> {
    let mut text = String::new();
    let file = std::fs::File::open(path)?;
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    match u64::try_from(text.len()) {
        Ok(length) if length <= FILE_BYTES_MAX => Ok(text),
        _ => Err(ConfError::TooLarge),
    }
}

impl FlannelConf {
    /// Reads the content of a file.
    ///
    /// # Errors
    /// What is wrong with it, by the name of the field.
    pub(super) fn parse(path: &Path, text: &str) -> Result<Self, ConfError> {
        let mut fields = Fields::new("", serde_json::from_str(text)?)?;
        let (backend, overlay) = backend(fields.take("Backend"))?;
        let is_on = [
            fields.boolean("EnableIPv4")?.unwrap_or(true),
            fields.boolean("EnableIPv6")?.unwrap_or(false),
        ];
        let networks = [fields.cidr("Network")?, fields.cidr("IPv6Network")?];
        let masks = [fields.small("SubnetLen", 0..=32)?, fields.small("IPv6SubnetLen", 0..=128)?];
        let mut without_effect = Vec::new();
        if fields.boolean("EnableNFTables")?.is_some() {
            let why = "kube-lite always uses nftables";
            without_effect
                .push(format!("EnableNFTables in --flannel-conf={}: {why}", path.display()));
        }
        fields.finish()?;
        let families: Vec<Family> =
            Family::ALL.into_iter().zip(is_on).filter(|(_, on)| *on).map(|(f, _)| f).collect();
        let of = |family: &Family| families.contains(family);
        Ok(Self {
            path: path.to_owned(),
            backend,
            overlay,
            networks: Family::ALL
                .into_iter()
                .zip(networks)
                .filter_map(|(family, network)| Some((family, network?)))
                .filter(|(family, _)| of(family))
                .collect(),
            // Go's zero value means that the field is absent.
            node_masks: Family::ALL
                .into_iter()
                .zip(masks)
                .filter_map(|(family, mask)| Some((family, mask.filter(|mask| *mask != 0)?)))
                .filter(|(family, _)| of(family))
                .collect(),
            families,
            without_effect,
        })
    }

    /// Reads the file.
    ///
    /// # Errors
    /// What is wrong with it, by the name of the field.
    pub(super) fn load(path: &Path) -> Result<Self, CommandError> {
        let conf = read(path).and_then(|text| Self::parse(path, &text));
        conf.map_err(|why| invalid_flag("flannel-conf", path.display(), why))
    }

    /// Checks that the file agrees with the settings of the cluster. `node_masks` are the prefix
    /// lengths of the ranges of nodes, of IPv4 and of IPv6; an agent does not know them and accepts
    /// the default ones.
    ///
    /// # Errors
    /// The first field that differs.
    pub(super) fn check(
        &self,
        cluster: &ClusterSettings,
        node_masks: Option<(u8, u8)>,
    ) -> Result<(), CommandError> {
        self.difference(cluster, node_masks.unwrap_or(NODE_MASKS))
            .map_err(|why| invalid_flag("flannel-conf", self.path.display(), why))
    }

    fn difference(&self, cluster: &ClusterSettings, node_masks: (u8, u8)) -> Result<(), ConfError> {
        let differs = |field: &'static str, given: &dyn std::fmt::Display, own: String| {
            Err(ConfError::Differs { field, given: given.to_string(), own })
        };
        for (family, field) in Family::ALL.into_iter().zip(["EnableIPv4", "EnableIPv6"]) {
            let (given, own) =
                (self.families.contains(&family), cluster.families().contains(&family));
            if given != own {
                let has = if own { "has" } else { "has no" };
                let why = format!("--cluster-cidr {has} {} addresses", family.name());
                return differs(field, &given, why);
            }
        }
        for (family, network) in &self.networks {
            let own = cluster.cluster_cidrs.iter().find(|block| block.family() == *family);
            if let Some(own) = own.filter(|own| *own != network) {
                let field = if *family == Family::V4 { "Network" } else { "IPv6Network" };
                return differs(field, network, format!("--cluster-cidr of the servers is {own}"));
            }
        }
        for (family, mask) in &self.node_masks {
            let (field, own) = match family {
                Family::V4 => ("SubnetLen", node_masks.0),
                Family::V6 => ("IPv6SubnetLen", node_masks.1),
            };
            if *mask != own {
                let why = format!(
                    "the ranges of nodes have {own} bits \
                     (--kube-controller-manager-arg=node-cidr-mask-size); remove it"
                );
                return differs(field, mask, why);
            }
        }
        let vni_max = OverlaySettings::vni_max(&cluster.families());
        if self.overlay.vni > vni_max {
            return differs(
                "Backend.VNI",
                &self.overlay.vni,
                format!("the name of the link has room for numbers up to {vni_max}"),
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
