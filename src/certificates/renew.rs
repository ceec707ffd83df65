//! `kube-lite certificate rotate`: certificates of a server are set aside, so that its next start makes new ones with new keys.

use std::path::Path;

use base::fs;

use crate::error_catalogue::{BAD_VALUE, CERTIFICATE_COMMAND, Refusal};

/// k3s's names, and the files of each below the data directory, without their ends.
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
/// Those of k3s that have no certificates here.
const ABSENT: [&str; 3] = ["k3s-server", "k3s-controller", "cloud-controller"];

/// Sets the certificates of these services aside, or of all.
///
/// # Errors
/// A name that is none, a data directory that is not a server's, a file that cannot be moved.
pub(crate) fn run(data_dir: &Path, services: &[String]) -> Result<String, Refusal> {
    for name in services {
        let why = if ABSENT.contains(&name.as_str()) {
            "there is no such part here, nor a certificate of it"
        } else if SERVICES.iter().any(|(known, _)| known == name) {
            continue;
        } else {
            "there is no such service"
        };
        let known: Vec<&str> = SERVICES.iter().map(|(known, _)| *known).collect();
        let text = format!("--service={name}: {why}; known are {}", known.join(", "));
        return Err(BAD_VALUE.refuse_usage(text));
    }
    if !data_dir.join("server/tls/server-ca.key").exists() {
        return Err(CERTIFICATE_COMMAND.refuse(format!(
            "{} is no server's: the certificates of an agent are renewed by its server while it runs; new keys it has when it joins anew",
            data_dir.display()
        )));
    }
    let aside = data_dir.join(format!("server/tls-{}", base::pki::now()));
    let mut moved = Vec::new();
    let wanted = |name: &str| services.is_empty() || services.iter().any(|s| s == name);
    for (_, files) in SERVICES.iter().filter(|(name, _)| wanted(name)) {
        for end in files.iter().flat_map(|file| [format!("{file}.crt"), format!("{file}.key")]) {
            let from = data_dir.join(&end);
            if !from.exists() {
                continue;
            }
            let to = aside.join(end.trim_start_matches("server/tls/").replace('/', "-"));
            let failed = |e: std::io::Error| {
                let text = format!("cannot move {} to {}: {e}", from.display(), to.display());
                CERTIFICATE_COMMAND.refuse(text)
            };
            fs::create_dir(&aside, 0o700).map_err(failed)?;
            std::fs::rename(&from, &to).map_err(failed)?;
            moved.push(end);
        }
    }
    if moved.is_empty() {
        return Ok("There are none: the server makes them at its next start.\n".to_owned());
    }
    Ok(format!(
        "Moved to {}:\n  {}\nThe server makes new ones at its next start: systemctl restart kube-lite.\n",
        aside.display(),
        moved.join("\n  ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::certs::{self, Names};

    #[test]
    fn a_certificate_of_its_service_is_made_anew_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let ran = |services: &[&str]| {
            let services: Vec<String> = services.iter().map(|s| (*s).to_owned()).collect();
            run(dir.path(), &services).map_err(|refusal| refusal.to_string())
        };
        assert!(ran(&[]).unwrap_err().contains("is no server's"));
        let names = Names::default();
        certs::ensure(dir.path(), &names).unwrap();
        assert!(ran(&["k3s-server"]).unwrap_err().contains("there is no such part here"));
        assert!(
            ran(&["else"]).unwrap_err().contains("no such service; known are admin, api-server")
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
