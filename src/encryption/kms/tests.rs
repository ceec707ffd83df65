//! A plugin that is healthy, rotates its key, stops responding, and returns invalid data.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::*;

const KEY: &str = "/registry/secrets/default/s";
/// Created with Go's `golang.org/x/crypto/hkdf` and `crypto/cipher`: seed 0, 1, 2, …, info of 9,
/// nonce of 7.
const SEEDED: &str = "CQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkHBwcHBwcHBwcHBwctXFNEDSc5OFsyEz3Y7DxD7EKZX8pygGqTVUWfYdW17nc=";

/// Encrypts by prepending the name of its key.
#[derive(Debug)]
struct Fake {
    key: Mutex<String>,
    status: Mutex<Result<Status, RpcError>>,
    decryptions: Mutex<usize>,
}

impl Fake {
    fn new(key: &str) -> Arc<Self> {
        let fake = Self {
            key: Mutex::new(key.to_owned()),
            status: Mutex::new(Ok(Status::default())),
            decryptions: Mutex::new(0),
        };
        fake.set_status("ok", "v2", key);
        Arc::new(fake)
    }

    fn set_status(&self, health: &str, version: &str, key_id: &str) {
        let (version, health, key_id) = (version.into(), health.into(), key_id.into());
        *self.status.lock() = Ok(Status { version, health, key_id });
    }
}

#[async_trait]
impl Plugin for Fake {
    async fn status(&self) -> Result<Status, RpcError> {
        self.status.lock().clone()
    }

    async fn encrypt(&self, _uid: &str, plain: &[u8]) -> Result<SealedKey, RpcError> {
        let key_id = self.key.lock().clone();
        let ciphertext = [key_id.as_bytes(), b"|", plain].concat();
        let annotations = [("example.com".to_owned(), vec![1])].into();
        Ok(SealedKey { ciphertext, key_id, annotations })
    }

    async fn decrypt(
        &self,
        _uid: &str,
        ciphertext: &[u8],
        key_id: &str,
        annotations: &Annotations,
    ) -> Result<Vec<u8>, RpcError> {
        *self.decryptions.lock() += 1;
        assert!(annotations.contains_key("example.com"));
        let plain = ciphertext.strip_prefix(format!("{key_id}|").as_bytes());
        let error = || RpcError { code: "NotFound", message: "no key".to_owned() };
        plain.map(<[u8]>::to_vec).ok_or_else(error)
    }
}

fn kms(plugin: &Arc<Fake>) -> Arc<Kms> {
    Kms::new("mock", Arc::clone(plugin) as Arc<dyn Plugin>, &Arc::default())
}

fn sealed(kms: &Kms) -> Result<Bytes, String> {
    let mut out = kms.prefix().as_bytes().to_vec();
    kms.seal(KEY, b"{}", &mut out).map_err(|e| e.to_string())?;
    Ok(out.into())
}

fn opened(kms: &Kms, stored: &Bytes) -> Result<(Vec<u8>, bool), String> {
    let rest = stored.strip_prefix(kms.prefix().as_bytes()).unwrap();
    kms.open(KEY, rest).map_err(|e| e.to_string())
}

#[tokio::test(start_paused = true)]
async fn seeds_of_other_starts_are_fetched_from_the_plugin_once() {
    let plugin = Fake::new("one");
    let first = kms(&plugin);
    assert_eq!(sealed(&first).unwrap_err(), "got unexpected nil transformer");
    first.check().await.unwrap();
    let stored = sealed(&first).unwrap();
    assert!(stored.starts_with(b"k8s:enc:kms:v2:mock:"));
    assert_ne!(stored, sealed(&first).unwrap());
    assert_eq!(opened(&first, &stored).unwrap(), (b"{}".to_vec(), false));
    assert_eq!(*plugin.decryptions.lock(), 0);
    let second = kms(&plugin);
    second.check().await.unwrap();
    assert!(opened(&second, &stored).is_err());
    second.fetch(&[&stored, &stored]).await;
    assert_eq!(opened(&second, &stored).unwrap(), (b"{}".to_vec(), false));
    assert_eq!(*plugin.decryptions.lock(), 1);
    let moved = second.open("/other", stored.strip_prefix(second.prefix().as_bytes()).unwrap());
    assert_eq!(moved.unwrap_err().to_string(), "cipher: message authentication failed");
}

#[tokio::test(start_paused = true)]
async fn a_new_key_of_the_plugin_makes_old_values_stale() {
    let plugin = Fake::new("one");
    let kms = kms(&plugin);
    kms.check().await.unwrap();
    let old = sealed(&kms).unwrap();
    // The status names another key than the one that encrypts: the old seed stays in use.
    plugin.set_status("ok", "v2", "two");
    base::clock::sleep(POLL_INTERVALS.0).await;
    let error = kms.check().await.unwrap_err().to_string();
    assert!(
        error.starts_with("kmsv2 Provider mock is not healthy, error: failed to rotate DEK uid=\""),
        "{error}"
    );
    assert!(error.contains("useSeed=true, errState=<nil>, errGen=<nil>, statusKeyIDHash=\"sha256:3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3\""), "{error}");
    assert!(!opened(&kms, &sealed(&kms).unwrap()).unwrap().1);
    *plugin.key.lock() = "two".into();
    base::clock::sleep(STATUS_TTL.1).await;
    kms.check().await.unwrap();
    assert!(opened(&kms, &old).unwrap().1, "stale");
    assert!(!opened(&kms, &sealed(&kms).unwrap()).unwrap().1);
}

#[tokio::test(start_paused = true)]
async fn an_unhealthy_plugin_stops_writes_after_three_minutes_but_not_reads() {
    let plugin = Fake::new("one");
    let kms = kms(&plugin);
    kms.check().await.unwrap();
    let stored = sealed(&kms).unwrap();
    *plugin.status.lock() = Err(RpcError { code: "Unavailable", message: "gone".to_owned() });
    kms.check().await.unwrap();
    base::clock::sleep(STATUS_TTL.0).await;
    let want = "failed to perform status section of the healthz check for KMS Provider mock, error: rpc error: code = Unavailable desc = gone";
    assert_eq!(kms.check().await.unwrap_err().to_string(), want);
    base::clock::sleep(WRITES_MAX - STATUS_TTL.0).await;
    sealed(&kms).unwrap();
    base::clock::sleep(Duration::from_millis(1)).await;
    let error = sealed(&kms).unwrap_err();
    assert!(error.starts_with("encryptedDEKSource with keyID hash \"sha256:7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed\" expired at "), "{error}");
    opened(&kms, &stored).unwrap();
    for (health, version, key, want) in [
        (
            "bad",
            "v2",
            "one",
            "kmsv2 Provider mock is not healthy, error: got unexpected healthz status: bad",
        ),
        (
            "ok",
            "v1",
            "one",
            "kmsv2 Provider mock is not healthy, error: expected KMSv2 API version v2, got v1",
        ),
        (
            "ok",
            "v2beta1",
            "one",
            "kmsv2 Provider mock is not healthy, error: KMSv2 API version should not change after the initial status response version v2, got v2beta1",
        ),
        (
            "ok",
            "v2",
            "",
            "kmsv2 Provider mock is not healthy, error: got invalid KMSv2 KeyID hash \"\": keyID is empty",
        ),
    ] {
        plugin.set_status(health, version, key);
        base::clock::sleep(STATUS_TTL.1).await;
        assert_eq!(kms.check().await.unwrap_err().to_string(), want);
    }
    plugin.set_status("ok", "v2", "one");
    base::clock::sleep(STATUS_TTL.1).await;
    kms.check().await.unwrap();
    sealed(&kms).unwrap();
}

#[test]
fn seeded_values_from_gos_libraries_are_read() {
    let seed: Vec<u8> = (0..32).collect();
    let source = Source::of(SourceType::Seed, &seed).unwrap();
    let plain = source.open(KEY, &STANDARD.decode(SEEDED).unwrap()).unwrap();
    assert_eq!(plain, b"{\"kind\":\"Secret\"}");
    let error = Source::of(SourceType::Seed, &seed[..31]).err().unwrap();
    assert_eq!(error.to_string(), "invalid seed length 31 used for key generation");
}
