//! Chart repositories: `index.yaml`, and the archive that it names (`pkg/repo/v1` of Helm).

use bytes::Bytes;
use serde::Deserialize;
use url::Url;

use super::http::{Client, Get};
use super::{ARCHIVE_MAX, FetchError, HttpError, Source};
use crate::version::{Constraints, Version};
use crate::yaml;

/// The largest index in bytes; that of the largest public repositories has some 30 MB.
const INDEX_MAX: usize = 64 << 20;

/// The repository does not have the chart.
#[derive(Debug, thiserror::Error)]
pub enum RepositoryError {
    /// Its index cannot be read.
    #[error("the index of chart repository {repository} cannot be read: {reason}")]
    Index {
        /// Address of the repository.
        repository: String,
        /// Why.
        reason: String,
    },
    /// No chart of this name.
    #[error("chart {chart:?} not found in repository {repository}")]
    NoChart {
        /// Name of the chart.
        chart: String,
        /// Address of the repository.
        repository: String,
    },
    /// No version in the range.
    #[error("chart {chart:?} version {version:?} not found in repository {repository}")]
    NoVersion {
        /// Name of the chart.
        chart: String,
        /// The range.
        version: String,
        /// Address of the repository.
        repository: String,
    },
    /// The archive differs from its digest in the index.
    #[error("the archive {url} differs from its digest in the index of the repository")]
    Digest {
        /// Address of the archive.
        url: String,
    },
}

#[derive(Deserialize)]
struct Index {
    #[serde(default)]
    entries: std::collections::BTreeMap<String, Option<Vec<ChartVersion>>>,
}

#[derive(Debug, Deserialize)]
struct ChartVersion {
    #[serde(default)]
    version: String,
    #[serde(default)]
    urls: Option<Vec<String>>,
    #[serde(default)]
    digest: Option<String>,
}

/// Downloads the archive of `chart`.
pub(super) async fn download(
    client: &Client,
    chart: &str,
    source: &Source,
) -> Result<Bytes, FetchError> {
    let repository = source.repository.as_str();
    let index_url = format!("{}/index.yaml", repository.trim_end_matches('/'));
    let auth = source.credentials.as_ref();
    let index = client.get(&index_url, &Get { auth, ..Get::new(INDEX_MAX) }).await?;
    let (chart, version) = (chart.to_owned(), source.version.clone());
    let owned = repository.to_owned();
    let picked = base::tasks::blocking(move || pick(&index, &owned, &chart, &version)).await;
    let entry = picked.map_err(|e| RepositoryError::Index {
        repository: repository.to_owned(),
        reason: e.to_string(),
    })??;
    let base = format!("{}/", repository.trim_end_matches('/'));
    let bad = |reason: String| HttpError::Url { url: base.clone(), reason };
    let base_url = Url::parse(&base).map_err(|e| bad(e.to_string()))?;
    let relative = entry.urls.as_ref().and_then(|urls| urls.first()).map_or("", String::as_str);
    let url = base_url.join(relative).map_err(|e| bad(e.to_string()))?;
    if url.scheme() == "oci" {
        return Ok(super::oci::pull(client, url.as_str(), source).await?);
    }
    let is_same_host = url.origin() == base_url.origin();
    let get = Get {
        auth: auth.filter(|_| is_same_host || source.pass_credentials),
        pass_credentials: source.pass_credentials,
        ..Get::new(ARCHIVE_MAX)
    };
    let archive = client.get(url.as_str(), &get).await?;
    let digest = entry.digest.unwrap_or_default();
    let digest = digest.trim_start_matches("sha256:");
    if !digest.is_empty() && !digest.eq_ignore_ascii_case(&super::oci::sha256(&archive)) {
        return Err(RepositoryError::Digest { url: url.to_string() }.into());
    }
    Ok(archive)
}

/// The entry of the exact version, or the highest one in the range; without a version the highest
/// stable one.
fn pick(
    index: &[u8],
    repository: &str,
    chart: &str,
    version: &str,
) -> Result<ChartVersion, RepositoryError> {
    let (chart, repository) = (chart.to_owned(), repository.to_owned());
    let unreadable =
        |reason: String| RepositoryError::Index { repository: repository.clone(), reason };
    let value = yaml::parse(index).map_err(|e| unreadable(e.to_string()))?;
    let mut index: Index = serde_json::from_value(value).map_err(|e| unreadable(e.to_string()))?;
    let Some(Some(entries)) = index.entries.remove(&chart) else {
        return Err(RepositoryError::NoChart { chart, repository });
    };
    let missing = || RepositoryError::NoVersion {
        chart: chart.clone(),
        version: version.to_owned(),
        repository: repository.clone(),
    };
    let versions = entries.iter().map(|entry| entry.version.as_str());
    let at = choose(versions, version).ok_or_else(missing)?;
    entries.into_iter().nth(at).ok_or_else(missing)
}

/// The position of the chosen version.
pub(super) fn choose<'a>(
    versions: impl Iterator<Item = &'a str> + Clone,
    wanted: &str,
) -> Option<usize> {
    let exact = || versions.clone().position(|version| version == wanted);
    if let Some(at) = (!wanted.is_empty()).then(exact).flatten() {
        return Some(at);
    }
    let constraint = Constraints::parse(if wanted.is_empty() { "*" } else { wanted }).ok()?;
    let parsed =
        versions.enumerate().filter_map(|(at, text)| Some((Version::parse(text).ok()?, at)));
    let fitting = parsed.filter(|(version, _)| constraint.matches(version));
    fitting.max_by(|(a, _), (b, _)| a.cmp(b)).map(|(_, at)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_version_in_the_range_is_chosen() {
        let index = br#"
apiVersion: v1
entries:
  app:
  - {version: 1.1.0, urls: [a-1.1.0.tgz]}
  - {version: 2.0.0-rc.1, urls: [rc]}
  - {version: 1.2.0, urls: [a-1.2.0.tgz]}
  - {version: 0.9.0, urls: [old]}
"#;
        for (wanted, want) in
            [("", "1.2.0"), ("1.1.0", "1.1.0"), ("^0.9", "0.9.0"), (">0-0", "2.0.0-rc.1")]
        {
            assert_eq!(pick(index, "r", "app", wanted).unwrap().version, want, "{wanted}");
        }
        let error = pick(index, "http://r", "none", "").unwrap_err().to_string();
        assert_eq!(error, "chart \"none\" not found in repository http://r");
        let error = pick(index, "http://r", "app", "3").unwrap_err().to_string();
        assert_eq!(error, "chart \"app\" version \"3\" not found in repository http://r");
    }
}
