//! Errors of manifests: what is wrong with a file, in the words that events, the log and `kube-lite
//! status` show.

use std::path::PathBuf;

use crate::limits::{DEPTH_MAX, FILE_BYTES_MAX, FILES_MAX, OBJECTS_MAX};

/// Why the packaged manifests cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {path}: {source}")]
pub(crate) struct StageError {
    /// The file or folder.
    pub(crate) path: PathBuf,
    /// The error of the file system.
    pub(crate) source: std::io::Error,
}

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("it is not a regular file")]
    NotRegular,
    #[error("it has {0} bytes; the maximum is {FILE_BYTES_MAX}: split it into several files")]
    TooLarge(u64),
    #[error("it changes while it is read")]
    Changing,
}

/// Why the folder cannot be listed completely.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FolderError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{0} has more than {FILES_MAX} files; further ones are not deployed")]
    TooManyFiles(PathBuf),
    #[error("{0} is nested deeper than {DEPTH_MAX} folders and is not deployed")]
    TooDeep(PathBuf),
}

/// Why a file does not contain objects.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ParseError {
    #[error("line {line}: {message}")]
    Syntax { line: usize, message: String },
    #[error("line {line}: {missing} is missing")]
    Missing { line: usize, missing: &'static str },
    #[error("line {line}: the document is not an object")]
    NotAnObject { line: usize },
    #[error("line {line}: {object} is in this file twice")]
    Twice { line: usize, object: String },
    #[error("it has more than {OBJECTS_MAX} objects: split it into several files")]
    TooMany,
    #[error("it is not UTF-8 text")]
    NotText,
}

/// Why a file is not applied, or only in part.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ManifestError {
    #[error("its name begins with {0:?}, which is not a valid name of an Addon: {1}")]
    Name(String, String),
    #[error("{0} has the same Addon name {1:?}: rename one of the two")]
    SameName(String, String),
    #[error("{0}")]
    Read(#[from] ReadError),
    #[error("{0}")]
    Parse(#[from] ParseError),
    #[error("{object} is also in {other}, which keeps it: remove it from one of the two files")]
    SameObject { object: String, other: String },
    #[error("{0}")]
    Component(&'static str),
    #[error("the server does not serve {0} yet; it is applied once it does")]
    MissingKinds(String),
    #[error("{0}")]
    Objects(String),
    #[error(
        "namespace {0} was dropped from the file but other objects of the file are in it, so it is \
         not deleted: drop these, too, or put it back"
    )]
    NamespaceInUse(String),
    #[error("{0}")]
    Request(#[from] client::Error),
    #[error("a packaged definition cannot be decompressed: {0}")]
    Packed(std::io::Error),
}

impl ManifestError {
    /// The reason of the event: that of k3s.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Read(_) => "ReadManifestFailed",
            Self::Parse(_) => "ParseManifestFailed",
            _ => "ApplyManifestFailed",
        }
    }

    /// The message of the event: that of k3s.
    pub(crate) fn message(&self, path: &str) -> String {
        let verb = match self {
            Self::Read(_) => "Read",
            Self::Parse(_) => "Parse",
            _ => "Applying",
        };
        format!("{verb} manifest at {path:?} failed: {self}")
    }

    /// Whether another attempt can succeed although no file changes.
    pub(crate) fn is_retried(&self) -> bool {
        matches!(
            self,
            Self::MissingKinds(_) | Self::Objects(_) | Self::NamespaceInUse(_) | Self::Request(_)
        ) || matches!(self, Self::Read(ReadError::Io(_) | ReadError::Changing))
    }

    /// What the administrator does about it.
    pub(crate) fn fix(&self, path: &str) -> String {
        match self {
            Self::MissingKinds(_) => format!(
                "install the CustomResourceDefinition or API, or correct apiVersion and kind in {path}"
            ),
            Self::Objects(_) | Self::Request(_) | Self::NamespaceInUse(_) => {
                format!("correct {path}; it is applied again when it changes and at intervals")
            }
            Self::Component(_) => format!("remove {path}, or rename it to deploy it all the same"),
            _ => format!("correct {path}; it is applied when it changes"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_and_messages_are_those_of_k3s() {
        let error = ManifestError::from(ParseError::Missing { line: 3, missing: "metadata.name" });
        assert_eq!(error.reason(), "ParseManifestFailed");
        assert_eq!(
            error.message("/m/a.yaml"),
            "Parse manifest at \"/m/a.yaml\" failed: line 3: metadata.name is missing"
        );
        assert!(!error.is_retried());
        let error = ManifestError::Objects("Pod a: forbidden".into());
        assert_eq!(error.reason(), "ApplyManifestFailed");
        assert_eq!(
            error.message("/m/a.yaml"),
            "Applying manifest at \"/m/a.yaml\" failed: Pod a: forbidden"
        );
        assert!(error.is_retried());
    }
}
