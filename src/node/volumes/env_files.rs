//! The values of `fileKeyRef`, read from files of the emptyDir volumes of a pod.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use api::k8s::api::core::v1 as core;

use super::PodVolumes;
use super::error::EnvFileReadError;
use super::subpath;
use crate::pods::cri_config::InvalidPodSpec;
use crate::pods::cri_config::env_file::{self, FileKey, FileKeyError};
use crate::pods::pod::{Pod, PodContainer};

/// The most bytes of a file, which are those of a ConfigMap. Upstream has no limit.
const MAX_FILE: u64 = 1 << 20;

/// The most bytes of all values of a container. The kernel does not start a process whose arguments
/// and variables have more.
const MAX_VALUES: usize = 6 << 20;

/// A volume and a path in it.
type FileOfVolume = (String, String);

/// The values that the variables of a container refer to.
#[derive(Debug, Default)]
pub(crate) struct FileKeys(HashMap<(FileOfVolume, String), Result<FileKey, FileKeyError>>);

impl FileKeys {
    /// Returns what a selector of the container selects.
    ///
    /// # Errors
    ///
    /// The volume is missing, or the file is missing or invalid.
    pub(crate) fn get(&self, selector: &core::FileKeySelector) -> Result<FileKey, FileKeyError> {
        let file = (selector.volume_name.clone(), selector.path.clone());
        let found = self.0.get(&(file, selector.key.clone())).cloned();
        found.unwrap_or_else(|| Err(FileKeyError::NoVolume(selector.volume_name.clone())))
    }
}

/// Reads the values that the variables of a container refer to, each file once. The files are read
/// for every instance of a container.
///
/// # Errors
///
/// The read has panicked. Errors of files are those of their keys.
pub(crate) async fn read(
    pod: &Pod,
    member: &PodContainer,
    volumes: &PodVolumes,
) -> Result<FileKeys, InvalidPodSpec> {
    let mut files: HashMap<FileOfVolume, (PathBuf, Vec<String>)> = HashMap::new();
    let variables = member.container.env.iter().flatten();
    let selectors = variables.filter_map(|v| v.value_from.as_ref()?.file_key_ref.as_ref());
    for selector in selectors {
        let is_empty_dir =
            |v: &core::Volume| v.name == selector.volume_name && v.empty_dir.is_some();
        if !pod.spec().volumes.iter().flatten().any(is_empty_dir) {
            continue;
        }
        let Some(volume) = volumes.paths.get(&selector.volume_name) else { continue };
        let file = (selector.volume_name.clone(), selector.path.clone());
        let (_, keys) = files.entry(file).or_insert_with(|| (volume.path.clone(), Vec::new()));
        keys.push(selector.key.clone());
    }
    if files.is_empty() {
        return Ok(FileKeys::default());
    }
    let work = base::tasks::blocking(move || read_files(files));
    let (out, failed) = work.await.map_err(|error| InvalidPodSpec(error.to_string()))?;
    if let Some(((volume, path), error)) = failed {
        let container = member.name();
        tracing::warn!(pod = %pod.key, container, volume, path, %error, "cannot parse env file");
    }
    Ok(out)
}

/// Reads the keys of files below the directories of their volumes; also returns the first error.
fn read_files(
    files: HashMap<FileOfVolume, (PathBuf, Vec<String>)>,
) -> (FileKeys, Option<(FileOfVolume, EnvFileReadError)>) {
    let (mut out, mut failed) = (HashMap::new(), None);
    let mut room = MAX_VALUES;
    for (file, (volume, keys)) in files {
        let mut fail = |error| {
            failed.get_or_insert_with(|| (file.clone(), error));
            FileKeyError::NotParsed
        };
        let content = content(&volume, &file.1).map_err(&mut fail);
        for key in keys {
            let found = content.as_ref().map_err(Clone::clone).and_then(|(content, path)| {
                let value = value(content, &key, &mut room).map_err(&mut fail)?;
                Ok(FileKey { value, path: path.clone() })
            });
            out.insert((file.clone(), key), found);
        }
    }
    (FileKeys(out), failed)
}

/// Returns the value of a key, and takes its bytes from the room for values.
fn value(content: &[u8], key: &str, room: &mut usize) -> Result<Option<Vec<u8>>, EnvFileReadError> {
    let value = env_file::value_of(content, key)?;
    let length = value.as_ref().map_or(0, Vec::len);
    *room = room.checked_sub(length).ok_or(EnvFileReadError::ValuesTooLarge(MAX_VALUES))?;
    Ok(value)
}

/// Returns the content of a file of a volume, and its path on the host.
fn content(volume: &Path, path: &str) -> Result<(Vec<u8>, PathBuf), EnvFileReadError> {
    let (file, path): (File, PathBuf) = subpath::open_file(volume, path)?;
    let mut content = Vec::new();
    let length = file.take(MAX_FILE.saturating_add(1)).read_to_end(&mut content)?;
    if u64::try_from(length).is_ok_and(|length| length <= MAX_FILE) {
        Ok((content, path))
    } else {
        Err(EnvFileReadError::FileTooLarge(MAX_FILE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::pod::tests::pod;
    use crate::volumes::directory::VolumePath;
    use serde_json::json;

    /// What a container of a pod with the emptyDir `e` and the hostPath `h`, both in `folder`, gets
    /// for the key `A`.
    async fn key(folder: &Path, volume: &str, path: &str) -> Result<FileKey, FileKeyError> {
        let selector = json!({"volumeName": volume, "path": path, "key": "A"});
        let variable = json!({"name": "V", "valueFrom": {"fileKeyRef": selector}});
        let pod = pod(json!({"containers": [{"name": "c", "env": [variable]}],
            "volumes": [{"name": "e", "emptyDir": {}}, {"name": "not-mounted", "emptyDir": {}},
                {"name": "h", "hostPath": {"path": "/"}}]}));
        let path_of =
            |name: &str| (name.to_owned(), VolumePath::mounted(folder.to_path_buf(), false));
        let paths = [path_of("e"), path_of("h")].into();
        let volumes = PodVolumes { paths, refresh_at: None };
        let found = read(&pod, &pod.containers[0], &volumes).await.unwrap();
        found.get(&serde_json::from_value(selector).unwrap())
    }

    /// `TestMakeEnvironmentVariablesWithFileKeyRef` of `pkg/kubelet`.
    #[tokio::test]
    async fn keys_are_read_from_files_of_empty_dirs() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("sub/a.env");
        std::fs::create_dir(home.path().join("sub")).unwrap();
        std::fs::write(&file, "# text\n\nB='2'\nA='1'\n").unwrap();
        let found = FileKey { value: Some(b"1".to_vec()), path: file.clone() };
        for path in ["sub/a.env", "./sub//a.env", "/sub/a.env"] {
            assert_eq!(key(home.path(), "e", path).await, Ok(found.clone()), "{path}");
        }
        std::fs::write(&file, "B='2'\n").unwrap();
        let missing = FileKey { value: None, path: file.clone() };
        assert_eq!(key(home.path(), "e", "sub/a.env").await, Ok(missing));
        std::fs::write(&file, "A = '1'\n").unwrap();
        let invalid = Err(FileKeyError::NotParsed);
        for path in ["sub/a.env", "sub/none.env", "sub", "sub/a.env/b"] {
            assert_eq!(key(home.path(), "e", path).await, invalid, "{path}");
        }
        for volume in ["h", "not-mounted", "none"] {
            let error = key(home.path(), volume, "sub/a.env").await.unwrap_err();
            let text = format!("cannot find the volume \"{volume}\" referenced by FileKeyRef");
            assert_eq!(error.to_string(), text);
        }
    }

    #[tokio::test]
    async fn links_do_not_lead_out_of_the_volume_and_only_files_are_read() {
        let home = tempfile::tempdir().unwrap();
        let volume = home.path().join("volume");
        std::fs::create_dir(&volume).unwrap();
        let outside = home.path().join("outside.env");
        std::fs::write(&outside, "A='secret'\n").unwrap();
        std::fs::write(volume.join("a.env"), "A='1'\n").unwrap();
        for (target, link) in [
            (outside.as_path(), "absolute"),
            (Path::new("../outside.env"), "parent"),
            (Path::new("/proc/self/root"), "magic"),
            (Path::new("a.env"), "inside"),
            (Path::new("/a.env"), "from-root"),
            (Path::new("../a.env"), "above-root"),
        ] {
            std::os::unix::fs::symlink(target, volume.join(link)).unwrap();
        }
        nix::unistd::mkfifo(&volume.join("pipe"), nix::sys::stat::Mode::S_IRUSR).unwrap();
        let outside = format!("magic{}", outside.display());
        for path in ["absolute", "parent", "pipe", outside.as_str(), "../outside.env"] {
            assert_eq!(key(&volume, "e", path).await, Err(FileKeyError::NotParsed), "{path}");
        }
        // As with `SecureJoin` of upstream, the volume is the root of its links.
        let found = FileKey { value: Some(b"1".to_vec()), path: volume.join("a.env") };
        for path in ["inside", "from-root", "above-root"] {
            assert_eq!(key(&volume, "e", path).await, Ok(found.clone()), "{path}");
        }
    }

    #[test]
    fn files_and_values_are_bounded() {
        let home = tempfile::tempdir().unwrap();
        let comment = "#".repeat(1023) + "\n";
        std::fs::write(home.path().join("a.env"), comment.repeat(1024)).unwrap();
        assert!(content(home.path(), "a.env").is_ok());
        std::fs::write(home.path().join("a.env"), comment.repeat(1024) + "\n").unwrap();
        let error = content(home.path(), "a.env").unwrap_err();
        assert_eq!(error.to_string(), "the file has more than 1048576 bytes");
        let mut room = 5;
        assert!(value(b"A='123'", "A", &mut room).is_ok());
        assert!(matches!(
            value(b"A='123'", "A", &mut room),
            Err(EnvFileReadError::ValuesTooLarge(_))
        ));
    }
}
