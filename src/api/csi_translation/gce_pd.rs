//! `gcePersistentDisk`.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, GCEPersistentDiskVolumeSource, PersistentVolume, Volume,
};

use super::error::{RegionError, TranslationError};
use super::source::{inline_volume, source};
use super::topology;

pub(super) const DRIVER: &str = "pd.csi.storage.gke.io";
const TOPOLOGY: &str = "topology.gke.io/zone";
/// The project and the zone that the driver determines itself.
const UNSPECIFIED: &str = "UNSPECIFIED";

fn csi(from: &GCEPersistentDiskVolumeSource, place: &str) -> CSIPersistentVolumeSource {
    let partition = from.partition.filter(|number| *number != 0);
    let partition = partition.map(|number| number.to_string()).unwrap_or_default();
    let handle = format!("projects/{UNSPECIFIED}/{place}/disks/{}", from.pd_name);
    CSIPersistentVolumeSource {
        read_only: from.read_only,
        fs_type: from.fs_type.clone(),
        ..source(DRIVER, &handle, &[("partition", &partition)])
    }
}

pub(super) fn persistent(volume: &mut PersistentVolume) -> Result<(), TranslationError> {
    let zones = topology::label_zones(volume);
    let place = match zones.as_slice() {
        [] => format!("zones/{UNSPECIFIED}"),
        [zone] => format!("zones/{zone}"),
        zones => format!("regions/{}", region(zones).map_err(TranslationError::GceRegion)?),
    };
    let Some(spec) = volume.spec.as_mut() else { return Ok(()) };
    let Some(from) = spec.gce_persistent_disk.take() else { return Ok(()) };
    spec.csi = Some(csi(&from, &place));
    spec.access_modes = spec.access_modes.take().map(|modes| access_modes(&modes));
    topology::translate(volume, TOPOLOGY);
    Ok(())
}

pub(super) fn inline(volume: &Volume) -> Option<PersistentVolume> {
    let from = volume.gce_persistent_disk.as_ref()?;
    let mode = if from.read_only == Some(true) { "ReadOnlyMany" } else { "ReadWriteOnce" };
    let name = format!("{DRIVER}-{}", from.pd_name);
    Some(inline_volume(name, mode, csi(from, &format!("zones/{UNSPECIFIED}"))))
}

/// The one mode in which the driver attaches a disk: the plugin did not enforce the modes, the
/// driver does.
fn access_modes(modes: &[String]) -> Vec<String> {
    let has = |wanted: &str| modes.iter().any(|mode| mode == wanted);
    let writes = has("ReadWriteOnce") || has("ReadWriteMany");
    let reads = has("ReadOnlyMany") && !writes;
    vec![if reads { "ReadOnlyMany" } else { "ReadWriteOnce" }.to_owned()]
}

/// The region of zones `<locale>-<region>-<zone>`.
fn region(zones: &[String]) -> Result<String, RegionError> {
    let mut regions = BTreeSet::new();
    for zone in zones {
        match zone.split('-').collect::<Vec<_>>().as_slice() {
            [locale, region, _] => regions.insert(format!("{locale}-{region}")),
            _ => return Err(RegionError::Zone(zone.clone())),
        };
    }
    if regions.len() > 1 {
        let names = regions.iter().map(|name| format!("{name}:{{}}")).collect::<Vec<_>>();
        return Err(RegionError::Regions(format!("map[{}]", names.join(" "))));
    }
    Ok(regions.into_iter().next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    /// The cases of upstream's `TestBackwardCompatibleAccessModes`.
    #[test]
    fn one_access_mode_remains() {
        for (modes, want) in [
            (&["ReadWriteOnce"][..], "ReadWriteOnce"),
            (&["ReadOnlyMany"], "ReadOnlyMany"),
            (&["ReadWriteMany"], "ReadWriteOnce"),
            (&["ReadWriteOnce", "ReadOnlyMany"], "ReadWriteOnce"),
            (&["ReadOnlyMany", "ReadWriteMany"], "ReadWriteOnce"),
            (&[], "ReadWriteOnce"),
        ] {
            assert_eq!(access_modes(&owned(modes)), [want], "{modes:?}");
        }
    }

    #[test]
    fn zones_of_a_disk_are_in_one_region() {
        let zones = owned(&["us-central1-a", "us-central1-b"]);
        assert_eq!(region(&zones).unwrap(), "us-central1");
        assert!(region(&owned(&["us-central1-a", "us-east1-b"])).is_err());
        assert!(region(&owned(&["us-central1-a", "moon"])).is_err());
    }
}
