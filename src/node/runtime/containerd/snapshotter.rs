//! How containerd mounts the layers of images (`--snapshotter`).

use std::path::Path;
use std::str::FromStr;

/// The socket of the fuse-overlayfs plugin, as its service file sets it.
pub(crate) const FUSE_SOCKET: &str = "/run/containerd-fuse-overlayfs.sock";

/// A snapshotter of containerd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Snapshotter {
    /// The overlay file system of the kernel.
    Overlayfs,
    /// Each layer is a copy.
    Native,
    /// A plugin that runs beside containerd.
    FuseOverlayfs,
}

/// A name that is not supported.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("is not supported; supported are overlayfs, native and fuse-overlayfs")]
pub struct UnsupportedSnapshotter;

impl FromStr for Snapshotter {
    type Err = UnsupportedSnapshotter;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "overlayfs" => Ok(Self::Overlayfs),
            "native" => Ok(Self::Native),
            "fuse-overlayfs" => Ok(Self::FuseOverlayfs),
            _ => Err(UnsupportedSnapshotter),
        }
    }
}

/// A snapshotter that does not work on this machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SnapshotterError {
    #[error(
        "--snapshotter=overlayfs: the kernel mounts no overlay on the file system of {0}; use \
         --snapshotter=native, or another file system"
    )]
    NoOverlay(String),
    #[error(
        "--snapshotter=fuse-overlayfs: {FUSE_SOCKET} does not exist; start the service \
         containerd-fuse-overlayfs-grpc first"
    )]
    NoPlugin,
}

impl Snapshotter {
    /// containerd's name of it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Overlayfs => "overlayfs",
            Self::Native => "native",
            Self::FuseOverlayfs => "fuse-overlayfs",
        }
    }

    /// Returns the wanted snapshotter if it works here, or the best one if none is wanted.
    /// `overlay` is whether the kernel mounts an overlay in `dir`.
    ///
    /// # Errors
    ///
    /// Why the wanted one does not work.
    pub(crate) fn choose(
        wanted: Option<Self>,
        overlay: bool,
        dir: &Path,
        fuse_socket: &Path,
    ) -> Result<Self, SnapshotterError> {
        match wanted {
            None if overlay => Ok(Self::Overlayfs),
            None => Ok(Self::Native),
            Some(Self::Overlayfs) if !overlay => {
                Err(SnapshotterError::NoOverlay(dir.display().to_string()))
            }
            Some(Self::FuseOverlayfs) if !fuse_socket.exists() => Err(SnapshotterError::NoPlugin),
            Some(wanted) => Ok(wanted),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wanted_snapshotter_must_work_and_the_default_follows_the_kernel() {
        let none = Path::new("/none");
        let choose =
            |wanted, overlay| Snapshotter::choose(wanted, overlay, Path::new("/data"), none);
        assert_eq!(choose(None, true), Ok(Snapshotter::Overlayfs));
        assert_eq!(choose(None, false), Ok(Snapshotter::Native));
        assert_eq!(choose(Some(Snapshotter::Native), true), Ok(Snapshotter::Native));
        let error = choose(Some(Snapshotter::Overlayfs), false).unwrap_err().to_string();
        assert!(error.contains("no overlay on the file system of /data"), "{error}");
        assert_eq!(choose(Some(Snapshotter::FuseOverlayfs), true), Err(SnapshotterError::NoPlugin));
        assert_eq!("stargz".parse::<Snapshotter>(), Err(UnsupportedSnapshotter));
    }
}
