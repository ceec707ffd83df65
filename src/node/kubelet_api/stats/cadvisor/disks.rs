//! The file systems of the machine with the counters of their devices, which cAdvisor reports for
//! the root.

use std::collections::BTreeMap;
use std::path::Path;

use crate::machine;
use crate::volumes::mounts;

/// Maximum number of file systems that are measured.
const FILE_SYSTEMS_MAX: usize = 256;

/// A file system in bytes and inodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct FileSystem {
    /// Such as `/dev/sda1`.
    pub(super) device: String,
    pub(super) size: u64,
    pub(super) used: u64,
    pub(super) inodes: u64,
    pub(super) inodes_free: u64,
    pub(super) transfers: Transfers,
}

/// The counters of a device in `/proc/diskstats`. Times are in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Transfers {
    pub(super) reads: u64,
    pub(super) reads_merged: u64,
    pub(super) sectors_read: u64,
    pub(super) read_ms: u64,
    pub(super) writes: u64,
    pub(super) writes_merged: u64,
    pub(super) sectors_written: u64,
    pub(super) write_ms: u64,
    pub(super) in_progress: u64,
    pub(super) io_ms: u64,
    pub(super) weighted_io_ms: u64,
}

/// Measures the file systems of disks and memory, without those of pods. Blocks.
pub(super) fn measure(pods: &Path) -> Vec<FileSystem> {
    let diskstats = std::fs::read_to_string("/proc/diskstats").unwrap_or_default();
    let transfers = parse(&diskstats);
    let local = mounts::local_file_systems(pods).unwrap_or_default();
    let measure = |of: mounts::LocalFileSystem| {
        let disk = machine::disk(&of.point)?;
        Some(FileSystem {
            size: disk.size,
            used: disk.used,
            inodes: disk.inodes,
            inodes_free: disk.inodes_free,
            transfers: transfers.get(of.number.as_str()).copied().unwrap_or_default(),
            device: of.device,
        })
    };
    local.into_iter().take(FILE_SYSTEMS_MAX).filter_map(measure).collect()
}

/// Parses `/proc/diskstats` into counters by the number of the device, such as `8:0`.
fn parse(diskstats: &str) -> BTreeMap<String, Transfers> {
    let mut all = BTreeMap::new();
    for line in diskstats.lines() {
        let mut fields = line.split_whitespace();
        let (Some(major), Some(minor), Some(_name)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let counters: Vec<u64> = fields.map_while(|field| field.parse().ok()).collect();
        let [
            reads,
            reads_merged,
            sectors_read,
            read_ms,
            writes,
            writes_merged,
            sectors_written,
            write_ms,
            in_progress,
            io_ms,
            weighted_io_ms,
            ..,
        ] = *counters
        else {
            continue;
        };
        let transfers = Transfers {
            reads,
            reads_merged,
            sectors_read,
            read_ms,
            writes,
            writes_merged,
            sectors_written,
            write_ms,
            in_progress,
            io_ms,
            weighted_io_ms,
        };
        all.insert(format!("{major}:{minor}"), transfers);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_devices_are_parsed() {
        let text = "   8       0 sda 40 1 280 223 7 2 22 108 3 330 331 0 0 0 0\n   8 1 sda1 5\n";
        let all = parse(text);
        assert_eq!(all.len(), 1, "an older kernel has fewer columns for partitions");
        let sda = all["8:0"];
        assert_eq!((sda.reads, sda.reads_merged, sda.sectors_read, sda.read_ms), (40, 1, 280, 223));
        assert_eq!((sda.writes, sda.writes_merged), (7, 2));
        assert_eq!((sda.sectors_written, sda.write_ms), (22, 108));
        assert_eq!((sda.in_progress, sda.io_ms, sda.weighted_io_ms), (3, 330, 331));
    }
}
