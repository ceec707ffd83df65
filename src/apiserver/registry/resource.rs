//! The rows of the served resources and the registry, the table of all rows.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use api::schema::Schema;
use api::{Gvk, Gvr};
use base64::Engine;
use sorting::CompactSort as _;
use store::Durability;

use super::builtin;
use super::strategies::strategy_for;
use super::strategy::Strategy;
use printers::CustomColumns;

/// The eight verbs of an ordinary resource, in the order that discovery lists them.
pub const ALL_VERBS: [&str; 8] =
    ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

/// A subresource of a row.
#[derive(Debug, Clone)]
pub struct Subresource {
    /// Name, such as `status`.
    pub name: Arc<str>,
    /// Kind that it reads and writes; group and version are empty when they are those of the
    /// parent.
    pub kind: Gvk,
    /// Verbs served.
    pub verbs: Vec<Arc<str>>,
}

impl Subresource {
    /// A subresource of the parent's own kind with get, patch and update.
    pub fn of_parent(name: &str, kind: &str) -> Self {
        Self {
            name: name.into(),
            kind: Gvk::new("", "", kind),
            verbs: ["get", "patch", "update"].map(Into::into).to_vec(),
        }
    }
}

/// The definition of one resource in one group and version.
#[derive(Clone)]
pub struct ResourceSpec {
    /// Group, version, plural.
    pub gvr: Gvr,
    /// Group, version, kind.
    pub gvk: Gvk,
    /// Singular, lower case.
    pub singular: Arc<str>,
    /// Whether objects belong to namespaces.
    pub namespaced: bool,
    /// Verbs served.
    pub verbs: Vec<Arc<str>>,
    /// Short names for kubectl.
    pub short_names: Vec<Arc<str>>,
    /// Categories such as `all`.
    pub categories: Vec<Arc<str>>,
    /// Subresources.
    pub subresources: Vec<Subresource>,
    /// Path of the objects under `/registry/`, without a trailing slash.
    pub prefix: Arc<str>,
    /// Group, version and kind of the stored form; differs from `gvk` when another version is the
    /// storage version.
    pub storage: Gvk,
    /// Which writes a crash within half a minute may lose.
    pub durability: DurabilityRule,
    /// Time after the last write at which an object is deleted; `None` keeps it.
    pub ttl: Option<Duration>,
    /// Rules of the kind.
    pub strategy: Arc<dyn Strategy>,
    /// Whether the resource is a custom resource, whose list items keep kind and version.
    pub unstructured: bool,
    /// Printer columns of a custom resource.
    pub columns: Option<Arc<CustomColumns>>,
    /// The version of a CustomResourceDefinition that this row serves.
    pub custom: Option<Arc<crate::crd::Kind>>,
}

/// Which writes of a resource may be acknowledged before they are durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DurabilityRule {
    /// No write.
    AlwaysSynced,
    /// Renewals of a Lease by its holder.
    LeaseRenewalsAsync,
    /// Every write.
    AlwaysAsync,
}

impl ResourceSpec {
    /// The durability of a write; `renewal`: the write only renews a Lease.
    pub fn durability(&self, renewal: bool) -> Durability {
        match self.durability {
            DurabilityRule::AlwaysAsync => Durability::Lazy,
            DurabilityRule::LeaseRenewalsAsync if renewal => Durability::Lazy,
            DurabilityRule::AlwaysSynced | DurabilityRule::LeaseRenewalsAsync => Durability::Synced,
        }
    }

    /// A resource with all verbs under upstream's key layout for custom resources:
    /// `/registry/<group>/<resource>`.
    pub fn custom(gvr: Gvr, kind: &str, namespaced: bool, strategy: Arc<dyn Strategy>) -> Self {
        let gvk = Gvk {
            group: Arc::clone(&gvr.group),
            version: Arc::clone(&gvr.version),
            kind: kind.into(),
        };
        Self {
            singular: kind.to_lowercase().into(),
            namespaced,
            verbs: ALL_VERBS.map(Into::into).to_vec(),
            short_names: Vec::new(),
            categories: Vec::new(),
            subresources: Vec::new(),
            prefix: format!("{}/{}", gvr.group, gvr.resource).into(),
            storage: gvk.clone(),
            durability: DurabilityRule::AlwaysSynced,
            ttl: None,
            unstructured: true,
            columns: None,
            custom: None,
            strategy,
            gvr,
            gvk,
        }
    }

    /// Key of the watch cache: shared by all rows of a storage, except for custom resources, which
    /// have one per version with the objects converted to it.
    pub(crate) fn cache_key(&self) -> Arc<str> {
        match &self.custom {
            None => Arc::clone(&self.prefix),
            Some(custom) => {
                format!("{}@{}#{}", self.prefix, self.gvr.version, custom.number()).into()
            }
        }
    }
}

impl std::fmt::Debug for ResourceSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ResourceSpec({})", self.gvr)
    }
}

/// One row of the registry.
#[derive(Debug)]
pub struct Resource {
    /// The definition.
    pub spec: ResourceSpec,
    /// `{"kind":"K","apiVersion":"V",` as stored objects of this row's storage version begin.
    pub stored_head: String,
    /// `storageVersionHash` of discovery.
    pub storage_hash: String,
    /// Whether several versions share the storage, so that stored objects may have to be converted
    /// to the row's version. Custom resources are converted when they are read from the store.
    pub converts: bool,
    /// Name of the watch cache.
    pub cache_key: Arc<str>,
    /// Revision of the newest write of this server, so that its own readers of the cache can wait
    /// for it.
    pub written: AtomicI64,
}

impl Resource {
    /// A row outside any registry.
    pub(crate) fn new(spec: ResourceSpec) -> Self {
        let storage = &spec.storage;
        let stored_head = format!(
            "{{\"kind\":\"{}\",\"apiVersion\":\"{}\",",
            storage.kind,
            storage.api_version()
        );
        let storage_hash = storage_hash(&spec);
        let converts = spec.storage != spec.gvk && spec.custom.is_none();
        let cache_key = spec.cache_key();
        Self { stored_head, storage_hash, converts, cache_key, written: AtomicI64::new(0), spec }
    }

    /// Whether the verb is served on the resource itself.
    pub fn has_verb(&self, verb: &str) -> bool {
        self.spec.verbs.iter().any(|v| v.as_ref() == verb)
    }

    /// The subresource of this name.
    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.spec.subresources.iter().find(|s| s.name.as_ref() == name)
    }

    /// Whether objects are stored (reviews, bindings and component statuses are not).
    pub fn is_stored(&self) -> bool {
        !self.spec.prefix.is_empty()
    }

    /// Whether the row belongs to the resource metrics API.
    pub(crate) fn is_resource_metrics(&self) -> bool {
        self.spec.gvr.group.as_ref() == "metrics.k8s.io" && self.spec.custom.is_none()
    }

    /// Whether items of lists keep kind and version, as those of custom resources do, which
    /// upstream serves unstructured.
    pub fn keeps_item_kind(&self) -> bool {
        self.spec.unstructured
    }

    /// Key in the store.
    pub fn key(&self, namespace: &str, name: &str) -> String {
        if namespace.is_empty() {
            format!("/registry/{}/{name}", self.spec.prefix)
        } else {
            format!("/registry/{}/{namespace}/{name}", self.spec.prefix)
        }
    }

    /// Prefix of all keys, or of those of one namespace; ends with a slash so that `foo` never
    /// matches `foos`.
    pub fn key_prefix(&self, namespace: &str) -> String {
        if namespace.is_empty() {
            format!("/registry/{}/", self.spec.prefix)
        } else {
            format!("/registry/{}/{namespace}/", self.spec.prefix)
        }
    }

    /// The name in Status messages, such as `deployments.apps` or `pods`.
    pub fn qualified(&self) -> String {
        api::status::qualified(&self.spec.gvr.group, &self.spec.gvr.resource)
    }
}

/// Hashes of kinds that upstream stores in a version that it does not serve by default (answers of
/// kube-apiserver 1.37.1).
const HASHES: [(&str, &str); 5] = [
    ("clustertrustbundles", "v5yhuVertL4="),
    ("podcertificaterequests", "wYA9yXQH8fg="),
    ("customresourcedefinitions", "jfWCUB31mvA="),
    ("devicetaintrules", "i+85+TcIKpA="),
    ("storageversionmigrations", "pCjmmKOkLy4="),
];

fn storage_hash(spec: &ResourceSpec) -> String {
    if spec.prefix.is_empty() {
        return String::new();
    }
    if let Some((_, hash)) = HASHES.iter().find(|(name, _)| {
        *name == spec.gvr.resource.as_ref() && spec.gvr.group.ends_with(".k8s.io")
    }) {
        return (*hash).to_owned();
    }
    let text = format!("{}/{}/{}", spec.storage.group, spec.storage.version, spec.storage.kind);
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    base64::engine::general_purpose::STANDARD.encode(digest.as_ref().get(..8).unwrap_or_default())
}

/// One version of a group.
#[derive(Debug, Clone)]
pub struct Version {
    /// Name, such as `v1`.
    pub name: Arc<str>,
    /// Rows in the order of discovery.
    pub resources: Vec<Arc<Resource>>,
}

/// One API group.
#[derive(Debug, Clone)]
pub struct Group {
    /// Name; empty for the core group.
    pub name: Arc<str>,
    /// Versions, preferred first.
    pub versions: Vec<Version>,
}

/// The table of all served resources.
#[derive(Debug, Clone)]
pub struct Registry {
    groups: Vec<Group>,
    rows: HashMap<Gvr, Arc<Resource>>,
    kinds: HashMap<Gvk, Arc<Resource>>,
    /// Types of all kinds.
    pub schema: Arc<Schema>,
}

impl Registry {
    /// No resources, only a schema.
    pub fn new(schema: Arc<Schema>) -> Self {
        Self { groups: Vec::new(), rows: HashMap::new(), kinds: HashMap::new(), schema }
    }

    /// The built-in resources of Kubernetes 1.37.
    pub fn builtin(schema: Arc<Schema>) -> Self {
        let mut registry = Self::new(schema);
        for line in builtin::TABLE.lines() {
            if let Some(spec) = parse_row(line) {
                registry.add(spec);
            }
        }
        registry
    }

    /// Adds the resource metrics API.
    pub(crate) fn add_resource_metrics(&mut self) {
        for spec in builtin::RESOURCE_METRICS.lines().filter_map(parse_row) {
            self.add(spec);
        }
        self.arrange();
    }

    /// Whether an aggregated API server may serve this group version: no row of it is stored here.
    pub(crate) fn yields_to_aggregation(&self, group: &str, version: &str) -> bool {
        let mut own = self
            .rows()
            .filter(|row| &*row.spec.gvr.group == group && &*row.spec.gvr.version == version);
        own.all(|row| row.is_resource_metrics())
    }

    /// Adds or replaces a row.
    pub fn add(&mut self, spec: ResourceSpec) {
        let row = Arc::new(Resource::new(spec));
        let gvr = row.spec.gvr.clone();
        let group = match self.groups.iter_mut().position(|g| g.name == gvr.group) {
            Some(at) => at,
            None => {
                self.groups.push(Group { name: Arc::clone(&gvr.group), versions: Vec::new() });
                self.groups.len() - 1
            }
        };
        if let Some(group) = self.groups.get_mut(group) {
            match group.versions.iter_mut().find(|v| v.name == gvr.version) {
                Some(version) => {
                    version.resources.retain(|r| r.spec.gvr.resource != gvr.resource);
                    version.resources.push(Arc::clone(&row));
                }
                None => group.versions.push(Version {
                    name: Arc::clone(&gvr.version),
                    resources: vec![Arc::clone(&row)],
                }),
            }
        }
        self.kinds.insert(row.spec.gvk.clone(), Arc::clone(&row));
        self.rows.insert(gvr, row);
    }

    /// Removes a row, and versions and groups that become empty.
    pub fn remove(&mut self, gvr: &Gvr) {
        if let Some(row) = self.rows.remove(gvr) {
            self.kinds.remove(&row.spec.gvk);
        }
        for group in &mut self.groups {
            for version in &mut group.versions {
                version.resources.retain(|r| r.spec.gvr != *gvr);
            }
            group.versions.retain(|v| !v.resources.is_empty());
        }
        self.groups.retain(|g| !g.versions.is_empty());
    }

    /// Replaces rows of custom resources; built-in rows are never replaced.
    pub(crate) fn exchange(&mut self, old: &[ResourceSpec], new: &[ResourceSpec]) {
        let own = |registry: &Self, gvr: &Gvr| {
            registry.rows.get(gvr).is_none_or(|row| row.spec.custom.is_some())
        };
        for spec in old {
            if own(self, &spec.gvr) {
                self.remove(&spec.gvr);
            }
        }
        for spec in new {
            if own(self, &spec.gvr) {
                self.add(spec.clone());
            } else {
                tracing::warn!(resource = %spec.gvr, "a custom resource has the name of a built-in one and is not served");
            }
        }
        self.arrange();
    }

    /// Sorts the groups of custom resources by name after the built-in ones, and their versions by
    /// preference.
    fn arrange(&mut self) {
        let custom = |group: &Group| {
            group.versions.iter().all(|v| v.resources.iter().all(|r| r.spec.custom.is_some()))
        };
        self.groups.compact_sort_by_cached_key(|group| {
            let custom = custom(group);
            (custom, if custom { Arc::clone(&group.name) } else { "".into() })
        });
        for group in self.groups.iter_mut().rev().take_while(|group| custom(group)) {
            group.versions.compact_sort_by(|a, b| crate::crd::compare_versions(&a.name, &b.name));
            for version in &mut group.versions {
                version
                    .resources
                    .compact_sort_by(|a, b| a.spec.gvr.resource.cmp(&b.spec.gvr.resource));
            }
        }
    }

    /// The row of a resource.
    pub fn row(&self, gvr: &Gvr) -> Option<&Arc<Resource>> {
        self.rows.get(gvr)
    }

    /// The row of a kind.
    pub fn row_of_kind(&self, gvk: &Gvk) -> Option<&Arc<Resource>> {
        self.kinds.get(gvk)
    }

    /// All groups, including the core group, in the order of discovery.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// A group by name.
    pub fn group(&self, name: &str) -> Option<&Group> {
        self.groups.iter().find(|g| g.name.as_ref() == name)
    }

    /// All rows.
    pub fn rows(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.groups.iter().flat_map(|g| g.versions.iter().flat_map(|v| v.resources.iter()))
    }
}

/// TTL of events (default of upstream's `--event-ttl`).
const EVENT_TTL: Duration = Duration::from_secs(60 * 60);

/// Parses one line of the built-in table.
fn parse_row(line: &str) -> Option<ResourceSpec> {
    let mut columns = line.split(' ');
    let gvk_of = |gv: &str, kind: &str| Gvk::from_api_version(gv, kind);
    let group_version = columns.next().filter(|c| !c.is_empty())?;
    let resource = columns.next()?;
    let singular = columns.next()?;
    let gvk = gvk_of(group_version, columns.next()?);
    let namespaced = columns.next()? == "N";
    let list = |text: &str| -> Vec<Arc<str>> {
        match text {
            "-" => Vec::new(),
            "*" => ALL_VERBS.map(Into::into).to_vec(),
            text => text.split(',').map(Into::into).collect(),
        }
    };
    let verbs = list(columns.next()?);
    let short_names = list(columns.next()?);
    let categories = list(columns.next()?);
    let subresources = columns.filter_map(|column| {
        let mut parts = column.split(':');
        let (name, kind, verbs) = (parts.next()?, parts.next()?, parts.next()?);
        let kind = match kind.rsplit_once('/') {
            Some((gv, kind)) => gvk_of(gv, kind),
            None => Gvk::new("", "", if kind.is_empty() { &gvk.kind } else { kind }),
        };
        Some(Subresource { name: name.into(), kind, verbs: list(verbs) })
    });
    let subresources = subresources.collect();
    let stored = verbs.iter().any(|v| v.as_ref() == "watch");
    let storage = match (gvk.group.as_ref(), gvk.kind.as_ref()) {
        ("events.k8s.io", kind) => Gvk::new("", "v1", kind),
        ("autoscaling", kind) => Gvk::new("autoscaling", "v2", kind),
        _ => gvk.clone(),
    };
    let durability = match resource {
        "events" => DurabilityRule::AlwaysAsync,
        "leases" => DurabilityRule::LeaseRenewalsAsync,
        _ => DurabilityRule::AlwaysSynced,
    };
    Some(ResourceSpec {
        gvr: Gvr {
            group: Arc::clone(&gvk.group),
            version: Arc::clone(&gvk.version),
            resource: resource.into(),
        },
        singular: singular.into(),
        namespaced,
        verbs,
        short_names,
        categories,
        subresources,
        prefix: if stored { storage_prefix(&gvk.group, resource).into() } else { "".into() },
        storage,
        durability,
        ttl: (resource == "events").then_some(EVENT_TTL),
        unstructured: false,
        columns: None,
        custom: None,
        strategy: strategy_for(&gvk),
        gvk,
    })
}

/// The path of a resource in upstream's key layout: the plural name with some exceptions; resources
/// of upstream's extension servers have the group before the name.
fn storage_prefix(group: &str, resource: &str) -> String {
    match (group, resource) {
        ("", "replicationcontrollers") => "controllers".into(),
        ("", "endpoints") => "services/endpoints".into(),
        ("", "nodes") => "minions".into(),
        ("", "services") => "services/specs".into(),
        ("networking.k8s.io", "ingresses") => "ingress".into(),
        ("apiextensions.k8s.io" | "apiregistration.k8s.io", resource) => {
            format!("{group}/{resource}")
        }
        (_, resource) => resource.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storage_keys_match_upstream() {
        let registry = Registry::builtin(Arc::new(Schema::new()));
        let key =
            |g: &str, r: &str, ns: &str| registry.row(&Gvr::new(g, "v1", r)).unwrap().key(ns, "x");
        assert_eq!(key("", "services", "n"), "/registry/services/specs/n/x");
        assert_eq!(key("", "nodes", ""), "/registry/minions/x");
        assert_eq!(key("networking.k8s.io", "ingresses", "n"), "/registry/ingress/n/x");
        assert_eq!(key("apps", "deployments", "n"), "/registry/deployments/n/x");
        assert_eq!(
            key("apiextensions.k8s.io", "customresourcedefinitions", ""),
            "/registry/apiextensions.k8s.io/customresourcedefinitions/x"
        );
        assert_eq!(key("events.k8s.io", "events", "n"), "/registry/events/n/x");
    }

    #[test]
    fn storage_version_hashes_match_upstream() {
        let registry = Registry::builtin(Arc::new(Schema::new()));
        let hash = |g: &str, v: &str, r: &str| {
            registry.row(&Gvr::new(g, v, r)).unwrap().storage_hash.clone()
        };
        assert_eq!(hash("", "v1", "configmaps"), "qFsyl6wFWjQ=");
        assert_eq!(hash("events.k8s.io", "v1", "events"), "r2yiGXH7wu8=");
        assert_eq!(hash("apps", "v1", "deployments"), "8aSe+NMegvE=");
    }
}
