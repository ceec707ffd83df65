//! Why a volume is not translated.

/// Why a volume cannot be translated, with upstream's texts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TranslationError {
    /// The volume ID of AWS has another form.
    #[error(
        "failed to translate Kubernetes ID to EBS Volume ID Invalid format for AWS volume ({0})"
    )]
    AwsVolume(String),
    /// The zones of a regional disk do not name one region.
    #[error("failed to get region from zones: {0}")]
    GceRegion(RegionError),
    /// An Azure disk that is not a managed one.
    #[error("kind({0}) is not supported in csi migration")]
    AzureKind(String),
    /// A share of Azure without a namespace of its secret.
    #[error("could not find a secret namespace in PersistentVolumeSource or ClaimRef")]
    AzureSecretNamespace,
}

/// Why zones of GCE do not name a region.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegionError {
    /// A zone has another form.
    #[error("zone in unexpected format, expected: {{locale}}-{{region}}-{{zone}}, got: {0}")]
    Zone(String),
    /// The zones are in several regions.
    #[error("multiple or no regions gotten from zones, got: {0}")]
    Regions(String),
}
