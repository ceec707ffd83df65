//! Runs the strategy of the kind and its validation rules, and adds their warnings.

use api::Status;
use api::field::Error;
use serde_json::Value;

use super::{Write, device_claims};
use crate::registry::metadata;
use crate::registry::strategy::WriteContext;
use crate::registry::unsupported::{self, IngressClasses};

impl Write<'_> {
    /// Prepares a new object with its strategy and validates it.
    ///
    /// # Errors
    /// 422.
    pub(super) async fn validate_create(&self, value: &mut Value) -> Result<(), Status> {
        let spec = &self.row.spec;
        // A PUT of the status that creates the object creates all of it.
        let context = WriteContext { subresource: "", ..self.strategy_context() };
        spec.strategy.prepare_for_create(&context, value);
        let name = metadata::text(value, "name").to_owned();
        let size = &self.context.size;
        size.checkpoint().await;
        let mut errors = metadata::validate(value, spec.namespaced, spec.strategy.as_ref());
        // The rules of these kinds leave metadata to the generic validation, which runs when there
        // is no other error.
        errors.extend(device_claims::authorization_errors(self.context, value, None).await);
        let own = spec.strategy.validate(&context, value);
        let generic = matches!(
            (&*spec.gvk.group, &*spec.gvk.kind),
            ("policy", "PodDisruptionBudget") | ("", "Event")
        );
        if generic && !own.is_empty() {
            errors.clear();
        }
        errors.extend(own);
        if !errors.is_empty() {
            return Err(self.invalid(&name, &errors));
        }
        size.checkpoint().await;
        for warning in spec.strategy.warnings_on_create(&context, value) {
            self.context.warn(warning);
        }
        Ok(())
    }

    /// Prepares a changed object with its strategy and validates it.
    ///
    /// # Errors
    /// 422.
    pub(super) async fn validate_update(
        &self,
        name: &str,
        old: &Value,
        value: &mut Value,
    ) -> Result<(), Status> {
        let spec = &self.row.spec;
        let context = self.strategy_context();
        spec.strategy.prepare_for_update(&context, value, old);
        metadata::keep_on_update(value, old);
        let mut errors = metadata::validate_update(value, old, spec.namespaced);
        errors.extend(device_claims::authorization_errors(self.context, value, Some(old)).await);
        errors.extend(spec.strategy.validate_update(&context, value, old));
        if !errors.is_empty() {
            return Err(self.invalid(name, &errors));
        }
        for warning in spec.strategy.warnings_on_update(&context, value, old) {
            self.context.warn(warning);
        }
        Ok(())
    }

    /// Warns about fields that are stored without effect, except on a write of the status, which
    /// does not set them.
    pub(super) async fn warn_unsupported(&self, value: &Value) {
        if !self.options.dry_run && self.subresource != "status" {
            let kind = &self.row.spec.gvk;
            let classes = IngressClasses::for_kind(kind, &*self.context.server.objects).await;
            for warning in unsupported::warnings(kind, value, &classes) {
                self.context.warn(warning);
            }
        }
    }

    fn invalid(&self, name: &str, errors: &[Error]) -> Status {
        let kind = &self.row.spec.gvk;
        // Upstream has one type for the events of both groups, and names the older one.
        let group = if &*kind.group == "events.k8s.io" { "" } else { &*kind.group };
        Status::invalid(group, &kind.kind, name, errors)
    }
}
