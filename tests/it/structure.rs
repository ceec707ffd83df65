//! The imports between the source files of each crate: floors and circles.

use std::path::Path;

use crate::imports::{Imports, Module};

/// Files that an import circle may have: those of one idea that was split.
const CIRCLE_MAX: usize = 8;

/// The crates with a folder of their own, and the root package.
const CRATES: &[&str] = &[
    "src",
    "src/addons",
    "src/api",
    "src/apiserver",
    "src/base",
    "src/client",
    "src/cluster",
    "src/component_config",
    "src/controllers",
    "src/encryption",
    "src/etcd",
    "src/go_template",
    "src/helm",
    "src/http_proxy",
    "src/ingress",
    "src/kcel",
    "src/lookup",
    "src/net",
    "src/node",
    "src/printers",
    "src/resource_metrics",
    "src/scheduler",
    "src/settings",
    "src/store",
    "src/stream",
    "src/vertical_autoscaler",
    "src/webhook",
];

/// The floors of a crate from the bottom to the top. A module belongs to the floor that names it or
/// its nearest ancestor, and imports its own floor and those below only.
type Floors = &'static [&'static [&'static str]];

const APISERVER: Floors = &[
    // What a request and a response are made of.
    &["serialization", "request", "response", "interfaces"],
    // What every floor above counts and traces.
    &["metrics", "request_tracing", "request::scope"],
    // The stored objects.
    &["registry", "crd", "request::options", "request::size"],
    &["audit", "metrics::request_totals"],
    // The parts that decide about requests.
    &[
        "admission",
        "authn",
        "authz",
        "aggregator",
        "connect",
        "discovery",
        "priority_and_fairness",
        "reviews",
        "bootstrap",
        "deprecated_apis",
    ],
    // What filters and handlers share.
    &["state"],
    &[
        "request::context",
        "request::input",
        "priority_and_fairness::reconcile",
        "priority_and_fairness::status",
        "metrics::exposition",
        "response::encode",
        "response::chunked",
        "response::protobuf_list",
    ],
    &["write"],
    &["handlers"],
    &["filters"],
    // The server, and how requests reach it.
    &["server", "listen", "security", "fuzzing"],
];

const NODE: Floors = &[
    // The machine, and tables that need nothing else.
    &[
        "digest",
        "file_watcher",
        "generic_devices::pattern",
        "generic_devices::selector",
        "machine",
        "priority",
        "machine_shutdown",
        "resource_usage",
        "events",
        "volume_usage",
        "volumes::mounts",
        "volumes::shared_mount",
        "volumes::device",
        "volumes::selinux::label",
        "volumes::selinux::labels",
        "volumes::selinux::machine",
        "status::not_ready",
        "runtime::registries::config",
        "runtime::registries::rewrite",
        "runtime::containerd::snapshotter",
        "runtime::images::name",
        "image_access::policy",
        "image_credentials::keyring",
        "image_credentials::provider_config",
        "image_credentials::provider_validation",
        "resource_managers::config",
        "resource_managers::container_cpus",
        "resource_managers::cpu::options",
        "resource_managers::cpu_set",
        "resource_managers::cpu_topology",
        "resource_managers::infeasible_resize",
        "resource_managers::machine_topology",
        "resource_managers::memory::reservation",
        "resource_managers::metrics",
        "resource_managers::numa_mask",
        "resource_managers::topology::config",
        "static_pods::url_config",
        "user_namespaces::id_range",
    ],
    &["config"],
    &["runtime"],
    // One pod: its parts, what is observed of it, and what follows for the runtime.
    &[
        "pods::pod",
        "pods::rejection",
        "pods::condition_types",
        "pods::observed",
        "pods::plan",
        "pods::probe_metrics",
        "pods::resources",
        "pods::resource_claims",
        "pods::capacity",
        "pods::pod_level",
        "pods::resize",
        "pods::objects",
        "pods::cri_config",
        "pods::admission::supported_fields",
        "events::recorder",
        "cgroups",
        "eviction::pressure",
        "eviction::ranking",
    ],
    // What pods need from the API server and from plugins, and where pods come from besides the
    // API server.
    &[
        "credentials",
        "csi",
        "devices",
        "dynamic_resources",
        "generic_devices",
        "local_driver",
        "plugins",
        "resource_managers",
        "static_pods",
        "user_namespaces",
        "status::writer",
        "volumes::fibre_channel::disk",
        "volumes::iscsi::disk",
        "volumes::scsi::device_files",
        "volumes::scsi::error",
        "volumes::scsi::programs",
        "volumes::scsi::state",
        "volumes::scsi::volume",
        "volumes::selinux",
        "context::labels",
        "image_registry",
        "image_credentials",
        "image_access",
    ],
    // The handles and caches that tasks share.
    &["context"],
    // The parts of a pod's life.
    &[
        "status",
        "probes",
        "volumes",
        "pods::handle",
        "pods::table",
        "pods::admission",
        "pods::image_pull",
    ],
    // Workers and their manager.
    &["pods"],
    // Tasks that act on all pods.
    &[
        "housekeeping",
        "eviction",
        "kubelet_api",
        "devices::pod_resources",
        "resource_managers::cpu_sets",
    ],
    &["agent"],
    &["fuzzing"],
];

const STORE: Floors = &[
    // What users and implementations of the store agree on.
    &["encoding", "contract"],
    &["timing", "store_record", "watchers", "bolt"],
    &["mvcc"],
    // What lies on disk.
    &["snapshot", "log"],
    &["local"],
    // The ways to replicate, or to keep the data elsewhere.
    &["raft", "external"],
    &["reset"],
    &["open"],
    &["fuzzing"],
];

fn floor_of(floors: Floors, module: &Module) -> usize {
    if module.is_empty() {
        return floors.len();
    }
    let mut path = module.clone();
    while !path.is_empty() {
        let name = path.join("::");
        if let Some(floor) = floors.iter().position(|names| names.contains(&name.as_str())) {
            return floor;
        }
        path.pop();
    }
    panic!("the module {} is on no floor: add it to the table", module.join("::"));
}

fn is_test(module: &Module) -> bool {
    module.iter().any(|name| name == "tests" || name.ends_with("_test") || name == "fake")
}

fn name(module: &Module) -> String {
    if module.is_empty() { "the crate's root".into() } else { module.join("::") }
}

fn upward_imports(folder: &str, floors: Floors) -> Vec<String> {
    let imports = Imports::read(Path::new(folder));
    let mut faults = Vec::new();
    for (from, targets) in imports.edges() {
        if is_test(&from) {
            continue;
        }
        let own = floor_of(floors, &from);
        for to in targets.iter().filter(|to| floor_of(floors, to) > own) {
            let reasons: Vec<String> = imports.reasons(&from, to).into_iter().collect();
            let (from, to) = (name(&from), name(to));
            faults.push(format!("{folder}: {from} imports {to}, a floor above: {reasons:?}"));
        }
    }
    faults
}

#[test]
fn modules_import_only_their_own_floor_and_those_below() {
    let mut faults = upward_imports("src/apiserver", APISERVER);
    faults.extend(upward_imports("src/node", NODE));
    faults.extend(upward_imports("src/store", STORE));
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn no_import_circle_has_more_than_eight_files() {
    let mut faults = Vec::new();
    for folder in CRATES {
        for circle in Imports::read(Path::new(folder)).circles() {
            if circle.len() > CIRCLE_MAX {
                let files: Vec<String> = circle.iter().map(name).collect();
                faults.push(format!("{folder}: {} files: {}", files.len(), files.join(", ")));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_crate_with_a_folder_is_checked() {
    let mut missing = Vec::new();
    for entry in std::fs::read_dir("src").unwrap() {
        let path = entry.unwrap().path();
        let folder = path.to_string_lossy().into_owned();
        // Generated code, tables and tools.
        let is_exempt = ["src/proto", "src/kinds", "src/histogram", "src/sorting", "src/xtask"];
        if path.join("Cargo.toml").exists()
            && !CRATES.contains(&folder.as_str())
            && !is_exempt.contains(&folder.as_str())
        {
            missing.push(folder);
        }
    }
    assert!(missing.is_empty(), "not in the list of crates: {missing:?}");
}
