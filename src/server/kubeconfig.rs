//! The administrator's kubeconfig: written once nothing can fail any more, and kept from other servers.

use std::fs::{File, TryLockError};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use cluster::certs::ServerCerts;
use parking_lot::Mutex;

use crate::error_catalogue::{DATA_DIR, KUBECONFIG_IN_USE, Refusal};
use crate::server::config::Config;

/// Locks the file that this server wrote, for as long as the server runs.
#[derive(Debug, Clone, Default)]
pub(crate) struct KubeconfigLock(Arc<Mutex<Option<File>>>);

impl KubeconfigLock {
    /// Writes the kubeconfig, and locks it.
    ///
    /// # Errors
    /// When its folder or itself cannot be written, or a running server of another cluster wrote it.
    pub(crate) fn write(
        &self,
        config: &Config,
        certs: &ServerCerts,
        port: u16,
    ) -> Result<(), Refusal> {
        let (path, mode) = &config.kubeconfig;
        let host = match config.listen.ip() {
            ip if ip.is_unspecified() => "127.0.0.1".to_owned(),
            IpAddr::V6(ip) => format!("[{ip}]"),
            ip @ IpAddr::V4(_) => ip.to_string(),
        };
        let text = cluster::kubeconfig::render(
            &format!("https://{host}:{port}"),
            certs.server_ca().cert_pem(),
            &certs.admin(),
        );
        self.replace(path, &text, *mode)
    }

    fn replace(&self, path: &Path, text: &str, mode: u32) -> Result<(), Refusal> {
        let mut held = self.0.lock();
        if held.is_none() && is_locked(path) && !same_cluster(path, text) {
            let what = format!("{} was written by another server that runs", path.display());
            return Err(KUBECONFIG_IN_USE.refuse(what));
        }
        if let Some(parent) = path.parent().filter(|p| !p.exists()) {
            base::fs::create_dir(parent, 0o755).map_err(|e| DATA_DIR.refuse(e))?;
        }
        base::fs::write_atomic(path, text.as_bytes(), mode).map_err(|e| DATA_DIR.refuse(e))?;
        // A file system without locks has one server as well.
        *held = File::open(path).ok().filter(|file| file.try_lock().is_ok());
        Ok(())
    }
}

fn is_locked(path: &Path) -> bool {
    // A FIFO or a device is no kubeconfig, and opening it may block.
    path.is_file()
        && File::open(path)
            .is_ok_and(|file| matches!(file.try_lock(), Err(TryLockError::WouldBlock)))
}

/// Whether the file names the CA that `text` names: servers of one cluster may share it.
fn same_cluster(path: &Path, text: &str) -> bool {
    let ca = |text: &str| {
        let line = text.lines().find(|line| line.contains("certificate-authority-data"));
        line.map(|line| line.trim().to_owned())
    };
    base::fs::read_to_string(path).is_ok_and(|there| ca(&there) == ca(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubeconfig_of_another_running_server_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/kubeconfig");
        let text =
            |ca: &str| format!("clusters:\n- cluster:\n    certificate-authority-data: {ca}\n");
        let first = KubeconfigLock::default();
        first.replace(&path, &text("a"), 0o600).unwrap();
        // As after a renewal.
        first.replace(&path, &text("a"), 0o600).unwrap();
        let second = KubeconfigLock::default();
        let refusal = second.replace(&path, &text("b"), 0o600).unwrap_err();
        assert!(refusal.to_string().contains("KL0209"), "{refusal}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text("a"));
        KubeconfigLock::default().replace(&path, &text("a"), 0o600).unwrap();
        drop(first);
        second.replace(&path, &text("b"), 0o600).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text("b"));
    }
}
