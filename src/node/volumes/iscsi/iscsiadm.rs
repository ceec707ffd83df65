//! The calls of `iscsiadm`: their arguments, and what its statuses mean.

use crate::volumes::scsi::{ProgramError, ProgramOutput, Programs};

use super::disk::IscsiDisk;

/// Status: a session or an interface exists already (`ISCSI_ERR_SESS_EXISTS`).
pub(super) const SESSION_EXISTS: i32 = 15;
/// Status: there is no such session (`ISCSI_ERR_SESS_NOT_FOUND`).
const SESSION_NOT_FOUND: i32 = 2;
/// Status: there are no such records or sessions (`ISCSI_ERR_NO_OBJS_FOUND`).
const NO_OBJECTS_FOUND: i32 = 21;

/// The keys of a Secret for discovery, which are also names of settings.
pub(super) const DISCOVERY_KEYS: [&str; 4] = [
    "discovery.sendtargets.auth.username",
    "discovery.sendtargets.auth.password",
    "discovery.sendtargets.auth.username_in",
    "discovery.sendtargets.auth.password_in",
];
/// The keys of a Secret for sessions.
pub(super) const SESSION_KEYS: [&str; 4] = [
    "node.session.auth.username",
    "node.session.auth.password",
    "node.session.auth.username_in",
    "node.session.auth.password_in",
];

/// Whether an object that was to be removed is gone (`ignoreExitCodes`).
pub(super) fn is_gone(output: &ProgramOutput) -> bool {
    matches!(output.code, Some(0 | SESSION_NOT_FOUND | NO_OBJECTS_FOUND))
}

fn owned(arguments: &[&str]) -> Vec<String> {
    arguments.iter().map(|argument| (*argument).to_owned()).collect()
}

/// The arguments about an interface, before the operation.
pub(super) fn iface(name: &str, operation: &[&str]) -> Vec<String> {
    let mut out = owned(&["-m", "iface", "-I", name]);
    out.extend(owned(operation));
    out
}

/// The arguments about the discovery of a portal, before the operation.
pub(super) fn discovery(disk: &IscsiDisk, portal: &str, operation: &[&str]) -> Vec<String> {
    let mut out =
        owned(&["-m", "discoverydb", "-t", "sendtargets", "-p", portal, "-I", &disk.iface]);
    out.extend(owned(operation));
    out
}

/// The arguments about the record of a target, before the operation.
pub(super) fn node(disk: &IscsiDisk, portal: &str, operation: &[&str]) -> Vec<String> {
    let mut out = owned(&["-m", "node", "-p", portal, "-T", &disk.iqn, "-I", &disk.iface]);
    out.extend(owned(operation));
    out
}

/// The arguments about the record of a target on all its interfaces.
pub(super) fn node_of_any_iface(disk: &IscsiDisk, portal: &str, operation: &[&str]) -> Vec<String> {
    let mut out = owned(&["-m", "node", "-p", portal, "-T", &disk.iqn]);
    out.extend(owned(operation));
    out
}

/// Sets a value.
pub(super) fn update<'a>(name: &'a str, value: &'a str) -> [&'a str; 6] {
    ["-o", "update", "-n", name, "-v", value]
}

/// Runs `iscsiadm`. The arguments are not logged: they may contain secrets.
pub(super) async fn run(
    programs: &dyn Programs,
    arguments: &[String],
) -> Result<ProgramOutput, ProgramError> {
    let output = programs.run("iscsiadm", arguments).await?;
    let mode = arguments.get(1).map(String::as_str).unwrap_or_default();
    tracing::debug!(mode, status = output.status(), "node: iscsiadm ended");
    Ok(output)
}
