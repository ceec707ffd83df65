//! Labels the Secrets of service account tokens with the day of their last use, for the
//! legacy-serviceaccount-token-cleaner-controller of this cluster.

use std::convert::Infallible;

use apiserver::authn::secret_token::{TokenUse, TokenUses};
use apiserver::{ApiServer, User};
use base::{Kind, Tasks};
use client::Patch;

use super::in_process::ClientMaker;
use super::leader::APISERVER_AGENT;

/// Writes the labels as the API server, until shutdown. A label that cannot be written is written
/// with the next use of the token.
pub(super) fn start(mut uses: TokenUses, server: &ApiServer, tasks: &Tasks) {
    let client = ClientMaker::new(server, tasks).client(User::apiserver(), APISERVER_AGENT);
    let shutdown = tasks.shutdown().clone();
    tasks.spawn(Kind::Critical, "token-uses", async move {
        loop {
            let token_use = tokio::select! {
                token_use = uses.recv() => token_use,
                () = shutdown.requested() => None,
            };
            let Some(TokenUse { namespace, secret, patch }) = token_use else {
                return Ok::<_, Infallible>(());
            };
            let patch = Patch::Merge(&patch);
            let gvr = &lookup::SECRETS;
            if let Err(error) = client.patch_value(gvr, &namespace, &secret, "", &patch).await {
                tracing::warn!(namespace, secret, %error, "cannot label a token with its last use");
            }
        }
    });
}
