//! How full CSI volumes are, as their drivers report it (`csi_metrics.go` of upstream).

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::Tasks;
use futures::StreamExt;
use proto::csi::v1 as csi;
use proto::csi::v1::volume_usage::Unit;

use super::driver_client::{CALL_TIMEOUT, CsiClient};
use super::record::{self, Progress, VolumeRecord};
use super::{Csi, paths};
use crate::volume_usage::{
    Amounts, COLLECTION_DURATION, MeasuredVolume, UsageRequest, VolumeUsage,
};

/// Calls to one driver at the same time.
const CALLS_MAX: usize = 4;

/// The CSI volumes of a pod, by their names in the pod; `None` for a volume about which its driver
/// has not reported.
pub(crate) type CsiPodUsage = HashMap<String, Option<VolumeUsage>>;

/// Converts the answer of a driver; `None` if it contains no usage. `at` is in nanoseconds since
/// the epoch.
fn usage_of(answer: &csi::NodeGetVolumeStatsResponse, at: i64) -> Option<VolumeUsage> {
    let mut out = VolumeUsage { at, ..VolumeUsage::default() };
    for usage in &answer.usage {
        let amount = |number: i64| u64::try_from(number).unwrap_or_default();
        let amounts = Amounts {
            available: amount(usage.available),
            total: amount(usage.total),
            used: amount(usage.used),
        };
        match usage.unit() {
            Unit::Bytes => out.bytes = amounts,
            Unit::Inodes => out.inodes = amounts,
            Unit::Unknown => {}
        }
    }
    (!answer.usage.is_empty()).then_some(out)
}

/// A published volume of a pod.
struct PublishedVolume {
    pod_uid: String,
    record: VolumeRecord,
    /// The path that the driver has published, or the mapped device.
    path: PathBuf,
}

impl Csi {
    /// Returns how full the published CSI volumes of pods are, by the uids of the pods. Answers of
    /// drivers that are due are requested; they are part of a later result if a driver is slow.
    /// `uids` are all pods that have such volumes.
    pub(crate) async fn usage(
        self: &Arc<Self>,
        tasks: &Tasks,
        uids: Vec<String>,
    ) -> HashMap<String, CsiPodUsage> {
        let root = self.root.clone();
        let published = base::tasks::blocking(move || published(&root, uids)).await;
        let published = published.unwrap_or_default();
        let volumes = published.iter().map(|volume| MeasuredVolume {
            source: volume.record.driver.clone(),
            path: volume.path.clone(),
            of: volume.record.handle.clone(),
        });
        let ask = |request| Arc::clone(self).ask_usage(request);
        self.usage.update(tasks, volumes.collect(), ask).await;
        let mut out: HashMap<String, CsiPodUsage> = HashMap::new();
        for PublishedVolume { pod_uid, record, path } in published {
            out.entry(pod_uid).or_default().insert(record.volume, self.usage.get(&path));
        }
        out
    }

    /// Has a driver answer a request, as far as it does so within the deadline of one call.
    async fn ask_usage(self: Arc<Self>, request: UsageRequest<String>) {
        let begun = base::clock::now();
        let answers = async {
            let Some(client) = self.measuring_client(request.source()).await else {
                for _ in request.volumes() {
                    COLLECTION_DURATION.took(&[request.source()], begun.elapsed());
                }
                return;
            };
            let volumes = futures::stream::iter(0..request.volumes().len());
            let ask = |index| ask_about(&client, &request, index);
            volumes.for_each_concurrent(CALLS_MAX, ask).await;
        };
        if tokio::time::timeout(CALL_TIMEOUT, answers).await.is_err() {
            let driver = request.source();
            tracing::debug!(driver, "the driver does not report the usage of all volumes");
        }
    }

    /// Returns the client of a driver that reports how full volumes are.
    async fn measuring_client(&self, driver: &str) -> Option<CsiClient> {
        let client = self.drivers.client(driver).ok()?;
        client.capabilities().await.ok()?.volume_stats().then_some(client)
    }
}

/// Requests the usage of one volume of a request.
async fn ask_about(client: &CsiClient, request: &UsageRequest<String>, index: usize) {
    let Some((path, handle)) = request.volumes().get(index) else { return };
    let begun = base::clock::now();
    let at = i64::try_from(base::clock::unix_time().as_nanos()).unwrap_or_default();
    let answer = client.volume_stats(handle, path).await;
    COLLECTION_DURATION.took(&[request.source()], begun.elapsed());
    match answer {
        Ok(answer) => {
            if let Some(usage) = usage_of(&answer, at) {
                request.answer(path, usage);
            }
        }
        Err(error) => {
            let driver = request.source();
            tracing::debug!(driver, %error, "cannot read the usage of a volume");
        }
    }
}

/// Returns the published volumes of pods. Those whose names in the pods are not known are left out.
/// Blocks.
fn published(root: &Path, uids: Vec<String>) -> Vec<PublishedVolume> {
    let is_usable =
        |record: &VolumeRecord| record.progress == Progress::Published && !record.volume.is_empty();
    let mut out = Vec::new();
    for uid in uids {
        let pod_dir = root.join("pods").join(&uid);
        let volumes = record::volumes_of_pod(root, &pod_dir).unwrap_or_default();
        for record in volumes.into_values().filter(is_usable) {
            let path = if record.is_block {
                paths::BlockPaths::new(root, &record.spec_name).device_of(&pod_dir)
            } else {
                paths::mount_path(&paths::volume_dir(&pod_dir, &record.spec_name))
            };
            out.push(PublishedVolume { pod_uid: uid.clone(), record, path });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volumes::selinux::labels::VolumeLabels;

    #[test]
    fn bytes_and_inodes_are_reported_separately() {
        let usage = |available, total, used, unit: Unit| csi::VolumeUsage {
            available,
            total,
            used,
            unit: unit.into(),
        };
        let answer = |usage: Vec<csi::VolumeUsage>| csi::NodeGetVolumeStatsResponse { usage };
        let all = vec![usage(1, 3, 2, Unit::Bytes), usage(-1, 9, 4, Unit::Inodes)];
        assert_eq!(
            usage_of(&answer(all), 5),
            Some(VolumeUsage {
                bytes: Amounts { available: 1, total: 3, used: 2 },
                inodes: Amounts { available: 0, total: 9, used: 4 },
                at: 5
            })
        );
        let of_device = usage_of(&answer(vec![usage(0, 3, 0, Unit::Bytes)]), 5).unwrap();
        assert_eq!((of_device.bytes.total, of_device.inodes), (3, Amounts::default()));
        assert_eq!(usage_of(&answer(Vec::new()), 5), None);
    }

    #[test]
    fn published_volumes_are_measured_where_they_are_published() {
        let home = tempfile::tempdir().unwrap();
        let (root, pod) = (home.path(), home.path().join("pods/u"));
        let save = |spec_name: &str, is_block, progress| {
            let record = VolumeRecord {
                spec_name: spec_name.into(),
                volume: format!("of-{spec_name}"),
                driver: "d".into(),
                handle: "h".into(),
                is_block,
                progress,
                labels: VolumeLabels::default(),
            };
            record.save(&pod).unwrap();
        };
        save("begun", false, Progress::Begun);
        save("dev", true, Progress::Published);
        save("pv", false, Progress::Published);
        let found = published(root, vec!["u".to_owned(), "none".to_owned()]);
        let short: Vec<_> =
            found.iter().map(|v| (v.record.volume.as_str(), v.path.as_path())).collect();
        let device = root.join("plugins/kubernetes.io/csi/volumeDevices/dev/dev/u");
        let files = pod.join("volumes/kubernetes.io~csi/pv/mount");
        assert_eq!(short, [("of-dev", device.as_path()), ("of-pv", files.as_path())]);
    }
}
