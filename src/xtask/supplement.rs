//! Types that stable kinds refer to but that the facts file leaves out: empty structs, and the
//! alpha types of Job.

/// In the form of the facts file: package, type, and fields as `json go tag shape flags`.
///
/// `batch/v1` Job refers to four types of `scheduling.k8s.io/v1alpha3`; upstream's `types.go` of
/// that package is the source.
pub(crate) const SUPPLEMENT: &str = r#"{
 "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceSubresourceStatus": {"fields": []},
 "io.k8s.api.scheduling.v1alpha3.WorkloadPodGroupBasicSchedulingPolicy": {"fields": []},
 "io.k8s.api.scheduling.v1alpha3.WorkloadPodGroupSingleDisruptionMode": {"fields": []},
 "io.k8s.api.scheduling.v1alpha3.WorkloadPodGroupAllDisruptionMode": {"fields": []},
 "io.k8s.api.scheduling.v1alpha3.WorkloadPodGroupGangSchedulingPolicy": {"fields": [
  {"go": "MinCount", "json": "minCount", "tag": 1, "type": "int32", "ptr": true, "omitempty": true, "markers": ["optional"]}]},
 "io.k8s.api.scheduling.v1alpha3.WorkloadPodGroupSchedulingPolicy": {"fields": [
  {"go": "Basic", "json": "basic", "tag": 1, "ref": "io.k8s.api.scheduling.v1alpha3.WorkloadPodGroupBasicSchedulingPolicy", "ptr": true, "omitempty": true, "markers": ["optional"]},
  {"go": "Gang", "json": "gang", "tag": 2, "ref": "io.k8s.api.scheduling.v1alpha3.WorkloadPodGroupGangSchedulingPolicy", "ptr": true, "omitempty": true, "markers": ["optional"]}]},
 "io.k8s.api.scheduling.v1alpha3.TopologyConstraint": {"fields": [
  {"go": "Key", "json": "key", "tag": 1, "type": "string", "markers": ["required"]}]},
 "io.k8s.api.scheduling.v1alpha3.WorkloadPodGroupSchedulingConstraints": {"fields": [
  {"go": "Topology", "json": "topology", "tag": 1, "list": {"ref": "io.k8s.api.scheduling.v1alpha3.TopologyConstraint"}, "omitempty": true, "markers": ["optional", "listType=atomic"]}]},
 "io.k8s.api.scheduling.v1alpha3.WorkloadPodGroupResourceClaim": {"fields": [
  {"go": "Name", "json": "name", "tag": 1, "type": "string", "markers": ["required"]},
  {"go": "ResourceClaimName", "json": "resourceClaimName", "tag": 2, "type": "string", "ptr": true, "omitempty": true, "markers": ["optional"]},
  {"go": "ResourceClaimTemplateName", "json": "resourceClaimTemplateName", "tag": 3, "type": "string", "ptr": true, "omitempty": true, "markers": ["optional"]}]},
 "io.k8s.api.scheduling.v1alpha3.WorkloadPodGroupDisruptionMode": {"fields": [
  {"go": "Single", "json": "single", "tag": 1, "ref": "io.k8s.api.scheduling.v1alpha3.WorkloadPodGroupSingleDisruptionMode", "ptr": true, "omitempty": true, "markers": ["optional"]},
  {"go": "All", "json": "all", "tag": 2, "ref": "io.k8s.api.scheduling.v1alpha3.WorkloadPodGroupAllDisruptionMode", "ptr": true, "omitempty": true, "markers": ["optional"]}]},
 "io.k8s.api.resource.v1.DeviceDerivedAttribute": {"fields": [
  {"go": "Name", "json": "name", "tag": 1, "ref": "io.k8s.api.resource.v1.FullyQualifiedName", "markers": ["required"]},
  {"go": "Expression", "json": "expression", "tag": 2, "type": "string", "markers": ["required"]}]}
}"#;

/// Fields of 1.37.1 that the facts file, made before the release, does not have; appended to their
/// types.
pub(crate) const MORE_FIELDS: &str = r#"{
 "io.k8s.api.core.v1.NodeSystemInfo": [
  {"go": "RunningInUserNamespace", "json": "runningInUserNamespace", "tag": 12, "type": "bool", "ptr": true, "omitempty": true, "markers": ["optional"]}],
 "io.k8s.api.resource.v1.DeviceCounterConsumption": [
  {"go": "CompatibilityGroups", "json": "compatibilityGroups", "tag": 3, "list": {"type": "string"}, "omitempty": true, "markers": ["optional", "listType=atomic"]}],
 "io.k8s.api.resource.v1.DeviceSubRequest": [
  {"go": "DerivedAttributes", "json": "derivedAttributes", "tag": 8, "list": {"ref": "io.k8s.api.resource.v1.DeviceDerivedAttribute"}, "omitempty": true, "markers": ["optional", "listType=atomic"]}],
 "io.k8s.api.resource.v1.ExactDeviceRequest": [
  {"go": "DerivedAttributes", "json": "derivedAttributes", "tag": 8, "list": {"ref": "io.k8s.api.resource.v1.DeviceDerivedAttribute"}, "omitempty": true, "markers": ["optional", "listType=atomic"]}]
}"#;

/// Defaults that are Go constants: the constant's name and its value.
pub(crate) const CONSTANTS: &[(&str, &str)] =
    &[("AzureDataDiskCachingReadWrite", "ReadWrite"), ("AzureSharedBlobDisk", "Shared")];
