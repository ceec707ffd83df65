//! The flags about the network between nodes, and what they set.

use std::path::Path;

use net::PluginList;
use settings::{Backend, ClusterSettings};

use super::Machine;
use super::flannel_conf::{self, FlannelConf};
use crate::command_line::NodeArgs;
use crate::error_catalogue::{CommandError, invalid_flag};

/// The backend of a node: that of the flag, which the file must not contradict, or that of the
/// file. With `--flannel-backend=none` the file has no effect, as in k3s.
///
/// # Errors
/// The flag and the file name different backends.
pub(super) fn chosen_backend(
    flag: Option<Backend>,
    conf: Option<&FlannelConf>,
) -> Result<Option<Backend>, CommandError> {
    let Some(conf) = conf else { return Ok(flag) };
    let is_same = match flag {
        None | Some(Backend::None) => true,
        // `DirectRouting` is an option of the type vxlan.
        Some(Backend::Vxlan) => conf.backend.tunnels(),
        Some(flag) => flag == conf.backend,
    };
    if !is_same {
        let own = flag.map(Backend::name).unwrap_or_default();
        let why = format!(
            "the backend in the file is {}, which contradicts --flannel-backend={own}; remove one \
             of the two",
            conf.backend
        );
        return Err(invalid_flag("flannel-conf", conf.path.display(), why));
    }
    Ok(flag.filter(|flag| *flag == Backend::None).or(Some(conf.backend)))
}

/// What the flags about the network between nodes set.
#[derive(Debug, Clone, Default)]
pub(super) struct FlannelSettings {
    /// The backend, if a flag or the file sets it.
    pub(super) backend: Option<Backend>,
    /// The file of `--flannel-conf`.
    pub(super) conf: Option<FlannelConf>,
    /// The file of `--flannel-cni-conf`.
    pub(super) cni_list: Option<PluginList>,
    /// Settings without effect, each with the reason.
    pub(super) without_effect: Vec<String>,
}

impl FlannelSettings {
    /// Reads the files; with the backend none neither has an effect, as in k3s.
    ///
    /// # Errors
    /// What is wrong with a file, or which flag it contradicts.
    pub(super) fn load(args: &NodeArgs) -> Result<Self, CommandError> {
        let flag = args.flannel_backend.as_deref();
        let parse = |text: &str| text.parse().map_err(|e| invalid_flag("flannel-backend", text, e));
        let flag = flag.map(parse).transpose()?;
        let files = &args.flannel;
        let conf = files.flannel_conf.as_deref().map(FlannelConf::load).transpose()?;
        let cni_list = files.flannel_cni_conf.as_deref().map(plugin_list).transpose()?;
        let backend = chosen_backend(flag, conf.as_ref())?;
        if backend != Some(Backend::None) {
            let notes = conf.as_ref().map(|conf| conf.without_effect.clone());
            return Ok(Self { backend, conf, cni_list, without_effect: notes.unwrap_or_default() });
        }
        let ignored = [
            // A file of the type none has its effect.
            ("flannel-conf", files.flannel_conf.as_ref().filter(|_| flag.is_some())),
            ("flannel-cni-conf", files.flannel_cni_conf.as_ref()),
        ];
        let without_effect = ignored
            .into_iter()
            .filter_map(|(flag, path)| Some((flag, path?.display())))
            .map(|(flag, path)| format!("--{flag}={path}: another CNI plugin connects pods"))
            .collect();
        Ok(Self { backend, conf: None, cni_list: None, without_effect })
    }
}

/// The list of plugins in the file of `--flannel-cni-conf`.
fn plugin_list(path: &Path) -> Result<PluginList, CommandError> {
    let invalid =
        |why: &dyn std::fmt::Display| invalid_flag("flannel-cni-conf", path.display(), why);
    let text = flannel_conf::read(path).map_err(|e| invalid(&e))?;
    PluginList::parse(&text).map_err(|e| invalid(&e))
}

impl Machine {
    /// Checks that `--flannel-conf` agrees with the settings of the cluster; `node_masks` are the
    /// prefix lengths of the ranges of nodes, if this machine knows them.
    ///
    /// # Errors
    /// The field of the file that differs.
    pub(crate) fn check_overlay(
        &self,
        cluster: &ClusterSettings,
        node_masks: Option<(u8, u8)>,
    ) -> Result<(), CommandError> {
        self.flannel.conf.as_ref().map_or(Ok(()), |conf| conf.check(cluster, node_masks))
    }

    /// Sets backend and links of the overlay, as far as flags of this machine do.
    pub(crate) fn apply_overlay(&self, cluster: &mut ClusterSettings) {
        if let Some(conf) = &self.flannel.conf {
            cluster.overlay.clone_from(&conf.overlay);
        }
        cluster.backend = self.flannel.backend.unwrap_or(cluster.backend);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command_line::{Cli, Command, Locations, parse};

    fn machine(flags: &[&str]) -> Result<Machine, String> {
        let argv = ["kube-lite", "agent", "--config=/dev/null"].iter().chain(flags);
        let Ok(Cli { command: Command::Agent(args) }) =
            parse(argv.map(Into::into).collect(), |_| None)
        else {
            return Err("does not parse".into());
        };
        let locations = Locations { data: "/d".into(), config: "/c".into(), path: String::new() };
        Machine::new(&args.general, args.node, &locations).map_err(|error| error.details)
    }

    /// A folder with a network configuration and a list of plugins.
    fn files(conf: &str) -> (tempfile::TempDir, String, String) {
        let directory = tempfile::tempdir().unwrap();
        let [one, two] = ["net-conf.json", "10.conflist"].map(|name| directory.path().join(name));
        std::fs::write(&one, conf).unwrap();
        let list = r#"{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"flannel"}]}"#;
        std::fs::write(&two, list).unwrap();
        let flags = [
            format!("--flannel-conf={}", one.display()),
            format!("--flannel-cni-conf={}", two.display()),
        ];
        let [one, two] = flags;
        (directory, one, two)
    }

    #[test]
    fn the_files_of_a_node_take_precedence_over_the_settings_of_the_servers() {
        let (_directory, conf, list) =
            files(r#"{"Backend": {"Type": "vxlan", "Port": 4789, "DirectRouting": true}}"#);
        let machine = machine(&[&conf, &list]).unwrap();
        let mut cluster =
            ClusterSettings { backend: Backend::HostGateway, ..ClusterSettings::default() };
        machine.apply_overlay(&mut cluster);
        assert_eq!((cluster.backend, cluster.overlay.vxlan_port), (Backend::Auto, 4789));
        assert!(machine.flannel.cni_list.is_some() && machine.without_effect.is_empty());
    }

    #[test]
    fn the_files_have_no_effect_where_another_plugin_connects_pods() {
        let (_directory, conf, list) = files(r#"{"Backend": {"Type": "vxlan", "VNI": 42}}"#);
        let machine = machine(&["--flannel-backend=none", &conf, &list]).unwrap();
        let mut cluster = ClusterSettings::default();
        machine.apply_overlay(&mut cluster);
        assert_eq!((cluster.backend, cluster.overlay.vni), (Backend::None, 1));
        let notes = [&conf, &list].map(|flag| format!("{flag}: another CNI plugin connects pods"));
        assert_eq!(machine.without_effect, notes);
        assert!(machine.flannel.cni_list.is_none());
    }

    #[test]
    fn the_flag_and_the_file_name_one_backend() {
        let conf = |kind: &str| {
            let text = format!(r#"{{"Backend": {kind}}}"#);
            FlannelConf::parse(Path::new("/net-conf.json"), &text).unwrap()
        };
        let vxlan = conf(r#"{"Type": "vxlan"}"#);
        let direct = conf(r#"{"Type": "vxlan", "DirectRouting": true}"#);
        let chosen = |flag, conf| chosen_backend(flag, Some(conf)).map_err(|error| error.details);
        assert_eq!(chosen(None, &vxlan), Ok(Some(Backend::Vxlan)));
        assert_eq!(chosen(Some(Backend::Vxlan), &direct), Ok(Some(Backend::Auto)));
        assert_eq!(chosen(Some(Backend::Auto), &direct), Ok(Some(Backend::Auto)));
        assert_eq!(chosen(Some(Backend::None), &vxlan), Ok(Some(Backend::None)));
        let error = chosen(Some(Backend::HostGateway), &vxlan).unwrap_err();
        assert!(error.contains("is vxlan, which contradicts --flannel-backend=host-gw"), "{error}");
        assert!(matches!(chosen_backend(Some(Backend::Auto), None), Ok(Some(Backend::Auto))));
    }

    #[test]
    fn damaged_files_are_named_with_the_flag() {
        let (_directory, conf, _) = files("{");
        let error = machine(&[&conf]).unwrap_err();
        assert!(error.starts_with(&format!("{conf}: is not JSON")), "{error}");
        let list = conf.replace("flannel-conf", "flannel-cni-conf");
        let error = machine(&[&list]).unwrap_err();
        assert!(error.starts_with(&format!("{list}: is not JSON")), "{error}");
    }
}
