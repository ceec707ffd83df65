//! Puts the plugin and the network's configuration where the runtime looks for them.

use std::io;
use std::path::Path;

use serde_json::json;

use super::PluginList;
use crate::config::{Config, Error};

/// The plugin's name: file in the plugin directory and `type` in the configuration.
pub(super) const PLUGIN: &str = "kube-lite";
/// Found before the files of other networks, which sort later.
const FILE: &str = "10-kube-lite.conflist";

/// Points `path` at this executable: a link that follows upgrades, or a copy where links are not
/// possible.
fn point(executable: &Path, path: &Path) -> io::Result<()> {
    if std::fs::read_link(path).is_ok_and(|to| to == executable) {
        return Ok(());
    }
    let temporary = path.with_extension("tmp");
    let _ = std::fs::remove_file(&temporary);
    if std::os::unix::fs::symlink(executable, &temporary).is_err() {
        std::fs::copy(executable, &temporary)?;
    }
    std::fs::rename(&temporary, path)
}

/// Writes the configuration last, since its presence tells the runtime that the network is ready.
pub(crate) fn install(config: &Config) -> Result<(), Error> {
    let executable =
        std::env::current_exe().map_err(Error::io("cannot find the path of this executable"))?;
    install_as(config, &executable)
}

/// Removes what [`install`] wrote, for a node whose pods another CNI plugin connects. Files of
/// other plugins stay.
pub(crate) fn uninstall(config: &Config) -> Result<(), Error> {
    let executable =
        std::env::current_exe().map_err(Error::io("cannot find the path of this executable"))?;
    uninstall_as(config, &executable)
}

fn uninstall_as(config: &Config, executable: &Path) -> Result<(), Error> {
    let removed = |path: &Path| match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io(format!("cannot remove {}", path.display()))(error))
        }
        _ => Ok(()),
    };
    removed(&config.cni_conf_dir.join(FILE))?;
    for name in [PLUGIN, "loopback"] {
        let link = config.cni_bin_dir.join(name);
        if std::fs::read_link(&link).is_ok_and(|to| to == executable) {
            removed(&link)?;
        }
    }
    Ok(())
}

/// Warns about plugins of the user's list whose programs are not installed; they may be later.
fn report_missing_plugins(config: &Config) {
    for name in config.cni_list.iter().flat_map(PluginList::other_plugins) {
        let path = config.cni_bin_dir.join(name);
        if std::fs::metadata(&path).is_err() {
            tracing::warn!(plugin = name, path = %path.display(),
                "cni: a plugin of --flannel-cni-conf is not installed, pods do not start without it");
        }
    }
}

fn install_as(config: &Config, executable: &Path) -> Result<(), Error> {
    let named =
        |path: &Path| Error::io(format!("cannot install the CNI plugin as {}", path.display()));
    for directory in [&config.cni_bin_dir, &config.cni_conf_dir] {
        std::fs::create_dir_all(directory).map_err(named(directory))?;
    }
    let plugin = config.cni_bin_dir.join(PLUGIN);
    point(executable, &plugin).map_err(named(&plugin))?;
    // containerd before 2.1 asks a plugin for the loopback link too; the distribution's own stays
    // if it is there.
    let loopback = config.cni_bin_dir.join("loopback");
    if std::fs::metadata(&loopback).is_err() {
        point(executable, &loopback).map_err(named(&loopback))?;
    }
    let list = match &config.cni_list {
        Some(list) => list.with_socket(&config.socket),
        None => json!({
            "cniVersion": "1.0.0",
            "name": PLUGIN,
            "plugins": [{
                "type": PLUGIN,
                "socket": config.socket,
                "capabilities": {"portMappings": true, "bandwidth": true},
            }],
        }),
    };
    report_missing_plugins(config);
    let path = config.cni_conf_dir.join(FILE);
    let mut text = serde_json::to_vec_pretty(&list).unwrap_or_default();
    text.push(b'\n');
    if std::fs::read(&path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    base::fs::write_atomic(&path, &text, 0o644).map_err(named(&path))
}
