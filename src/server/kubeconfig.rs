//! The administrator's kubeconfig: written late in the start, and locked against other servers.

use std::fs::{File, TryLockError};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use cluster::certs::ServerCerts;
use parking_lot::Mutex;

use crate::error_catalogue::{CommandError, DATA_DIR, KUBECONFIG_IN_USE};
use crate::server::config::Config;

/// Locks the file that this server wrote, for as long as the server runs.
#[derive(Debug, Clone, Default)]
pub(crate) struct KubeconfigLock(Arc<Mutex<Option<File>>>);

impl KubeconfigLock {
    /// Writes the kubeconfig, and locks it.
    ///
    /// # Errors
    /// The file cannot be written, or a running server of another cluster wrote it.
    pub(crate) fn write(
        &self,
        config: &Config,
        certs: &ServerCerts,
        port: u16,
    ) -> Result<(), CommandError> {
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
        self.replace(path, &text, *mode)?;
        if let Some(group) = config.kubeconfig_group {
            std::os::unix::fs::chown(path, None, Some(group)).map_err(|error| {
                DATA_DIR.error(format!("cannot set the group of {}: {error}", path.display()))
            })?;
        }
        Ok(())
    }

    fn replace(&self, path: &Path, text: &str, mode: u32) -> Result<(), CommandError> {
        let mut lock = self.0.lock();
        if lock.is_none() && is_locked(path) && !same_cluster(path, text) {
            let what = format!("{} belongs to another running server", path.display());
            return Err(KUBECONFIG_IN_USE.error(what));
        }
        if let Some(parent) = path.parent().filter(|p| !p.exists()) {
            base::fs::create_dir(parent, 0o755).map_err(|e| DATA_DIR.error(e))?;
        }
        base::fs::write_atomic(path, text.as_bytes(), mode).map_err(|e| DATA_DIR.error(e))?;
        // On a file system without locks the server runs without this protection.
        *lock = File::open(path).ok().filter(|file| file.try_lock().is_ok());
        Ok(())
    }
}

fn is_locked(path: &Path) -> bool {
    // Opening a FIFO or a device may block.
    path.is_file()
        && File::open(path)
            .is_ok_and(|file| matches!(file.try_lock(), Err(TryLockError::WouldBlock)))
}

/// Whether the file contains the same CA as `text`: servers of one cluster may share the file.
fn same_cluster(path: &Path, text: &str) -> bool {
    let ca = |text: &str| {
        let line = text.lines().find(|line| line.contains("certificate-authority-data"));
        line.map(|line| line.trim().to_owned())
    };
    base::fs::read_to_string(path).is_ok_and(|existing| ca(&existing) == ca(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubeconfig_of_another_running_server_is_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/kubeconfig");
        let text =
            |ca: &str| format!("clusters:\n- cluster:\n    certificate-authority-data: {ca}\n");
        let first = KubeconfigLock::default();
        first.replace(&path, &text("a"), 0o600).unwrap();
        // A renewal writes it again.
        first.replace(&path, &text("a"), 0o600).unwrap();
        let second = KubeconfigLock::default();
        let error = second.replace(&path, &text("b"), 0o600).unwrap_err();
        assert!(error.to_string().contains("KL0209"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text("a"));
        KubeconfigLock::default().replace(&path, &text("a"), 0o600).unwrap();
        drop(first);
        second.replace(&path, &text("b"), 0o600).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text("b"));
    }
}
