//! `kube-lite certificate rotate`: moves certificates of a server aside, so that its next start
//! creates new ones with new keys.

use std::path::Path;

use base::fs;

use crate::error_catalogue::{BAD_VALUE, CERTIFICATE_COMMAND, CommandError};

/// k3s's names of services, and the files of each below the data directory, without extension.
const SERVICES: [(&str, &[&str]); 8] = [
    ("admin", &["server/tls/client-admin"]),
    ("api-server", &["server/tls/serving-kube-apiserver", "server/tls/client-kube-apiserver"]),
    ("controller-manager", &["server/tls/client-controller"]),
    ("scheduler", &["server/tls/client-scheduler"]),
    (
        "etcd",
        &[
            "server/tls/etcd/server-client",
            "server/tls/etcd/client",
            "server/tls/etcd/peer-server-client",
        ],
    ),
    ("auth-proxy", &["server/tls/client-auth-proxy"]),
    ("kubelet", &["agent/client-kubelet", "agent/serving-kubelet"]),
    ("kube-proxy", &["server/tls/client-kube-proxy"]),
];
/// Services of k3s that have no certificates in kube-lite.
const ABSENT: [&str; 3] = ["k3s-server", "k3s-controller", "cloud-controller"];

/// Moves the certificates of these services aside, or those of all services.
///
/// # Errors
/// An unknown service, a data directory that does not belong to a server, or a file that cannot be
/// moved.
pub(crate) fn run(data_dir: &Path, services: &[String]) -> Result<String, CommandError> {
    for name in services {
        let why = if ABSENT.contains(&name.as_str()) {
            "kube-lite has no such component"
        } else if SERVICES.iter().any(|(known, _)| known == name) {
            continue;
        } else {
            "unknown service"
        };
        let known: Vec<&str> = SERVICES.iter().map(|(known, _)| *known).collect();
        let text = format!("--service={name}: {why}; known services: {}", known.join(", "));
        return Err(BAD_VALUE.usage_error(text));
    }
    if !data_dir.join("server/tls/server-ca.key").exists() {
        return Err(CERTIFICATE_COMMAND.error(format!(
            "{} is not the data directory of a server; a running agent renews its certificates through its server, and gets new keys when it joins again",
            data_dir.display()
        )));
    }
    let aside = data_dir.join(format!("server/tls-{}", base::pki::now()));
    let mut moved = Vec::new();
    let is_selected = |name: &str| services.is_empty() || services.iter().any(|s| s == name);
    for (_, files) in SERVICES.iter().filter(|(name, _)| is_selected(name)) {
        for end in files.iter().flat_map(|file| [format!("{file}.crt"), format!("{file}.key")]) {
            let from = data_dir.join(&end);
            if !from.exists() {
                continue;
            }
            let to = aside.join(end.trim_start_matches("server/tls/").replace('/', "-"));
            let failed = |e: std::io::Error| {
                let text = format!("cannot move {} to {}: {e}", from.display(), to.display());
                CERTIFICATE_COMMAND.error(text)
            };
            fs::create_dir(&aside, 0o700).map_err(failed)?;
            std::fs::rename(&from, &to).map_err(failed)?;
            moved.push(end);
        }
    }
    if moved.is_empty() {
        return Ok("There are none; the server creates them at its next start.\n".to_owned());
    }
    Ok(format!(
        "Moved to {}:\n  {}\nThe server creates new ones at its next start: systemctl restart kube-lite.\n",
        aside.display(),
        moved.join("\n  ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::certs::{self, Names};

    #[test]
    fn only_the_certificates_of_the_given_services_are_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let ran = |services: &[&str]| {
            let services: Vec<String> = services.iter().map(|s| (*s).to_owned()).collect();
            run(dir.path(), &services).map_err(|command_error| command_error.to_string())
        };
        assert!(ran(&[]).unwrap_err().contains("is not the data directory of a server"));
        let names = Names::default();
        certs::ensure(dir.path(), &names).unwrap();
        assert!(ran(&["k3s-server"]).unwrap_err().contains("kube-lite has no such component"));
        assert!(
            ran(&["else"])
                .unwrap_err()
                .contains("unknown service; known services: admin, api-server")
        );
        let read = |file: &str| std::fs::read(dir.path().join("server/tls").join(file)).unwrap();
        let all = ["client-admin.key", "client-scheduler.key", "server-ca.key", "etcd/client.key"];
        let before = all.map(read);
        assert!(ran(&["admin"]).unwrap().contains("server/tls/client-admin.key"));
        certs::ensure(dir.path(), &names).unwrap();
        let changed = |now: [Vec<u8>; 4]| [0, 1, 2, 3].map(|at: usize| now[at] != before[at]);
        assert_eq!(changed(all.map(read)), [true, false, false, false]);
        ran(&[]).unwrap();
        assert!(ran(&[]).unwrap().contains("There are none"));
        certs::ensure(dir.path(), &names).unwrap();
        assert_eq!(changed(all.map(read)), [true, true, false, true]);
    }
}
