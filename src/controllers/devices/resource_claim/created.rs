//! Claims that this process created, until the cache has them: without them, a retry before the
//! watch event would create a second claim.

use std::collections::VecDeque;
use std::time::Duration;

use api::k8s::api::resource::v1::ResourceClaim;
use base::clock;
use tokio::time::Instant;

use super::POD_CLAIM_ANNOTATION;

/// Maximum number of claims (upstream's `claimMutationCacheSize`).
const CLAIMS_MAX: usize = 1000;
/// After this time a claim is forgotten that the cache never had.
const TTL: Duration = Duration::from_secs(60 * 60);

/// What is needed to find a claim again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CreatedClaim {
    pub(super) namespace: String,
    pub(super) name: String,
    /// UID of the controller.
    pub(super) owner: String,
    /// The name of the entry of `spec.resourceClaims`.
    pub(super) pod_claim: Option<String>,
}

impl CreatedClaim {
    pub(super) fn of(claim: &ResourceClaim) -> Self {
        let meta = &claim.metadata;
        let annotation = meta.annotations.as_ref().and_then(|a| a.get(POD_CLAIM_ANNOTATION));
        Self {
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
            owner: client::controller_of(meta).map(|o| o.uid.clone()).unwrap_or_default(),
            pod_claim: annotation.cloned(),
        }
    }
}

/// The claims, oldest first.
#[derive(Debug, Default)]
pub(super) struct CreatedClaims {
    claims: VecDeque<(Instant, CreatedClaim)>,
}

impl CreatedClaims {
    pub(super) fn add(&mut self, claim: CreatedClaim) {
        if self.claims.len() >= CLAIMS_MAX {
            self.claims.pop_front();
        }
        self.claims.push_back((clock::now(), claim));
    }

    /// The cache has or had the claim.
    pub(super) fn remove(&mut self, namespace: &str, name: &str) {
        self.claims.retain(|(_, claim)| claim.namespace != namespace || claim.name != name);
    }

    /// The first claim that `is_wanted` accepts.
    pub(super) fn find(
        &mut self,
        is_wanted: impl Fn(&CreatedClaim) -> bool,
    ) -> Option<CreatedClaim> {
        let now = clock::now();
        self.claims.retain(|(since, _)| now.saturating_duration_since(*since) < TTL);
        self.claims.iter().map(|(_, claim)| claim).find(|claim| is_wanted(claim)).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(name: &str) -> CreatedClaim {
        let (namespace, owner) = ("n".to_owned(), "u".to_owned());
        CreatedClaim { namespace, name: name.to_owned(), owner, pod_claim: Some("c".to_owned()) }
    }

    #[tokio::test(start_paused = true)]
    async fn claims_are_kept_until_the_cache_has_them_or_an_hour_has_passed() {
        let mut created = CreatedClaims::default();
        created.add(claim("a"));
        created.add(claim("b"));
        created.remove("n", "a");
        assert_eq!(created.find(|c| c.owner == "u"), Some(claim("b")));
        tokio::time::advance(TTL).await;
        assert_eq!(created.find(|_| true), None);
        for number in 0..=CLAIMS_MAX {
            created.add(claim(&number.to_string()));
        }
        assert_eq!(created.find(|_| true), Some(claim("1")));
    }
}
