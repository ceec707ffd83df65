//! The token files of a server: `token`, `agent-token` and `node-token`, as in k3s.

use std::io;
use std::path::{Path, PathBuf};

use base::fs;

use super::{Credentials, SECRET_CHARACTERS_MIN, Secret, Token, new_secret, parse};

/// The token files in `<data>/server`. Secrets are read on each use, so replacing one needs no
/// restart.
#[derive(Debug, Clone)]
pub struct TokenFiles {
    directory: PathBuf,
}

/// Errors of token files.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read or written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A file does not contain a token.
    #[error(
        "{path} holds no token: {why}; remove the file to have a new one made, machines that have joined stay"
    )]
    Content {
        /// The file.
        path: String,
        /// What is wrong.
        why: String,
    },
    /// A secret is too short or cannot be part of a token.
    #[error("{0}")]
    Weak(String),
    /// The secret in a flag differs from the file's.
    #[error(
        "it is not the one in {0}, which joins machines to this cluster; leave it away, or set a new one with `kube-lite token rotate --new-token`"
    )]
    Differs(String),
}

/// Changes of the files at a start that an administrator should know of.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Notice {
    /// A file that an earlier start created was missing.
    #[error(
        "{0} was missing: a new token was made, and the earlier one joins no machine any more; machines that have joined stay"
    )]
    Missing(String),
    /// The file had the hash of another CA: the CA was rotated, or the file is of another cluster.
    #[error(
        "{0} named another CA than the server's: it names the server's now, and its secret joins machines; if the file was copied from another cluster, replace it with `kube-lite token rotate`"
    )]
    OtherCa(String),
}

/// The secrets that authorize joining.
#[derive(Debug)]
pub struct Secrets {
    /// For user `server`.
    pub server: Secret,
    /// For user `node`.
    pub agent: Secret,
}

/// Validates a secret chosen by an administrator, given alone or as a whole token.
///
/// # Errors
/// When it is not a token, is a bootstrap token, or has fewer than [`SECRET_CHARACTERS_MIN`]
/// characters.
pub fn validate_secret(text: &Secret) -> Result<Secret, Error> {
    let token = parse(text.reveal()).map_err(|e| Error::Weak(e.to_string()))?;
    match token.credentials {
        Credentials::Shared { secret, .. }
            if secret.reveal().chars().count() >= SECRET_CHARACTERS_MIN =>
        {
            Ok(secret)
        }
        Credentials::Shared { .. } => Err(Error::Weak(format!(
            "a secret needs at least {SECRET_CHARACTERS_MIN} characters; `kube-lite token generate` makes one"
        ))),
        Credentials::Bootstrap(_) => Err(Error::Weak(
            "it has the form of a bootstrap token, which `kube-lite token create` makes".into(),
        )),
    }
}

impl TokenFiles {
    /// The token files of the server with this data directory.
    pub fn new(data_dir: &Path) -> Self {
        Self { directory: data_dir.join("server") }
    }

    /// The file of the server's token.
    pub fn token(&self) -> PathBuf {
        self.directory.join("token")
    }

    fn agent(&self) -> PathBuf {
        self.directory.join("agent-token")
    }

    /// The link `node-token`, which every start creates.
    fn node(&self) -> PathBuf {
        self.directory.join("node-token")
    }

    /// Creates missing files; returns what differs from the previous start. `server` and `agent`
    /// are secrets from flags.
    ///
    /// # Errors
    /// When a file cannot be written or read, a secret is weak, or it differs from the file's.
    pub fn ensure(
        &self,
        ca_pem: &str,
        server: Option<&Secret>,
        agent: Option<&Secret>,
    ) -> Result<Vec<Notice>, Error> {
        let mut notices = Vec::new();
        notices.extend(self.ensure_file(&self.token(), "server", ca_pem, server)?);
        let own = self.agent().symlink_metadata().is_ok_and(|m| m.is_file());
        if agent.is_some() || own {
            notices.extend(self.ensure_file(&self.agent(), "node", ca_pem, agent)?);
        } else {
            link(&self.agent(), "token")?;
        }
        link(&self.node(), "agent-token")?;
        Ok(notices)
    }

    /// Ensures one file. Its secret stays; its hash becomes that of the current CA.
    fn ensure_file(
        &self,
        path: &Path,
        user: &str,
        ca_pem: &str,
        given: Option<&Secret>,
    ) -> Result<Option<Notice>, Error> {
        let given = given.map(validate_secret).transpose()?;
        let exists = path.symlink_metadata().is_ok_and(|m| m.is_file());
        let display = || path.display().to_string();
        let (secret, notice) = match (exists, given) {
            (true, given) => {
                let (kept, hash) = read_whole(path)?;
                if given.is_some_and(|given| !kept.matches(given.reveal())) {
                    return Err(Error::Differs(display()));
                }
                let own = base::pki::ca_hash(ca_pem).ok();
                let other = hash.is_some() && hash != own;
                (kept, other.then(|| Notice::OtherCa(display())))
            }
            (false, Some(given)) => (given, None),
            (false, None) => {
                let was_there = self.node().symlink_metadata().is_ok();
                (new_secret(), was_there.then(|| Notice::Missing(display())))
            }
        };
        write(path, user, ca_pem, secret)?;
        Ok(notice)
    }

    /// Reads the secrets.
    ///
    /// # Errors
    /// When a file is missing or does not contain a token.
    pub fn secrets(&self) -> Result<Secrets, Error> {
        Ok(Secrets { server: read(&self.token())?, agent: read(&self.agent())? })
    }

    /// Replaces the secret of the server token; returns the whole new token.
    ///
    /// # Errors
    /// When a file cannot be read or written, or the secret is weak.
    pub fn rotate(&self, ca_pem: &str, new: Option<&Secret>) -> Result<String, Error> {
        read(&self.token())?;
        let secret = new.map_or_else(|| Ok(new_secret()), validate_secret)?;
        write(&self.token(), "server", ca_pem, secret)?;
        Ok(fs::read_to_string(&self.token())?.trim().to_owned())
    }
}

fn content(path: &Path, why: impl ToString) -> Error {
    Error::Content { path: path.display().to_string(), why: why.to_string() }
}

fn read(path: &Path) -> Result<Secret, Error> {
    read_whole(path).map(|(secret, _)| secret)
}

/// Reads the secret of a file and its CA hash.
fn read_whole(path: &Path) -> Result<(Secret, Option<String>), Error> {
    let token = parse(&fs::read_to_string(path)?).map_err(|e| content(path, e))?;
    match token.credentials {
        Credentials::Shared { secret, .. } => Ok((secret, token.ca_hash)),
        Credentials::Bootstrap(_) => Err(content(path, "it is a bootstrap token")),
    }
}

fn write(path: &Path, user: &str, ca_pem: &str, secret: Secret) -> Result<(), Error> {
    let credentials = Credentials::Shared { user: user.to_owned(), secret };
    let text = Token { ca_hash: None, credentials }
        .render(ca_pem)
        .map_err(|why| Error::Weak(format!("the CA of this server: {why}")))?;
    let text = format!("{text}\n");
    if fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    Ok(fs::write_atomic(path, text.as_bytes(), 0o600)?)
}

fn link(path: &Path, target: &str) -> io::Result<()> {
    if std::fs::read_link(path).is_ok_and(|old| old == Path::new(target)) {
        return Ok(());
    }
    let _ = std::fs::remove_file(path);
    std::os::unix::fs::symlink(target, path)
        .map_err(|e| io::Error::new(e.kind(), format!("cannot write {}: {e}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn setup() -> (tempfile::TempDir, TokenFiles, String) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("server")).unwrap();
        let at = |file: &str| dir.path().join(file);
        let ca = base::pki::Ca::load_or_create(&at("ca.crt"), &at("ca.key"), "ca").unwrap();
        let (files, pem) = (TokenFiles::new(dir.path()), ca.cert_pem().to_owned());
        (dir, files, pem)
    }

    fn secret(text: &str) -> Secret {
        text.parse().unwrap()
    }

    #[test]
    fn first_start_creates_one_token_with_the_ca_hash() {
        let (dir, files, ca) = setup();
        files.ensure(&ca, None, None).unwrap();
        let text = std::fs::read_to_string(files.token()).unwrap();
        let token = parse(&text).unwrap();
        assert_eq!(token.ca_hash, Some(base::pki::ca_hash(&ca).unwrap()));
        let mode = std::fs::metadata(files.token()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        files.ensure(&ca, None, None).unwrap();
        for file in ["token", "agent-token", "node-token"] {
            assert_eq!(
                std::fs::read_to_string(dir.path().join("server").join(file)).unwrap(),
                text
            );
        }
        let rotated = files.rotate(&ca, None).unwrap();
        assert!(rotated != text.trim() && files.secrets().unwrap().agent.matches(&rotated[76..]));
    }

    #[test]
    fn missing_and_foreign_token_files_are_reported() {
        let (_dir, files, ca) = setup();
        let (_other_dir, other, other_ca) = setup();
        let path = files.token().display().to_string();
        assert_eq!(files.ensure(&ca, None, None).unwrap(), [], "the first start");
        assert_eq!(files.ensure(&ca, None, None).unwrap(), []);
        std::fs::remove_file(files.token()).unwrap();
        assert_eq!(files.ensure(&ca, None, None).unwrap(), [Notice::Missing(path.clone())]);
        assert_eq!(files.ensure(&ca, None, None).unwrap(), []);
        other.ensure(&other_ca, None, None).unwrap();
        std::fs::copy(other.token(), files.token()).unwrap();
        assert_eq!(files.ensure(&ca, None, None).unwrap(), [Notice::OtherCa(path)]);
        assert_eq!(files.ensure(&ca, None, None).unwrap(), [], "it names the server's CA now");
        // With a secret in a flag, a missing file is not reported.
        std::fs::remove_file(files.token()).unwrap();
        assert_eq!(files.ensure(&ca, Some(&secret("a-secret-of-20-chars")), None).unwrap(), []);
    }

    #[test]
    fn a_flag_cannot_change_the_secret_of_the_first_start() {
        let (_dir, files, ca) = setup();
        let (first, other) = (secret("a-secret-of-20-chars"), secret("b-secret-of-20-chars"));
        assert!(matches!(files.ensure(&ca, Some(&secret("short")), None), Err(Error::Weak(_))));
        files.ensure(&ca, Some(&first), Some(&other)).unwrap();
        let secrets = files.secrets().unwrap();
        assert!(secrets.server.matches(first.reveal()) && secrets.agent.matches(other.reveal()));
        files.ensure(&ca, None, None).unwrap();
        assert!(files.secrets().unwrap().agent.matches(other.reveal()));
        assert!(matches!(files.ensure(&ca, Some(&other), None), Err(Error::Differs(_))));
        let whole = std::fs::read_to_string(files.token()).unwrap();
        files.ensure(&ca, Some(&secret(&whole)), None).unwrap();
    }
}
