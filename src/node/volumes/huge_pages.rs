//! emptyDir with the medium `HugePages` or `HugePages-<size>`: a hugetlbfs whose page size is one
//! that the pod requests (`setupHugepages` of upstream's emptyDir plugin).

use std::collections::BTreeSet;
use std::path::Path;

use api::Quantity;
use nix::mount::{MsFlags, mount};

use super::directory::{chmod, give_to_group};
use super::mounts;
use crate::pods::pod::Pod;
use crate::pods::resources;

/// The medium of any page size; a dash and a size may follow.
const MEDIUM: &str = "HugePages";

/// Why an emptyDir cannot be set up on huge pages.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HugePagesError {
    #[error("medium: {MEDIUM} can't be used if container requests multiple huge page sizes")]
    SeveralSizes,
    #[error(
        "medium {0}: hugePages storage requested, but there is no resource request for huge pages"
    )]
    NotRequested(String),
    #[error("medium {0:?} has no valid page size")]
    Size(String),
    #[error("cannot mount a hugetlbfs of page size {size} on {path:?}: {source}")]
    Mount { size: i64, path: std::path::PathBuf, source: std::io::Error },
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// Whether an emptyDir with this medium is on huge pages.
pub(super) fn is_medium(medium: &str) -> bool {
    medium == MEDIUM || medium.strip_prefix(MEDIUM).is_some_and(|rest| rest.starts_with('-'))
}

/// The page size in bytes: that of the medium, which the pod must request, or the only one that the
/// pod requests.
fn page_size(medium: &str, requested: &BTreeSet<i64>) -> Result<i64, HugePagesError> {
    let none = || HugePagesError::NotRequested(medium.to_owned());
    let Some(size) = medium.strip_prefix(MEDIUM).and_then(|rest| rest.strip_prefix('-')) else {
        let mut sizes = requested.iter();
        return match (sizes.next(), sizes.next()) {
            (Some(only), None) => Ok(*only),
            (Some(_), Some(_)) => Err(HugePagesError::SeveralSizes),
            (None, _) => Err(none()),
        };
    };
    let size = Quantity::parse(size).map_err(|_| HugePagesError::Size(medium.to_owned()))?;
    Some(size.value()).filter(|size| requested.contains(size)).ok_or_else(none)
}

/// Mounts the file system of an emptyDir, unless it is mounted already.
pub(super) fn set_up(
    pod: &Pod,
    medium: &str,
    path: &Path,
    fs_group: Option<u32>,
) -> Result<(), HugePagesError> {
    if mounts::is_mount_point(path)? {
        return Ok(());
    }
    let size = page_size(medium, &resources::huge_page_sizes(pod))?;
    std::fs::create_dir_all(path)?;
    let options = format!("pagesize={size}");
    mount(Some("nodev"), path, Some("hugetlbfs"), MsFlags::empty(), Some(options.as_str()))
        .map_err(|errno| HugePagesError::Mount {
            size,
            path: path.to_owned(),
            source: errno.into(),
        })?;
    chmod(path, 0o777)?;
    if let Some(group) = fs_group {
        give_to_group(path, group)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    // Cases of upstream's `TestGetPageSizeMountOption`.
    #[test]
    fn the_page_size_is_one_that_the_pod_requests() {
        const SMALL: i64 = 2 << 20;
        const LARGE: i64 = 1 << 30;
        let size = |medium: &str, sizes: &[i64]| {
            page_size(medium, &sizes.iter().copied().collect()).map_err(|e| e.to_string())
        };
        assert_eq!(size("HugePages", &[SMALL]), Ok(SMALL));
        assert_eq!(size("HugePages-2Mi", &[SMALL, LARGE]), Ok(SMALL));
        assert_eq!(size("HugePages-1Gi", &[SMALL, LARGE]), Ok(LARGE));
        let several = "medium: HugePages can't be used if container requests multiple huge page \
                       sizes";
        assert_eq!(size("HugePages", &[SMALL, LARGE]), Err(several.to_owned()));
        for (medium, sizes) in [("HugePages", &[][..]), ("HugePages-1Gi", &[SMALL])] {
            let text = format!(
                "medium {medium}: hugePages storage requested, but there is no resource request \
                 for huge pages"
            );
            assert_eq!(size(medium, sizes), Err(text));
        }
        assert!(size("HugePages-x", &[SMALL]).is_err());
        assert!(is_medium("HugePages-2Mi") && !is_medium("HugePagesX") && !is_medium("Memory"));
    }
}
