//! An image of the program: an OCI image layout in a tar archive, which `ctr images import`,
//! `docker load` and `skopeo` read.

use anyhow::Result;
use serde_json::{Value, json};

use super::archive::{Tar, gzip, sha256};
use super::programs::Architecture;

/// Content of an image.
pub(super) struct Content<'a> {
    pub(super) architecture: Architecture,
    pub(super) version: &'a str,
    /// Date of the sources in seconds since 1970, and in RFC 3339.
    pub(super) date: (u64, &'a str),
    /// The program.
    pub(super) program: &'a [u8],
    /// Name and content of containerd, its shim and runc; they must be static.
    pub(super) runtime: &'a [(String, Vec<u8>)],
    /// CA certificates in PEM.
    pub(super) certificates: Option<&'a [u8]>,
}

/// The archive.
pub(super) fn layout(content: &Content<'_>) -> Result<Vec<u8>> {
    let layer = layer(content)?;
    let compressed = gzip(&layer)?;
    let config = serde_json::to_vec(&config(content, &sha256(&layer)))?;
    let name = format!("kube-lite:{}", content.version);
    let manifest = serde_json::to_vec(&json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
        "layers": [descriptor("application/vnd.oci.image.layer.v1.tar+gzip", &compressed)],
    }))?;
    let mut listed = descriptor("application/vnd.oci.image.manifest.v1+json", &manifest);
    listed["platform"] = json!({"os": "linux", "architecture": content.architecture.image_name()});
    listed["annotations"] = json!({
        "io.containerd.image.name": format!("docker.io/library/{name}"),
        "org.opencontainers.image.ref.name": content.version,
    });
    let index = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [listed],
    });
    let blob = |bytes: &[u8]| format!("blobs/sha256/{}", sha256(bytes));
    // The form that `docker load` reads.
    let docker = json!([{
        "Config": blob(&config), "RepoTags": [name], "Layers": [blob(&compressed)],
    }]);
    let mut tar = Tar::new(content.date.0);
    tar.directory("blobs", 0o755)?;
    tar.directory("blobs/sha256", 0o755)?;
    let mut blobs = [&config, &compressed, &manifest].map(|bytes| (blob(bytes), bytes));
    blobs.sort();
    for (name, bytes) in blobs {
        tar.file(&name, 0o644, bytes)?;
    }
    tar.file("index.json", 0o644, &serde_json::to_vec(&index)?)?;
    tar.file("manifest.json", 0o644, &serde_json::to_vec(&docker)?)?;
    tar.file("oci-layout", 0o644, b"{\"imageLayoutVersion\":\"1.0.0\"}")?;
    Ok(tar.finish())
}

fn layer(content: &Content<'_>) -> Result<Vec<u8>> {
    let mut tar = Tar::new(content.date.0);
    tar.directory("bin", 0o755)?;
    tar.file("bin/kube-lite", 0o755, content.program)?;
    for (name, bytes) in content.runtime {
        tar.file(&format!("bin/{name}"), 0o755, bytes)?;
    }
    tar.directory("etc", 0o755)?;
    tar.file("etc/group", 0o644, b"root:x:0:\n")?;
    tar.file("etc/passwd", 0o644, b"root:x:0:0:root:/root:/sbin/nologin\n")?;
    if let Some(certificates) = content.certificates {
        for directory in ["etc/ssl", "etc/ssl/certs"] {
            tar.directory(directory, 0o755)?;
        }
        tar.file("etc/ssl/certs/ca-certificates.crt", 0o644, certificates)?;
    }
    for (directory, mode) in [("root", 0o700), ("run", 0o755), ("tmp", 0o1777), ("var", 0o755)] {
        tar.directory(directory, mode)?;
    }
    tar.directory("var/lib", 0o755)?;
    Ok(tar.finish())
}

fn config(content: &Content<'_>, layer: &str) -> Value {
    // Without containerd in the image the container is a control plane.
    let command = if content.runtime.is_empty() {
        json!(["server", "--disable-agent"])
    } else {
        json!(["server"])
    };
    json!({
        "architecture": content.architecture.image_name(),
        "os": "linux",
        "created": content.date.1,
        "config": {
            "Entrypoint": ["/bin/kube-lite"], "Cmd": command,
            "Env": ["PATH=/bin:/var/lib/kube-lite/bin"],
            "ExposedPorts": {"6443/tcp": {}},
            "Volumes": {"/var/lib/kube-lite": {}},
            "Labels": {
                "org.opencontainers.image.title": "kube-lite",
                "org.opencontainers.image.version": content.version,
                "org.opencontainers.image.licenses": "Apache-2.0",
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{layer}")]},
        "history": [{"created": content.date.1, "created_by": "kube-lite release"}],
    })
}

fn descriptor(media_type: &str, bytes: &[u8]) -> Value {
    json!({
        "mediaType": media_type, "digest": format!("sha256:{}", sha256(bytes)),
        "size": bytes.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(runtime: &[(String, Vec<u8>)]) -> Content<'_> {
        Content {
            architecture: Architecture::Aarch64,
            version: "v1",
            date: (0, "1970-01-01T00:00:00Z"),
            program: b"program",
            runtime,
            certificates: None,
        }
    }

    #[test]
    fn the_same_content_gives_the_same_bytes() {
        assert_eq!(layout(&example(&[])).unwrap(), layout(&example(&[])).unwrap());
    }

    #[test]
    fn an_image_without_a_runtime_runs_the_control_plane_only() {
        let runtime = [("containerd".to_owned(), Vec::new())];
        let command = |content: &Content<'_>| config(content, "")["config"]["Cmd"].clone();
        assert_eq!(command(&example(&[])), json!(["server", "--disable-agent"]));
        assert_eq!(command(&example(&runtime)), json!(["server"]));
        assert_eq!(config(&example(&[]), "")["architecture"], "arm64");
    }
}
