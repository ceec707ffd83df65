//! The bill of materials of a program: CycloneDX 1.5 in JSON, from `cargo metadata`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::{Value, json};

/// What this module needs of the output of `cargo metadata`.
#[derive(Deserialize)]
pub(super) struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    description: Option<String>,
    repository: Option<String>,
    source: Option<String>,
}

#[derive(Deserialize)]
struct Resolve {
    root: Option<String>,
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<DependencyKind>,
}

#[derive(Deserialize)]
struct DependencyKind {
    kind: Option<String>,
}

/// The dependencies of the program for one target.
pub(super) fn metadata(root: &Path, target: &str) -> Result<Metadata> {
    let cargo = super::programs::cargo();
    let output = Command::new(cargo)
        .current_dir(root)
        .args(["metadata", "--locked", "--format-version=1", "--filter-platform", target])
        .output()
        .context("cannot run cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).context("cannot parse the output of cargo metadata")
}

/// The version of the program in Cargo.toml.
pub(super) fn version(metadata: &Metadata) -> Result<&str> {
    let root = metadata.resolve.root.as_deref().context("the workspace has no root package")?;
    let package = metadata.packages.iter().find(|package| package.id == root);
    Ok(&package.context("the root package is missing")?.version)
}

/// The bill of materials. `lock` is the text of Cargo.lock, `version` that of the release,
/// `timestamp` the date of the sources in RFC 3339.
pub(super) fn document(
    metadata: &Metadata,
    lock: &str,
    version: &str,
    timestamp: &str,
) -> Result<String> {
    let root = metadata.resolve.root.as_deref().context("the workspace has no root package")?;
    let edges = edges(metadata);
    let packages: BTreeMap<&str, &Package> =
        metadata.packages.iter().map(|package| (package.id.as_str(), package)).collect();
    let checksums = checksums(lock);
    let mut components = Vec::new();
    let mut dependencies = Vec::new();
    for id in reachable(root, &edges) {
        let package = packages.get(id).with_context(|| format!("{id} is not in the metadata"))?;
        let on = edges.get(id).into_iter().flatten().filter_map(|id| packages.get(id));
        let mut on: Vec<String> = on.map(|package| reference(package)).collect();
        on.sort();
        dependencies.push(json!({"ref": reference(package), "dependsOn": on}));
        if id != root {
            components.push(component(package, &checksums));
        }
    }
    let by_reference = |value: &Value, key: &str| value[key].as_str().map(str::to_owned);
    components.sort_by_key(|value| by_reference(value, "bom-ref"));
    dependencies.sort_by_key(|value| by_reference(value, "ref"));
    let program = packages.get(root).context("the root package is missing")?;
    let document = json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": timestamp,
            "component": {
                "type": "application", "bom-ref": reference(program), "name": program.name,
                "version": version, "licenses": licenses(program),
            },
        },
        "components": components,
        "dependencies": dependencies,
    });
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

/// The dependencies of each package that are part of the build: without those of tests.
fn edges(metadata: &Metadata) -> BTreeMap<&str, BTreeSet<&str>> {
    let built = |dependency: &&Dependency| {
        dependency.dep_kinds.iter().any(|kind| kind.kind.as_deref() != Some("dev"))
    };
    metadata
        .resolve
        .nodes
        .iter()
        .map(|node| {
            let on = node.deps.iter().filter(built).map(|dependency| dependency.pkg.as_str());
            (node.id.as_str(), on.collect())
        })
        .collect()
}

/// `root` and all packages that it depends on.
fn reachable<'a>(root: &'a str, edges: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::from([root]);
    let mut queue = vec![root];
    while let Some(id) = queue.pop() {
        for next in edges.get(id).into_iter().flatten() {
            if found.insert(next) {
                queue.push(next);
            }
        }
    }
    found
}

/// The package URL of crates.io; workspace members have a reference of their own.
fn reference(package: &Package) -> String {
    match package.source {
        Some(_) => format!("pkg:cargo/{}@{}", package.name, package.version),
        None => format!("workspace:{}@{}", package.name, package.version),
    }
}

fn licenses(package: &Package) -> Value {
    package.license.as_ref().map_or_else(
        || json!([]),
        // Older crates separate alternatives with a slash.
        |license| json!([{"expression": license.replace('/', " OR ")}]),
    )
}

fn component(package: &Package, checksums: &BTreeMap<(&str, &str), &str>) -> Value {
    let mut component = json!({
        "type": "library", "bom-ref": reference(package), "name": package.name,
        "version": package.version, "licenses": licenses(package), "scope": "required",
    });
    if package.source.is_some() {
        component["purl"] = json!(reference(package));
    }
    if let Some(sum) = checksums.get(&(package.name.as_str(), package.version.as_str())) {
        component["hashes"] = json!([{"alg": "SHA-256", "content": sum}]);
    }
    if let Some(description) = &package.description {
        component["description"] = json!(description.trim());
    }
    if let Some(repository) = &package.repository {
        component["externalReferences"] = json!([{"type": "vcs", "url": repository}]);
    }
    component
}

/// The checksums of Cargo.lock by name and version.
fn checksums(lock: &str) -> BTreeMap<(&str, &str), &str> {
    lock.split("[[package]]")
        .filter_map(|block| {
            let value = |key| block.lines().find_map(|line| quoted(line, key));
            Some(((value("name")?, value("version")?), value("checksum")?))
        })
        .collect()
}

/// The value of a line `key = "value"`.
fn quoted<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.strip_prefix(key)?.strip_prefix(" = \"")?.strip_suffix('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\n\
        source = \"registry+https://github.com/rust-lang/crates.io-index\"\n\
        checksum = \"00ff\"\n\n[[package]]\nname = \"kube-lite\"\nversion = \"0.1.0\"\n";

    fn example() -> Metadata {
        let package = |name: &str, version: &str, source: Option<&str>| {
            json!({"id": name, "name": name, "version": version, "license": "MIT/Apache-2.0",
                "description": null, "repository": null, "source": source})
        };
        let on = |id: &str, kind: Option<&str>| json!({"pkg": id, "dep_kinds": [{"kind": kind}]});
        serde_json::from_value(json!({
            "packages": [
                package("kube-lite", "0.1.0", None), package("a", "1.0.0", Some("registry")),
                package("member", "0.1.0", None), package("test-only", "2.0.0", Some("registry")),
            ],
            "resolve": {"root": "kube-lite", "nodes": [
                {"id": "kube-lite", "deps": [on("member", None), on("test-only", Some("dev"))]},
                {"id": "member", "deps": [on("a", Some("build"))]},
                {"id": "a", "deps": []}, {"id": "test-only", "deps": []},
            ]},
        }))
        .unwrap()
    }

    #[test]
    fn components_are_what_the_build_needs_with_license_checksum_and_package_url() {
        let text = document(&example(), LOCK, "v0.1.0", "2026-01-31T00:00:00Z").unwrap();
        let document: Value = serde_json::from_str(&text).unwrap();
        let names: Vec<&str> = document["components"]
            .as_array()
            .unwrap()
            .iter()
            .map(|component| component["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["a", "member"]);
        let first = &document["components"][0];
        assert_eq!(first["purl"], "pkg:cargo/a@1.0.0");
        assert_eq!(first["hashes"][0]["content"], "00ff");
        assert_eq!(first["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(document["metadata"]["component"]["version"], "v0.1.0");
        assert_eq!(
            document["dependencies"][0],
            json!({"ref": "pkg:cargo/a@1.0.0", "dependsOn": []})
        );
    }

    #[test]
    fn the_version_is_that_of_the_root_package() {
        assert_eq!(version(&example()).unwrap(), "0.1.0");
    }
}
