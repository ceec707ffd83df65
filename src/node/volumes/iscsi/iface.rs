//! Interfaces of the initiator: the transport of one, and the copy of one with another initiator
//! name.

use std::collections::BTreeMap;

use crate::volumes::scsi::{Programs, ScsiError};

use super::disk::IscsiDisk;
use super::iscsiadm;

/// Returns the transport in the output of `iscsiadm -m iface -o show`; `None` if it has none
/// (`extractTransportname`).
pub(super) fn transport(output: &str) -> Option<&str> {
    let mut lines = output.split_inclusive('\n');
    let value = lines.find_map(|line| {
        let (_, value) = line.strip_suffix('\n')?.split_once("iface.transport_name = ")?;
        Some(value)
    })?;
    Some(if value == "<empty>" { "tcp" } else { value })
}

/// Returns the settings in the output of `iscsiadm -m iface -o show`, except the name, which
/// cannot be changed (`parseIscsiadmShow`).
///
/// # Errors
///
/// A line that is no setting.
fn settings(output: &str) -> Result<BTreeMap<String, String>, ScsiError> {
    let mut out = BTreeMap::new();
    let lines = output.lines();
    for line in lines.filter(|line| line.starts_with("iface.") && !line.contains("<empty>")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["iface.iscsi_ifacename", "=", _] => {}
            [name, "=", value] => {
                out.insert((*name).to_owned(), (*value).to_owned());
            }
            _ => return Err(ScsiError::IfaceSetting(words.join(" "))),
        }
    }
    Ok(out)
}

/// Creates the interface of a volume with its own initiator name (`cloneIface`).
///
/// # Errors
///
/// `iscsiadm` refuses a step; a copy that is not complete is removed.
pub(super) async fn clone_iface(
    programs: &dyn Programs,
    disk: &IscsiDisk,
) -> Result<(), ScsiError> {
    if disk.init_iface == disk.iface {
        return Err(ScsiError::SameIface(disk.init_iface.clone()));
    }
    let failed = |doing, output: &crate::volumes::scsi::ProgramOutput| ScsiError::Iface {
        doing,
        output: output.shown(),
        status: output.status(),
    };
    let show = iscsiadm::iface(&disk.init_iface, &["-o", "show"]);
    let shown = iscsiadm::run(programs, &show).await?;
    if !shown.is_success() {
        return Err(failed("show iface records", &shown));
    }
    let mut settings = settings(&shown.text)?;
    settings.insert("iface.initiatorname".to_owned(), disk.initiator_name.clone());
    let new = iscsiadm::iface(&disk.iface, &["-o", "new"]);
    let created = iscsiadm::run(programs, &new).await?;
    if !created.is_success() && created.code != Some(iscsiadm::SESSION_EXISTS) {
        return Err(failed("create new iface", &created));
    }
    for (name, value) in &settings {
        let arguments = iscsiadm::iface(&disk.iface, &iscsiadm::update(name, value));
        let updated = iscsiadm::run(programs, &arguments).await?;
        if !updated.is_success() {
            iscsiadm::run(programs, &iscsiadm::iface(&disk.iface, &["-o", "delete"])).await?;
            return Err(failed("update iface records", &updated));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cases of `TestExtractTransportname`.
    #[test]
    fn the_transport_of_an_interface_is_read() {
        assert_eq!(transport("# BEGIN\niface.transport_name = tcp\n# END\n"), Some("tcp"));
        assert_eq!(transport("iface.transport_name = bnx2i\n"), Some("bnx2i"));
        assert_eq!(transport("iface.transport_name = <empty>\n"), Some("tcp"));
        assert_eq!(transport("iface.initiatorname = <empty>\n"), None);
        assert_eq!(transport("iface.transport_name = <empty>"), None, "no end of line");
    }

    /// Cases of `TestParseIscsiadmShow`.
    #[test]
    fn settings_of_an_interface_are_read() {
        let output = "# BEGIN RECORD 2.0-873\niface.iscsi_ifacename = default\n\
            iface.transport_name = tcp\niface.ipaddress = <empty>\niface.mtu = 0\n# END RECORD";
        let parsed = settings(output).unwrap();
        let want = [("iface.mtu", "0"), ("iface.transport_name", "tcp")];
        assert_eq!(parsed, want.map(|(k, v)| (k.to_owned(), v.to_owned())).into());
        let invalid = settings("iface.iscsi_ifacename = default\niface.net_ifacename = a b\n");
        assert!(matches!(invalid, Err(ScsiError::IfaceSetting(_))));
        assert!(matches!(settings("iface.mtu 0 x\n"), Err(ScsiError::IfaceSetting(_))));
    }
}
