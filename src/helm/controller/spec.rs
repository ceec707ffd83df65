//! The fields of HelmChart and HelmChartConfig, as k3s has them.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// A reference to an object in the namespace of the chart.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Reference {
    pub(super) name: String,
}

/// Values in keys of a Secret.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct SecretValues {
    pub(super) name: String,
    pub(super) keys: Vec<String>,
    pub(super) ignore_updates: bool,
}

/// `spec` of a HelmChart.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ChartSpec {
    pub(super) target_namespace: String,
    pub(super) create_namespace: bool,
    pub(super) chart: String,
    pub(super) version: String,
    pub(super) repo: String,
    #[serde(rename = "repoCA")]
    pub(super) repo_ca: String,
    #[serde(rename = "repoCAConfigMap")]
    pub(super) repo_ca_config_map: Option<Reference>,
    pub(super) set: BTreeMap<String, Value>,
    pub(super) values: Option<Value>,
    pub(super) values_content: String,
    pub(super) values_secrets: Vec<SecretValues>,
    pub(super) helm_version: String,
    pub(super) bootstrap: bool,
    pub(super) take_ownership: bool,
    pub(super) server_side: String,
    pub(super) force_conflicts: bool,
    pub(super) chart_content: String,
    pub(super) job_image: String,
    pub(super) back_off_limit: Option<u32>,
    pub(super) timeout: Option<String>,
    pub(super) failure_policy: String,
    pub(super) auth_secret: Option<Reference>,
    pub(super) auth_pass_credentials: bool,
    #[serde(rename = "insecureSkipTLSVerify")]
    pub(super) insecure_skip_tls_verify: bool,
    #[serde(rename = "plainHTTP")]
    pub(super) plain_http: bool,
    pub(super) docker_registry_secret: Option<Reference>,
    pub(super) pod_security_context: Option<Value>,
    pub(super) security_context: Option<Value>,
    pub(super) driver: String,
}

/// `spec` of a HelmChartConfig.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ConfigSpec {
    pub(super) values: Option<Value>,
    pub(super) values_content: String,
    pub(super) values_secrets: Vec<SecretValues>,
    pub(super) failure_policy: String,
    pub(super) server_side: String,
    pub(super) force_conflicts: Option<bool>,
}

impl ChartSpec {
    /// The fields that are set and change nothing, because no job runs.
    pub(super) fn without_effect(&self) -> Vec<&'static str> {
        let fields = [
            ("bootstrap", self.bootstrap),
            ("jobImage", !self.job_image.is_empty()),
            ("podSecurityContext", self.pod_security_context.is_some()),
            ("securityContext", self.security_context.is_some()),
        ];
        fields.iter().filter(|(_, is_set)| *is_set).map(|(name, _)| *name).collect()
    }

    /// Where the chart comes from, for events.
    pub(super) fn source(&self) -> String {
        let version = &self.version;
        if !self.chart_content.is_empty() {
            return "inline spec.chartContent".into();
        }
        if self.chart.starts_with("oci://") {
            return match version.is_empty() {
                true => format!("latest stable version from OCI registry {}", self.chart),
                false => format!("version {version} from OCI registry {}", self.chart),
            };
        }
        if self.chart.contains("://") {
            return self.chart.clone();
        }
        let (chart, repo) = (&self.chart, &self.repo);
        match version.is_empty() {
            true => format!("latest stable version of {chart} from chart repository {repo}"),
            false => format!("{chart} version {version} from chart repository {repo}"),
        }
    }
}

fn is(reference: &Option<Reference>, name: &str) -> bool {
    reference.as_ref().is_some_and(|reference| reference.name == name)
}

pub(super) fn refers_to_secret(chart: &ChartSpec, config: Option<&ConfigSpec>, name: &str) -> bool {
    let of_config = config.into_iter().flat_map(|config| &config.values_secrets);
    let mut values = chart.values_secrets.iter().chain(of_config);
    values.any(|secret| secret.name == name && !secret.ignore_updates)
        || is(&chart.auth_secret, name)
        || is(&chart.docker_registry_secret, name)
}

pub(super) fn refers_to_config_map(chart: &ChartSpec, _: Option<&ConfigSpec>, name: &str) -> bool {
    is(&chart.repo_ca_config_map, name)
}
