"""Compares a bill of materials with Cargo.lock and with the crates that cargo builds for a target.
usage: sbom.py FILE TARGET"""
import json
import subprocess
import sys

document = json.load(open(sys.argv[1]))
assert document["specVersion"] == "1.5" and document["bomFormat"] == "CycloneDX"
lock, name, version = {}, "", ""
for line in open("Cargo.lock"):
    key, _, value = line.strip().partition(" = ")
    value = value.strip('"')
    if key == "name":
        name = value
    if key == "version":
        version = value
    if key == "checksum":
        lock[name, version] = value
for component in document["components"]:
    if "purl" in component:
        checksum = component["hashes"][0]["content"]
        assert lock[component["name"], component["version"]] == checksum, component["name"]
        assert component["licenses"], component["name"]
tree = subprocess.run(
    ["cargo", "tree", "--locked", "--offline", "--edges=normal,build", "--prefix=none",
     "--format={p}", "--target=" + sys.argv[2]], capture_output=True, text=True, check=True).stdout
listed = {(component["name"], component["version"]) for component in document["components"]}
built = {tuple(line.replace(" v", " ").split()[:2]) for line in tree.splitlines() if line}
missing = {crate for crate in built - listed if crate[0] != "kube-lite"}
assert not missing, missing
print(len(listed), "components")
