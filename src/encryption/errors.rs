//! Why a value cannot be encrypted or decrypted: the errors of ciphers, of KMS plugins and of the
//! providers over them. The messages are those of upstream and of Go's libraries.

use component_config::aggregate_errors;

/// A cipher rejects its key or a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum CipherError {
    /// AES keys have 16, 24 or 32 bytes; this one has another length.
    #[error("crypto/aes: invalid key size {0}")]
    AesKeySize(usize),
    #[error("expected key size 32 for secretbox provider, got {0}")]
    SecretboxKeySize(usize),
    /// The plain value has several gigabytes.
    #[error("the value cannot be sealed")]
    TooLong,
    /// The stored value is truncated.
    #[error("the stored data was shorter than the required size")]
    TooShort,
    /// The stored value was changed, or moved from another storage key.
    #[error("cipher: message authentication failed")]
    Authentication,
    /// Upstream's message for a changed value of secretbox.
    #[error("output array was not large enough for encryption")]
    SecretboxAuthentication,
    #[error("the stored data is not a multiple of the block size")]
    BlockSize,
    #[error("invalid PKCS7 data (empty or not padded)")]
    NotPadded,
    #[error("invalid padding on input")]
    Padding,
}

/// The providers of a resource cannot encrypt or decrypt a value.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProviderError {
    #[error(transparent)]
    Cipher(#[from] CipherError),
    #[error(transparent)]
    Kms(#[from] KmsError),
    /// No key of the provider has the name in the value. `algorithm` is `AES` or `Secretbox`.
    #[error("no matching key was found for the provided {algorithm} transformer")]
    UnknownKey { algorithm: &'static str },
    /// The value is encrypted, and the only matching provider is `identity`.
    #[error("identity transformer tried to read encrypted data")]
    IdentityReadsEncrypted,
    #[error("no matching prefix found")]
    NoMatchingPrefix,
    /// Several keys or providers match, and all of them fail.
    #[error("{}", aggregate_errors(.0))]
    Several(Vec<ProviderError>),
}

/// A KMS plugin, or what it returned, is unusable.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum KmsError {
    #[error(transparent)]
    Cipher(#[from] CipherError),
    #[error("invalid seed length {0} used for key generation")]
    SeedLength(usize),
    #[error("failed to derive a key")]
    KeyDerivation,
    /// The plugin was never healthy since the start.
    #[error("got unexpected nil transformer")]
    NoSeed,
    /// The plugin has not been healthy for too long. Both times are in RFC 3339.
    #[error(
        "encryptedDEKSource with keyID hash {} expired at {expired} (current time is {now})",
        api::field::go_quote(.key_id_hash)
    )]
    Expired { key_id_hash: String, expired: String, now: String },
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// The seed of the value was not fetched before.
    #[error("failed to decrypt DEK, error: the plugin was not asked")]
    NotFetched,
    #[error("failed to decrypt DEK, error: {0}")]
    Decrypt(#[source] RpcError),
    #[error("failed to encrypt DEK, error: {0}")]
    Encrypt(#[source] RpcError),
}

/// A call of a plugin failed; the format is that of Go's gRPC library.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("rpc error: code = {code} desc = {message}")]
pub(super) struct RpcError {
    /// The name of the status code, such as `Unavailable`.
    pub(super) code: &'static str,
    pub(super) message: String,
}

/// A stored object of KMS v2 is invalid (upstream's `ValidateEncryptedObject`).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ObjectError {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("encrypted data is empty")]
    NoData,
    #[error("failed to validate encrypted DEK source: {0}")]
    Source(#[source] SourceError),
    #[error("failed to validate key id: {0}")]
    KeyId(#[source] KeyIdError),
    #[error("failed to validate annotations: {}", aggregate_errors(.0))]
    Annotations(Vec<AnnotationError>),
}

/// The protobuf encoding of a stored object is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum WireError {
    #[error("proto: cannot parse invalid wire-format data")]
    Damaged,
    #[error("unknown encryptedDEKSourceType: {0}")]
    SourceType(u64),
}

/// The encrypted seed has an invalid length, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum SourceError {
    #[error("encrypted DEK source is empty")]
    Empty,
    #[error("encrypted DEK source is {length} bytes, which exceeds the max size of {max}")]
    TooLong { length: usize, max: usize },
}

/// The ID of a key has an invalid length, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum KeyIdError {
    #[error("keyID is empty")]
    Empty,
    #[error("keyID is {length} bytes, which exceeds the max size of {max}")]
    TooLong { length: usize, max: usize },
}

/// The name of an annotation, or the total size in bytes, is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum AnnotationError {
    #[error("annotations: Required value")]
    NoName,
    /// `reason` is a message of upstream's validation of names.
    #[error("annotations: Invalid value: {}: {reason}", api::field::go_quote(.name))]
    Name { name: String, reason: String },
    #[error("total size of annotations is {size}, which exceeds the max size of {max}")]
    Size { size: usize, max: usize },
}

/// A plugin is not healthy. `provider` is its name in the configuration.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum HealthError {
    #[error(
        "failed to perform status section of the healthz check for KMS Provider {provider}, error: \
         {source}"
    )]
    Status { provider: String, source: RpcError },
    #[error("kmsv2 Provider {provider} is not healthy, error: {}", aggregate_errors(.problems))]
    NotHealthy { provider: String, problems: Vec<HealthProblem> },
}

/// A problem in the status of a plugin.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum HealthProblem {
    #[error("got unexpected healthz status: {0}")]
    Health(String),
    #[error("expected KMSv2 API version v2, got {0}")]
    Version(String),
    #[error(
        "KMSv2 API version should not change after the initial status response version {initial}, \
         got {current}"
    )]
    VersionChanged { initial: String, current: String },
    #[error("got invalid KMSv2 KeyID hash {}: {source}", api::field::go_quote(.hash))]
    KeyId { hash: String, source: KeyIdError },
    #[error(transparent)]
    Rotation(#[from] Box<RotationError>),
}

/// The seed of a new key of the plugin cannot be created.
#[derive(Debug, Clone, thiserror::Error)]
#[error(
    "failed to rotate DEK uid={}, useSeed=true, errState={}, errGen={}, statusKeyIDHash={}, \
     encryptKeyIDHash={}, stateKeyIDHash={}, expirationTimestamp={expires}",
    api::field::go_quote(.uid),
    if *.has_seed { "<nil>" } else { "got unexpected nil transformer" },
    .error.as_ref().map_or_else(|| "<nil>".to_owned(), ToString::to_string),
    api::field::go_quote(.status_key_hash),
    api::field::go_quote(.encrypt_key_hash),
    api::field::go_quote(.seed_key_hash)
)]
pub(super) struct RotationError {
    pub(super) uid: String,
    /// Whether there is a former seed.
    pub(super) has_seed: bool,
    /// The cause; `None` if the plugin encrypts with another key than that of its status.
    pub(super) error: Option<KmsError>,
    /// The hash of the key ID in the status.
    pub(super) status_key_hash: String,
    /// The hash of the key ID that the plugin encrypts with.
    pub(super) encrypt_key_hash: String,
    /// The hash of the key ID of the former seed.
    pub(super) seed_key_hash: String,
    /// The time at which the former seed expires, in RFC 3339.
    pub(super) expires: String,
}

/// Plugins are not healthy, with their positions in the configuration.
#[derive(Debug, thiserror::Error)]
#[error("{}", aggregate_errors(.0))]
pub(super) struct PluginsError(pub(super) Vec<PluginError>);

#[derive(Debug, thiserror::Error)]
#[error("kms-provider-{position}: {source}")]
pub(super) struct PluginError {
    pub(super) position: usize,
    pub(super) source: HealthError,
}
