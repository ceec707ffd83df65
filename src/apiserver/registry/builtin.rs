//! The built-in resources of Kubernetes 1.37, one line each, in the order that upstream's discovery
//! lists them.

/// Columns: groupVersion, plural, singular, Kind, scope (`N` namespaced, `C` cluster), verbs (`*`
/// all eight), short names, categories, then subresources as `name:[group/version/]Kind:verbs` (no
/// Kind: the parent's).
pub(crate) const TABLE: &str = "\
v1 bindings binding Binding N create - -
v1 componentstatuses componentstatus ComponentStatus C get,list cs -
v1 configmaps configmap ConfigMap N * cm -
v1 endpoints endpoints Endpoints N * ep -
v1 events event Event N * ev -
v1 limitranges limitrange LimitRange N * limits -
v1 namespaces namespace Namespace C create,delete,get,list,patch,update,watch ns - finalize::update status::get,patch,update
v1 nodes node Node C * no - proxy:NodeProxyOptions:create,delete,get,patch,update status::get,patch,update
v1 persistentvolumeclaims persistentvolumeclaim PersistentVolumeClaim N * pvc - status::get,patch,update
v1 persistentvolumes persistentvolume PersistentVolume C * pv - status::get,patch,update
v1 pods pod Pod N * po all attach:PodAttachOptions:create,get binding:Binding:create ephemeralcontainers::get,patch,update eviction:policy/v1/Eviction:create exec:PodExecOptions:create,get log::get portforward:PodPortForwardOptions:create,get proxy:PodProxyOptions:create,delete,get,patch,update resize::get,patch,update status::get,patch,update
v1 podtemplates podtemplate PodTemplate N * - -
v1 replicationcontrollers replicationcontroller ReplicationController N * rc all scale:autoscaling/v1/Scale:get,patch,update status::get,patch,update
v1 resourcequotas resourcequota ResourceQuota N * quota - status::get,patch,update
v1 secrets secret Secret N * - -
v1 serviceaccounts serviceaccount ServiceAccount N * sa - token:authentication.k8s.io/v1/TokenRequest:create
v1 services service Service N * svc all proxy:ServiceProxyOptions:create,delete,get,patch,update status::get,patch,update
apiregistration.k8s.io/v1 apiservices apiservice APIService C * - api-extensions status::get,patch,update
apps/v1 controllerrevisions controllerrevision ControllerRevision N * - -
apps/v1 daemonsets daemonset DaemonSet N * ds all status::get,patch,update
apps/v1 deployments deployment Deployment N * deploy all scale:autoscaling/v1/Scale:get,patch,update status::get,patch,update
apps/v1 replicasets replicaset ReplicaSet N * rs all scale:autoscaling/v1/Scale:get,patch,update status::get,patch,update
apps/v1 statefulsets statefulset StatefulSet N * sts all scale:autoscaling/v1/Scale:get,patch,update status::get,patch,update
events.k8s.io/v1 events event Event N * ev -
authentication.k8s.io/v1 selfsubjectreviews selfsubjectreview SelfSubjectReview C create - -
authentication.k8s.io/v1 tokenreviews tokenreview TokenReview C create - -
authorization.k8s.io/v1 localsubjectaccessreviews localsubjectaccessreview LocalSubjectAccessReview N create - -
authorization.k8s.io/v1 selfsubjectaccessreviews selfsubjectaccessreview SelfSubjectAccessReview C create - -
authorization.k8s.io/v1 selfsubjectrulesreviews selfsubjectrulesreview SelfSubjectRulesReview C create - -
authorization.k8s.io/v1 subjectaccessreviews subjectaccessreview SubjectAccessReview C create - -
autoscaling/v2 horizontalpodautoscalers horizontalpodautoscaler HorizontalPodAutoscaler N * hpa all status::get,patch,update
autoscaling/v1 horizontalpodautoscalers horizontalpodautoscaler HorizontalPodAutoscaler N * hpa all status::get,patch,update
batch/v1 cronjobs cronjob CronJob N * cj all status::get,patch,update
batch/v1 jobs job Job N * - all status::get,patch,update
certificates.k8s.io/v1 certificatesigningrequests certificatesigningrequest CertificateSigningRequest C * csr - approval::get,patch,update status::get,patch,update
certificates.k8s.io/v1 clustertrustbundles clustertrustbundle ClusterTrustBundle C * - -
certificates.k8s.io/v1 podcertificaterequests podcertificaterequest PodCertificateRequest N * - - status::get,patch,update
networking.k8s.io/v1 ingressclasses ingressclass IngressClass C * - -
networking.k8s.io/v1 ingresses ingress Ingress N * ing - status::get,patch,update
networking.k8s.io/v1 ipaddresses ipaddress IPAddress C * ip -
networking.k8s.io/v1 networkpolicies networkpolicy NetworkPolicy N * netpol -
networking.k8s.io/v1 servicecidrs servicecidr ServiceCIDR C * - - status::get,patch,update
policy/v1 poddisruptionbudgets poddisruptionbudget PodDisruptionBudget N * pdb - status::get,patch,update
rbac.authorization.k8s.io/v1 clusterrolebindings clusterrolebinding ClusterRoleBinding C * - -
rbac.authorization.k8s.io/v1 clusterroles clusterrole ClusterRole C * - -
rbac.authorization.k8s.io/v1 rolebindings rolebinding RoleBinding N * - -
rbac.authorization.k8s.io/v1 roles role Role N * - -
storage.k8s.io/v1 csidrivers csidriver CSIDriver C * - -
storage.k8s.io/v1 csinodes csinode CSINode C * - - status::get,patch,update
storage.k8s.io/v1 csistoragecapacities csistoragecapacity CSIStorageCapacity N * - -
storage.k8s.io/v1 storageclasses storageclass StorageClass C * sc -
storage.k8s.io/v1 volumeattachments volumeattachment VolumeAttachment C * - - status::get,patch,update
storage.k8s.io/v1 volumeattributesclasses volumeattributesclass VolumeAttributesClass C * vac -
admissionregistration.k8s.io/v1 mutatingadmissionpolicies mutatingadmissionpolicy MutatingAdmissionPolicy C * - api-extensions
admissionregistration.k8s.io/v1 mutatingadmissionpolicybindings mutatingadmissionpolicybinding MutatingAdmissionPolicyBinding C * - api-extensions
admissionregistration.k8s.io/v1 mutatingwebhookconfigurations mutatingwebhookconfiguration MutatingWebhookConfiguration C * - api-extensions
admissionregistration.k8s.io/v1 validatingadmissionpolicies validatingadmissionpolicy ValidatingAdmissionPolicy C * - api-extensions status::get,patch,update
admissionregistration.k8s.io/v1 validatingadmissionpolicybindings validatingadmissionpolicybinding ValidatingAdmissionPolicyBinding C * - api-extensions
admissionregistration.k8s.io/v1 validatingwebhookconfigurations validatingwebhookconfiguration ValidatingWebhookConfiguration C * - api-extensions
apiextensions.k8s.io/v1 customresourcedefinitions customresourcedefinition CustomResourceDefinition C * crd,crds api-extensions status::get,patch,update
scheduling.k8s.io/v1 priorityclasses priorityclass PriorityClass C * pc -
coordination.k8s.io/v1 leases lease Lease N * - -
node.k8s.io/v1 runtimeclasses runtimeclass RuntimeClass C * - -
discovery.k8s.io/v1 endpointslices endpointslice EndpointSlice N * - -
resource.k8s.io/v1 deviceclasses deviceclass DeviceClass C * - -
resource.k8s.io/v1 devicetaintrules devicetaintrule DeviceTaintRule C * - - status::get,patch,update
resource.k8s.io/v1 resourceclaims resourceclaim ResourceClaim N * - - status::get,patch,update
resource.k8s.io/v1 resourceclaimtemplates resourceclaimtemplate ResourceClaimTemplate N * - -
resource.k8s.io/v1 resourceslices resourceslice ResourceSlice C * - -
flowcontrol.apiserver.k8s.io/v1 flowschemas flowschema FlowSchema C * - - status::get,patch,update
flowcontrol.apiserver.k8s.io/v1 prioritylevelconfigurations prioritylevelconfiguration PriorityLevelConfiguration C * - - status::get,patch,update
storagemigration.k8s.io/v1 storageversionmigrations storageversionmigration StorageVersionMigration C * - - status::get,patch,update
";

/// The resources of the resource metrics API, which are built from Nodes and Pods and not stored.
/// An aggregated API server replaces them.
pub(crate) const RESOURCE_METRICS: &str = "\
metrics.k8s.io/v1beta1 nodes  NodeMetrics C get,list - -
metrics.k8s.io/v1beta1 pods  PodMetrics N get,list - -
";
