//! The network results that containerd's CNI library stores for each sandbox, which a power failure
//! can corrupt.

use std::path::Path;

use serde::de::IgnoredAny;

/// Directory of the library with one file per sandbox and interface (libcni's `CacheDir`);
/// containerd has no option for it.
pub(super) const FOLDER: &str = "/var/lib/cni/results";
/// Prefixes of the files of kube-lite's network (the name in the installed configuration) and of
/// the library's own for `lo`.
const NETWORKS: [&str; 2] = ["kube-lite-", "cni-loopback-"];
/// Maximum size of a result; one with every field takes a few kilobytes.
const SIZE_MAX: u64 = 1 << 20;

/// Removes results that are not JSON and returns their number. The library writes them without a
/// sync, a power failure leaves them empty, and containerd then cannot stop their sandbox. Without
/// a result it can.
pub(super) fn remove_broken(folder: &Path) -> usize {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let broken = files.filter(|file| {
        let name = file.file_name();
        let ours =
            name.to_str().is_some_and(|name| NETWORKS.iter().any(|net| name.starts_with(net)));
        ours && file.metadata().is_ok_and(|m| m.is_file() && m.len() <= SIZE_MAX)
            && std::fs::read(file.path())
                .is_ok_and(|text| serde_json::from_slice::<IgnoredAny>(&text).is_err())
    });
    broken.filter(|file| std::fs::remove_file(file.path()).is_ok()).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corrupt_results_are_removed_and_others_kept() {
        let directory = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            std::fs::write(directory.path().join(name), text).unwrap();
        };
        put("kube-lite-0ace53-eth0", "");
        put("cni-loopback-0ace53-lo", "{\"kind\":\"cniCache");
        put("kube-lite-48e67e-eth0", "{\"kind\":\"cniCacheV1\"}");
        put("somebody-else-1-eth0", "");
        assert_eq!(remove_broken(directory.path()), 2);
        let mut left: Vec<_> = std::fs::read_dir(directory.path())
            .unwrap()
            .map(|f| f.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["kube-lite-48e67e-eth0", "somebody-else-1-eth0"]);
        assert_eq!(remove_broken(&directory.path().join("missing")), 0);
    }
}
