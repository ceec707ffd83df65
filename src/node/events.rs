//! The event reasons of the kubelet: those in upstream's `pkg/kubelet/events/event.go` and a few
//! that upstream declares elsewhere.
//!
//! The table lists every upstream reason with the constant used here, or why it is never emitted.
//! A test checks that the table is complete.
//!
//! | Reason | Constant, or why not |
//! |---|---|
//! | `AlreadyMountedVolume` | upstream does not emit it either |
//! | `BackOff` | `BACK_OFF` |
//! | `CgroupV1` | `CGROUP_V1` |
//! | `ContainerGCFailed` | the pod's worker removes dead containers and retries |
//! | `Created` | `CREATED` |
//! | `DNSConfigForming` | `DNS_CONFIG_FORMING` |
//! | `ErrImageNeverPull` | `ERR_IMAGE_NEVER_PULL` |
//! | `ExceededGracePeriod` | `EXCEEDED_GRACE_PERIOD` |
//! | `Failed` | `FAILED` |
//! | `FailedAttachVolume` | the attach/detach controller emits it |
//! | `FailedCreatePodContainer` | `FAILED_CREATE_POD_CONTAINER` |
//! | `FailedCreatePodSandBox` | `FAILED_CREATE_POD_SANDBOX` |
//! | `FailedKillPod` | `FAILED_KILL_POD` |
//! | `FailedMapVolume` | `FAILED_MAP_VOLUME` |
//! | `FailedMount` | `FAILED_MOUNT` |
//! | `FailedMountOnFilesystemMismatch` | the text of `FAILED_MOUNT` names both file systems |
//! | `FailedNodeAllocatableEnforcement` | `FAILED_NODE_ALLOCATABLE_ENFORCEMENT` |
//! | `FailedNodeDeclaredFeaturesCheck` | the node declares no features; see admission |
//! | `FailedPodSandBoxStatus` | `FAILED_POD_SANDBOX_STATUS` |
//! | `FailedPostStartHook` | `FAILED_POST_START_HOOK` |
//! | `FailedPreStopHook` | `FAILED_PRE_STOP_HOOK` |
//! | `FailedPrepareDynamicResources` | `FAILED_PREPARE_DYNAMIC_RESOURCES` |
//! | `FailedSync` | `FAILED_SYNC` |
//! | `FailedValidation` | `kube-lite status` reports invalid static pods |
//! | `FileSystemResizeFailed` | `FILE_SYSTEM_RESIZE_FAILED` |
//! | `FileSystemResizeSuccessful` | `FILE_SYSTEM_RESIZE_SUCCESS` |
//! | `FreeDiskSpaceFailed` | `FREE_DISK_SPACE_FAILED` |
//! | `HostIPsIPFamilyMismatch` | node addresses come from flags, not a cloud provider |
//! | `ImageGCFailed` | `IMAGE_GC_FAILED` |
//! | `InspectFailed` | `INSPECT_FAILED` |
//! | `InvalidDiskCapacity` | `INVALID_DISK_CAPACITY` |
//! | `InvalidImageID` | image IDs are passed from and to the runtime unchanged |
//! | `Killing` | `KILLING` |
//! | `KubeletSetupFailed` | a failed start ends the process with that error |
//! | `MissingClusterDNS` | `MISSING_CLUSTER_DNS` |
//! | `NetworkNotReady` | `NETWORK_NOT_READY` |
//! | `NodeAllocatableEnforced` | `NODE_ALLOCATABLE_ENFORCED` |
//! | `NodeNotReady` | `NODE_NOT_READY` |
//! | `NodeNotSchedulable` | `NODE_NOT_SCHEDULABLE` |
//! | `NodeReady` | `NODE_READY` |
//! | `NodeSchedulable` | `NODE_SCHEDULABLE` |
//! | `PossibleMemoryBackedVolumesOnDisk` | pod cgroups have no swap |
//! | `Preempting` | pods that do not fit are rejected; only the scheduler preempts |
//! | `ProbeWarning` | `PROBE_WARNING` |
//! | `Pulled` | `PULLED` |
//! | `Pulling` | `PULLING` |
//! | `Rebooted` | `REBOOTED` |
//! | `ResizeCompleted` | `RESIZE_COMPLETED` |
//! | `ResizeDeferred` | `RESIZE_DEFERRED` |
//! | `ResizeError` | `RESIZE_ERROR` |
//! | `ResizeInfeasible` | `RESIZE_INFEASIBLE` |
//! | `ResizeStarted` | `RESIZE_STARTED` |
//! | `SandboxChanged` | `SANDBOX_CHANGED` |
//! | `Shutdown` | `SHUTDOWN` |
//! | `Started` | `STARTED` |
//! | `Starting` | `STARTING` |
//! | `SuccessfulAttachVolume` | the attach/detach controller emits it |
//! | `SuccessfulMountVolume` | `SUCCESSFUL_MOUNT_VOLUME` |
//! | `SystemOOM` | the kernel log is not read; pods show `OOMKilled` |
//! | `Unhealthy` | `UNHEALTHY` |
//! | `VolumePermissionChangeInProgress` | shown in the waiting state of containers |
//! | `VolumeResizeFailed` | `VOLUME_RESIZE_FAILED` |
//! | `VolumeResizeSuccessful` | the resizer of the driver emits it |

mod recorder;

pub(crate) use recorder::NodeEventRecorder;

/// A container start or an image pull is in back-off.
pub(crate) const BACK_OFF: &str = "BackOff";
/// The machine uses cgroup v1.
pub(crate) const CGROUP_V1: &str = "CgroupV1";
/// A container was created.
pub(crate) const CREATED: &str = "Created";
/// Name servers or search domains of a pod were omitted.
pub(crate) const DNS_CONFIG_FORMING: &str = "DNSConfigForming";
/// An image is missing and its policy forbids a pull.
pub(crate) const ERR_IMAGE_NEVER_PULL: &str = "ErrImageNeverPull";
/// The runtime did not stop a pod within its grace period.
pub(crate) const EXCEEDED_GRACE_PERIOD: &str = "ExceededGracePeriod";
/// A step failed; the message says which.
pub(crate) const FAILED: &str = "Failed";
/// The cgroup of a pod cannot be created.
pub(crate) const FAILED_CREATE_POD_CONTAINER: &str = "FailedCreatePodContainer";
/// A sandbox cannot be created.
pub(crate) const FAILED_CREATE_POD_SANDBOX: &str = "FailedCreatePodSandBox";
/// A ResourceClaim of a pod cannot be prepared.
pub(crate) const FAILED_PREPARE_DYNAMIC_RESOURCES: &str = "FailedPrepareDynamicResources";
/// A pod cannot be stopped.
pub(crate) const FAILED_KILL_POD: &str = "FailedKillPod";
/// A block volume cannot be given to the containers.
pub(crate) const FAILED_MAP_VOLUME: &str = "FailedMapVolume";
/// A volume cannot be set up.
pub(crate) const FAILED_MOUNT: &str = "FailedMount";
/// A cgroup of the system or of Kubernetes is not limited.
pub(crate) const FAILED_NODE_ALLOCATABLE_ENFORCEMENT: &str = "FailedNodeAllocatableEnforcement";
/// The runtime does not return the status of a sandbox.
pub(crate) const FAILED_POD_SANDBOX_STATUS: &str = "FailedPodSandBoxStatus";
/// A container's postStart hook failed.
pub(crate) const FAILED_POST_START_HOOK: &str = "FailedPostStartHook";
/// A container's preStop hook failed.
pub(crate) const FAILED_PRE_STOP_HOOK: &str = "FailedPreStopHook";
/// The runtime does not return the state of a pod.
pub(crate) const FAILED_SYNC: &str = "FailedSync";
/// The file system of a volume was not enlarged.
pub(crate) const FILE_SYSTEM_RESIZE_FAILED: &str = "FileSystemResizeFailed";
/// The file system of a volume was enlarged.
pub(crate) const FILE_SYSTEM_RESIZE_SUCCESS: &str = "FileSystemResizeSuccessful";
/// The image file system stays full after unused images were removed.
pub(crate) const FREE_DISK_SPACE_FAILED: &str = "FreeDiskSpaceFailed";
/// Image garbage collection failed twice in a row.
pub(crate) const IMAGE_GC_FAILED: &str = "ImageGCFailed";
/// The runtime does not say whether an image is present.
pub(crate) const INSPECT_FAILED: &str = "InspectFailed";
/// The capacity of the image file system is zero.
pub(crate) const INVALID_DISK_CAPACITY: &str = "InvalidDiskCapacity";
/// A container is being stopped.
pub(crate) const KILLING: &str = "Killing";
/// A pod uses the cluster's DNS, and none is configured.
pub(crate) const MISSING_CLUSTER_DNS: &str = "MissingClusterDNS";
/// A pod waits for the network plugin.
pub(crate) const NETWORK_NOT_READY: &str = "NetworkNotReady";
/// The limits of all pods together were set.
pub(crate) const NODE_ALLOCATABLE_ENFORCED: &str = "NodeAllocatableEnforced";
/// The node became not ready.
pub(crate) const NODE_NOT_READY: &str = "NodeNotReady";
/// The node was cordoned.
pub(crate) const NODE_NOT_SCHEDULABLE: &str = "NodeNotSchedulable";
/// The node became ready.
pub(crate) const NODE_READY: &str = "NodeReady";
/// The node was uncordoned.
pub(crate) const NODE_SCHEDULABLE: &str = "NodeSchedulable";
/// A probe succeeded with a warning.
pub(crate) const PROBE_WARNING: &str = "ProbeWarning";
/// An image was pulled or is already present.
pub(crate) const PULLED: &str = "Pulled";
/// An image is being pulled.
pub(crate) const PULLING: &str = "Pulling";
/// The machine rebooted since the node's last status.
pub(crate) const REBOOTED: &str = "Rebooted";
/// All containers have the new resources of their pod.
pub(crate) const RESIZE_COMPLETED: &str = "ResizeCompleted";
/// The node lacks the new resources of a pod.
pub(crate) const RESIZE_DEFERRED: &str = "ResizeDeferred";
/// The runtime or the kernel rejected new resources.
pub(crate) const RESIZE_ERROR: &str = "ResizeError";
/// The policies of the node do not allow the new resources of a pod.
pub(crate) const RESIZE_INFEASIBLE: &str = "ResizeInfeasible";
/// New resources of a pod are being applied.
pub(crate) const RESIZE_STARTED: &str = "ResizeStarted";
/// A sandbox is replaced.
pub(crate) const SANDBOX_CHANGED: &str = "SandboxChanged";
/// The machine is being switched off.
pub(crate) const SHUTDOWN: &str = "Shutdown";
/// A container was started.
pub(crate) const STARTED: &str = "Started";
/// The node agent starts.
pub(crate) const STARTING: &str = "Starting";
/// A block volume was mapped.
pub(crate) const SUCCESSFUL_MOUNT_VOLUME: &str = "SuccessfulMountVolume";
/// A probe failed.
pub(crate) const UNHEALTHY: &str = "Unhealthy";
/// A volume in use was not enlarged.
pub(crate) const VOLUME_RESIZE_FAILED: &str = "VolumeResizeFailed";

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::path::{Path, PathBuf};

    /// The values of the constants in upstream's `event.go` (v1.37.1), then the reasons that
    /// upstream writes as literals.
    const UPSTREAM: &str = "Created Started Failed Killing Preempting BackOff ExceededGracePeriod \
        FailedKillPod FailedCreatePodContainer NetworkNotReady ResizeDeferred ResizeInfeasible \
        ResizeCompleted ResizeStarted ResizeError FailedNodeDeclaredFeaturesCheck Pulling Pulled \
        InspectFailed ErrImageNeverPull NodeReady NodeNotReady NodeSchedulable NodeNotSchedulable \
        Starting KubeletSetupFailed FailedAttachVolume FailedMount VolumeResizeFailed \
        VolumeResizeSuccessful FileSystemResizeFailed VolumePermissionChangeInProgress \
        FileSystemResizeSuccessful FailedMapVolume AlreadyMountedVolume SuccessfulAttachVolume \
        SuccessfulMountVolume Rebooted Shutdown ContainerGCFailed ImageGCFailed \
        FailedNodeAllocatableEnforcement NodeAllocatableEnforced SandboxChanged \
        FailedCreatePodSandBox FailedPodSandBoxStatus FailedMountOnFilesystemMismatch \
        FailedPrepareDynamicResources PossibleMemoryBackedVolumesOnDisk CgroupV1 InvalidImageID \
        InvalidDiskCapacity FreeDiskSpaceFailed Unhealthy ProbeWarning FailedSync \
        FailedValidation FailedPostStartHook FailedPreStopHook \
        SystemOOM HostIPsIPFamilyMismatch DNSConfigForming MissingClusterDNS";

    fn sources(folder: &Path, out: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, out);
            } else if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("events.rs") {
                out.push(path);
            }
        }
    }

    #[test]
    fn every_event_of_upstream_is_emitted_or_listed_with_a_reason() {
        let own = include_str!("events.rs");
        let rows = own.lines().filter_map(|l| l.strip_prefix("//! | `")?.strip_suffix(" |"));
        let table: BTreeMap<&str, &str> = rows.map(|row| row.split_once("` | ").unwrap()).collect();
        let upstream: BTreeSet<&str> = UPSTREAM.split_whitespace().collect();
        assert_eq!(table.keys().copied().collect::<BTreeSet<_>>(), upstream);
        let mut files = Vec::new();
        // Tests run in the directory of their crate.
        sources(Path::new("."), &mut files);
        let mut code = String::new();
        for file in files {
            let text = std::fs::read_to_string(file).unwrap();
            // Reasons that only tests use are not emitted.
            code.push_str(text.split("#[cfg(test)]\nmod tests {").next().unwrap());
        }
        let word = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
        let used: BTreeSet<&str> = code
            .split("events::")
            .skip(1)
            .map(|after| after.split(|c| !word(c)).next().unwrap_or_default())
            .collect();
        let mut constants = BTreeSet::new();
        for (reason, why) in table {
            let Some(name) = why.strip_prefix('`').and_then(|w| w.strip_suffix('`')) else {
                assert!(why.len() > 20, "{reason}: {why}");
                continue;
            };
            constants.insert(name);
            let definition = format!("\npub(crate) const {name}: &str = \"{reason}\";");
            assert!(own.contains(&definition), "no{definition}");
            assert!(used.contains(name), "events::{name} is not used");
        }
        let defined = own.lines().filter(|l| l.starts_with("pub(crate) const ")).count();
        assert_eq!(defined, constants.len(), "a constant that is not in the table");
    }
}
