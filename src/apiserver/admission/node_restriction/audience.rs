//! Whether a node may request a token for an audience because a volume of the pod names it
//! (upstream's `podReferencesAudience`).

use api::csi_translation::{TranslationError, inline_driver, persistent_driver};
use api::value::{get, has, items, str_at, str_in};
use api::{Gvr, Status};
use serde_json::Value;

use super::NodeRestriction;

/// An object that a volume of the pod refers to is missing or cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ObjectError {
    /// `kind` is the resource in the singular, with the group.
    #[error("{kind} \"{name}\" not found")]
    NotFound { kind: String, name: String },
    #[error("{}", .0.message)]
    Read(Box<Status>),
    /// A volume of an in-tree plugin has no CSI driver.
    #[error(transparent)]
    Translation(#[from] TranslationError),
}

/// The errors of all volumes, in the format of Go's aggregate.
#[derive(Debug, thiserror::Error)]
#[error("{}", object_errors(.0))]
pub(super) struct ObjectErrors(Vec<ObjectError>);

fn object_errors(errors: &[ObjectError]) -> String {
    match errors {
        [one] => one.to_string(),
        several => {
            let texts: Vec<String> = several.iter().map(ToString::to_string).collect();
            format!("[{}]", texts.join(", "))
        }
    }
}

impl NodeRestriction {
    /// Whether a projected volume of the pod, or the driver of one of its CSI volumes, requests
    /// tokens for this audience.
    ///
    /// # Errors
    /// If no volume does and some claim, volume or driver is missing or cannot be read.
    pub(super) async fn names_audience(
        &self,
        namespace: &str,
        pod: &Value,
        audience: &str,
    ) -> Result<bool, ObjectErrors> {
        let mut errors = Vec::new();
        for volume in items(get(pod, "spec"), "volumes") {
            let projected = items(get(volume, "projected"), "sources").iter();
            if projected
                .filter(|s| has(s, "serviceAccountToken"))
                .any(|s| str_in(s, &["serviceAccountToken", "audience"]) == audience)
            {
                return Ok(true);
            }
            let driver = if has(volume, "csi") {
                str_in(volume, &["csi", "driver"]).to_owned()
            } else {
                let claim = if has(volume, "ephemeral") {
                    format!("{}-{}", str_in(pod, &["metadata", "name"]), str_at(volume, "name"))
                } else {
                    str_in(volume, &["persistentVolumeClaim", "claimName"]).to_owned()
                };
                let found = if claim.is_empty() {
                    inline_driver(volume, namespace).map_err(ObjectError::from)
                } else {
                    self.driver_of(namespace, &claim).await
                };
                match found {
                    Ok(driver) => driver,
                    Err(error) => {
                        errors.push(error);
                        continue;
                    }
                }
            };
            if driver.is_empty() {
                continue;
            }
            match self.existing_required(&lookup::CSI_DRIVERS, "", &driver).await {
                Ok(found) => {
                    let mut requests = items(get(&found, "spec"), "tokenRequests").iter();
                    if requests.any(|t| str_at(t, "audience") == audience) {
                        return Ok(true);
                    }
                }
                Err(error) => errors.push(error),
            }
        }
        if errors.is_empty() { Ok(false) } else { Err(ObjectErrors(errors)) }
    }

    /// The CSI driver of a claim's volume; empty if there is no driver.
    async fn driver_of(&self, namespace: &str, claim: &str) -> Result<String, ObjectError> {
        let claim =
            self.existing_required(&lookup::PERSISTENT_VOLUME_CLAIMS, namespace, claim).await?;
        let volume = str_in(&claim, &["spec", "volumeName"]);
        let volume = self.existing_required(&lookup::PERSISTENT_VOLUMES, "", volume).await?;
        let driver = str_in(&volume, &["spec", "csi", "driver"]);
        if driver.is_empty() { Ok(persistent_driver(&volume)?) } else { Ok(driver.to_owned()) }
    }

    /// Like [`NodeRestriction::existing`], but absence is an error with the message of upstream's
    /// listers.
    async fn existing_required(
        &self,
        gvr: &Gvr,
        namespace: &str,
        name: &str,
    ) -> Result<Value, ObjectError> {
        let found = self.existing(gvr, namespace, name).await;
        let found = found.map_err(|status| ObjectError::Read(Box::new(status)))?;
        found.ok_or_else(|| {
            let one = gvr.resource.strip_suffix('s').unwrap_or(&gvr.resource);
            let group =
                if gvr.group.is_empty() { String::new() } else { format!(".{}", gvr.group) };
            ObjectError::NotFound { kind: format!("{one}{group}"), name: name.to_owned() }
        })
    }
}
