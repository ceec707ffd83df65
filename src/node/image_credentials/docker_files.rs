//! The node's own files of docker with credentials (upstream: `pkg/credentialprovider/config.go`).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::docker_config::{self, DockerConfig, DockerConfigError};
use super::keyring::{CredentialSource, Keyring};

/// How long the credentials of the files are used before the files are read again.
const LIFETIME: Duration = Duration::from_secs(5 * 60);
/// Maximum size of a file in bytes.
const SIZE_MAX: u64 = 1 << 20;

type Parser = fn(&[u8]) -> Result<DockerConfig, DockerConfigError>;

/// The files, of which the first valid one counts.
#[derive(Debug)]
pub(super) struct DockerFiles {
    paths: Vec<(PathBuf, Parser)>,
    read: Mutex<Option<(Instant, Arc<Keyring>)>>,
}

impl DockerFiles {
    /// `root_dir` is the directory of the kubelet.
    pub(super) fn new(root_dir: &Path) -> Self {
        let json: Parser = docker_config::config_json;
        let old: Parser = docker_config::dockercfg;
        let paths = vec![
            (root_dir.join("config.json"), json),
            (PathBuf::from("/.docker/config.json"), json),
            (root_dir.join(".dockercfg"), old),
            (PathBuf::from("/.dockercfg"), old),
        ];
        Self { paths, read: Mutex::default() }
    }

    /// The credentials of the files, read at most every five minutes.
    pub(super) async fn keyring(&self) -> Arc<Keyring> {
        let now = base::clock::now();
        if let Some((at, keyring)) = &*self.read.lock() {
            if now.saturating_duration_since(*at) < LIFETIME {
                return Arc::clone(keyring);
            }
        }
        let paths = self.paths.clone();
        let keyring = base::tasks::blocking(move || first_valid(&paths)).await.unwrap_or_default();
        let keyring = Arc::new(keyring);
        *self.read.lock() = Some((now, Arc::clone(&keyring)));
        keyring
    }
}

/// Reads the first file that exists and is valid.
fn first_valid(paths: &[(PathBuf, Parser)]) -> Keyring {
    let mut keyring = Keyring::default();
    for (path, parse) in paths {
        let Ok(text) = read(path) else { continue };
        match parse(&text) {
            Ok(config) => {
                for (address, login) in &config {
                    keyring.add(address, login, &CredentialSource::Node);
                }
                break;
            }
            Err(error) => {
                tracing::debug!(path = %path.display(), %error, "ignoring credentials of a file");
            }
        }
    }
    keyring
}

fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    use std::io::Read;
    let mut text = Vec::new();
    std::fs::File::open(path)?.take(SIZE_MAX).read_to_end(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_first_valid_file_is_read_again_after_five_minutes() {
        let root = tempfile::tempdir().unwrap();
        let files = DockerFiles::new(root.path());
        std::fs::write(root.path().join("config.json"), "{").unwrap();
        std::fs::write(root.path().join(".dockercfg"), r#"{"r.io": {"username": "u"}}"#).unwrap();
        assert_eq!(files.keyring().await.lookup("r.io/a").len(), 1);
        std::fs::write(root.path().join("config.json"), r#"{"auths": {}}"#).unwrap();
        assert_eq!(files.keyring().await.lookup("r.io/a").len(), 1, "cached");
        tokio::time::advance(LIFETIME).await;
        assert!(files.keyring().await.lookup("r.io/a").is_empty());
    }
}
