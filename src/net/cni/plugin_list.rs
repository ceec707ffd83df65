//! The list of CNI plugins of `--flannel-cni-conf`, which replaces kube-lite's own.
//!
//! A list for k3s names the plugins `flannel`, `portmap` and `bandwidth`. kube-lite's plugin does
//! what these three do, so it takes the place of the first one and the other two become its
//! capabilities. All other plugins, and all other fields, stay as they are.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::VERSIONS;
use super::install::PLUGIN;

/// The plugin of k3s's lists whose place kube-lite's takes.
const FLANNEL: &str = "flannel";
/// Plugins that become a capability of kube-lite's, and the name of that capability.
const CAPABILITIES: [(&str, &str); 2] = [("portmap", "portMappings"), ("bandwidth", "bandwidth")];
/// The settings of these plugins that are what kube-lite does in any case; each must be true.
const PORTMAP_SETTINGS: &[&str] = &["snat"];
const DELEGATE_SETTINGS: &[&str] =
    &["forceAddress", "hairpinMode", "isDefaultGateway", "isGateway"];

/// Why a file is not a list of CNI plugins that kube-lite can install.
#[derive(Debug, thiserror::Error)]
pub enum PluginListError {
    /// It cannot be parsed.
    #[error("is not JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// It is another JSON value than an object.
    #[error("must be a JSON object with cniVersion, name and plugins")]
    NotAnObject,
    /// The version of the specification.
    #[error("cniVersion must be one of {}", VERSIONS.join(", "))]
    Version,
    /// The name of the network.
    #[error(
        "name must begin with a letter or digit and consist of letters, digits, '_', '.' and '-'"
    )]
    Name,
    /// The plugins.
    #[error("plugins must be a list of objects, each with the name of a plugin as its type")]
    Plugins,
    /// No plugin connects pods to the network of kube-lite, or several do.
    #[error(
        "plugins must contain one of the type flannel or kube-lite, whose place kube-lite's \
         takes; for the network of another plugin use --flannel-backend=none"
    )]
    Network,
    /// A setting of a plugin that kube-lite's replaces.
    #[error("plugin {plugin}: kube-lite does not support the setting {setting}; remove it")]
    Setting {
        /// The type of the plugin.
        plugin: String,
        /// The path of the setting.
        setting: String,
    },
}

/// A valid list of CNI plugins with kube-lite's among them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginList {
    list: Map<String, Value>,
    plugins: Vec<Map<String, Value>>,
}

/// The type of a plugin.
fn kind(plugin: &Map<String, Value>) -> &str {
    plugin.get("type").and_then(Value::as_str).unwrap_or_default()
}

/// The name of a network in the CNI specification.
fn is_network_name(name: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(is_inner)
}

/// The plugins of the list.
fn plugins(list: &mut Map<String, Value>) -> Option<Vec<Map<String, Value>>> {
    let Some(Value::Array(plugins)) = list.remove("plugins") else { return None };
    let of = |plugin: Value| match plugin {
        // The runtime looks for a program of this name in the plugin directory.
        Value::Object(plugin) if !kind(&plugin).is_empty() && !kind(&plugin).contains('/') => {
            Some(plugin)
        }
        _ => None,
    };
    plugins.into_iter().map(of).collect()
}

/// Refuses settings of a plugin that kube-lite's replaces, except those in `fixed` with this value.
fn check_settings(
    plugin: &str,
    prefix: &str,
    settings: &Map<String, Value>,
    fixed: &[&str],
) -> Result<(), PluginListError> {
    let is_known = |(name, value): &(&String, &Value)| {
        let structural =
            prefix.is_empty() && ["type", "capabilities", "delegate"].contains(&name.as_str());
        structural || (fixed.contains(&name.as_str()) && **value == Value::Bool(true))
    };
    match settings.iter().find(|setting| !is_known(setting)) {
        None => Ok(()),
        Some((name, _)) => Err(PluginListError::Setting {
            plugin: plugin.to_owned(),
            setting: format!("{prefix}{name}"),
        }),
    }
}

/// kube-lite's plugin in place of `flannel`, with the capabilities of the plugins beside it.
fn replacement(
    flannel: &Map<String, Value>,
    all: &[Map<String, Value>],
) -> Result<Map<String, Value>, PluginListError> {
    check_settings(FLANNEL, "", flannel, &[])?;
    if let Some(Value::Object(delegate)) = flannel.get("delegate") {
        check_settings(FLANNEL, "delegate.", delegate, DELEGATE_SETTINGS)?;
    }
    let mut capabilities = Map::new();
    for (name, capability) in CAPABILITIES {
        for plugin in all.iter().filter(|plugin| kind(plugin) == name) {
            let fixed = if name == "portmap" { PORTMAP_SETTINGS } else { &[] };
            check_settings(name, "", plugin, fixed)?;
            let is_on = plugin.get("capabilities").and_then(|c| c.get(capability));
            capabilities.insert(capability.to_owned(), json!(is_on == Some(&Value::Bool(true))));
        }
    }
    let mut own = Map::new();
    own.insert("type".to_owned(), PLUGIN.into());
    own.insert("capabilities".to_owned(), Value::Object(capabilities));
    Ok(own)
}

impl PluginList {
    /// Reads the content of a `.conflist` file.
    ///
    /// # Errors
    /// When it is not a list of plugins, or has a setting that kube-lite does not support.
    pub fn parse(text: &str) -> Result<Self, PluginListError> {
        let Value::Object(mut list) = serde_json::from_str(text)? else {
            return Err(PluginListError::NotAnObject);
        };
        let text = |name: &str| list.get(name).and_then(Value::as_str).unwrap_or_default();
        if !VERSIONS.contains(&text("cniVersion")) {
            return Err(PluginListError::Version);
        }
        if !is_network_name(text("name")) {
            return Err(PluginListError::Name);
        }
        let mut plugins = plugins(&mut list).ok_or(PluginListError::Plugins)?;
        let is_network = |plugin: &Map<String, Value>| [FLANNEL, PLUGIN].contains(&kind(plugin));
        let mut networks = plugins.iter().enumerate().filter(|(_, plugin)| is_network(plugin));
        let (Some((index, network)), None) = (networks.next(), networks.next()) else {
            return Err(PluginListError::Network);
        };
        if kind(network) == FLANNEL {
            let own = replacement(network, &plugins)?;
            if let Some(place) = plugins.get_mut(index) {
                *place = own;
            }
            plugins.retain(|plugin| CAPABILITIES.iter().all(|(name, _)| kind(plugin) != *name));
        }
        Ok(Self { list, plugins })
    }

    /// The types of the plugins other than kube-lite's.
    pub(crate) fn other_plugins(&self) -> impl Iterator<Item = &str> {
        self.plugins.iter().map(kind).filter(|kind| *kind != PLUGIN)
    }

    /// The list as it is installed: `socket` is that of the agent.
    pub(crate) fn with_socket(&self, socket: &Path) -> Value {
        let mut plugins = self.plugins.clone();
        for plugin in plugins.iter_mut().filter(|plugin| kind(plugin) == PLUGIN) {
            plugin.insert("socket".to_owned(), json!(socket));
        }
        let mut list = self.list.clone();
        list.insert("plugins".to_owned(), json!(plugins));
        Value::Object(list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The list that k3s installs without the flag (pkg/agent/flannel/setup_linux.go).
    const OF_K3S: &str = r#"{"name":"cbr0","cniVersion":"1.0.0","plugins":[
        {"type":"flannel","delegate":{"hairpinMode":true,"forceAddress":true,"isDefaultGateway":true}},
        {"type":"portmap","capabilities":{"portMappings":true}},
        {"type":"bandwidth","capabilities":{"bandwidth":true}}]}"#;

    fn installed(text: &str) -> Value {
        PluginList::parse(text).unwrap().with_socket(Path::new("/run/kube-lite/cni.sock"))
    }

    #[test]
    fn the_list_of_k3s_becomes_kube_lites_with_the_same_name_and_capabilities() {
        assert_eq!(
            installed(OF_K3S),
            json!({"name": "cbr0", "cniVersion": "1.0.0", "plugins": [
                {"type": "kube-lite", "socket": "/run/kube-lite/cni.sock",
                    "capabilities": {"portMappings": true, "bandwidth": true}}]})
        );
    }

    #[test]
    fn other_plugins_and_fields_stay() {
        let text = r#"{"name":"n","cniVersion":"0.4.0","disableCheck":true,"plugins":[
            {"type":"flannel"},{"type":"tuning","sysctl":{"net.core.somaxconn":"500"}}]}"#;
        assert_eq!(
            installed(text),
            json!({"name": "n", "cniVersion": "0.4.0", "disableCheck": true, "plugins": [
                {"type": "kube-lite", "socket": "/run/kube-lite/cni.sock", "capabilities": {}},
                {"type": "tuning", "sysctl": {"net.core.somaxconn": "500"}}]})
        );
        let list = PluginList::parse(text).unwrap();
        assert_eq!(list.other_plugins().collect::<Vec<_>>(), ["tuning"]);
        let own = r#"{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"kube-lite",
            "capabilities":{"portMappings":true}},{"type":"bandwidth"}]}"#;
        let plugins = &installed(own)["plugins"];
        assert_eq!(plugins[0]["capabilities"], json!({"portMappings": true}));
        assert_eq!(plugins[1], json!({"type": "bandwidth"}));
    }

    #[test]
    fn what_is_no_list_of_ours_is_refused_by_name() {
        let list =
            |plugins: &str| format!(r#"{{"name":"n","cniVersion":"1.0.0","plugins":[{plugins}]}}"#);
        for (text, why) in [
            ("{".to_owned(), "is not JSON"),
            ("[]".to_owned(), "must be a JSON object"),
            (r#"{"name":"n","plugins":[]}"#.to_owned(), "cniVersion must be one of"),
            (OF_K3S.replace("cbr0", "../x"), "name must begin"),
            (OF_K3S.replace("plugins", "plugin"), "plugins must be a list"),
            (list(r#"{"type":"flannel"},{"type":"../x"}"#), "plugins must be a list"),
            (list(r#"{"type":"flannel"},3"#), "plugins must be a list"),
            (list(""), "must contain one of the type flannel"),
            (list(r#"{"type":"bridge"}"#), "use --flannel-backend=none"),
            (list(r#"{"type":"flannel"},{"type":"kube-lite"}"#), "must contain one of"),
            (list(r#"{"type":"flannel","subnetFile":"/x"}"#), "the setting subnetFile"),
            (
                list(r#"{"type":"flannel","delegate":{"hairpinMode":false}}"#),
                "plugin flannel: kube-lite does not support the setting delegate.hairpinMode",
            ),
            (
                list(r#"{"type":"flannel"},{"type":"portmap","conditionsV4":[]}"#),
                "plugin portmap: kube-lite does not support the setting conditionsV4",
            ),
        ] {
            let error = PluginList::parse(&text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
