//! The label `pod-template-hash` and names of revisions: stable over releases, since a changed hash
//! would roll every workload.

use serde_json::Value;

/// FNV-1a over the canonical JSON of `value` and the collision count, in the alphabet of generated
/// names.
pub(crate) fn hash(value: &Value, collision_count: Option<i32>) -> String {
    let mut state: u32 = 0x811c_9dc5;
    let mut feed = |bytes: &[u8]| {
        for byte in bytes {
            state = (state ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        }
    };
    // The maps of a `Value` are ordered.
    feed(value.to_string().as_bytes());
    if let Some(count) = collision_count {
        feed(&count.to_le_bytes());
    }
    safe_encode(&state.to_string())
}

/// As `k8s.io/apimachinery/pkg/util/rand.SafeEncodeString`: each byte becomes a letter that makes
/// no words.
fn safe_encode(text: &str) -> String {
    const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    text.bytes().map(|b| char::from(ALPHABET[usize::from(b) % ALPHABET.len()])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_hash_of_a_template_never_changes() {
        let template = json!({"metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "c", "image": "nginx"}]}});
        let first = hash(&template, None);
        let reordered = json!({"spec": {"containers": [{"image": "nginx", "name": "c"}]},
            "metadata": {"labels": {"app": "web"}}});
        assert_eq!(hash(&reordered, None), first);
        assert_ne!(hash(&template, Some(1)), first);
        // Upstream's encoding of "1234": bytes 49..52 modulo 27.
        assert_eq!(safe_encode("1234"), "5678");
    }
}
