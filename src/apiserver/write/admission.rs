//! Admission of a write: the mutating and validating side of every plugin; the mutating side runs
//! twice when webhooks request reinvocation.

use api::Status;
use parking_lot::Mutex;
use serde_json::Value;

use super::{BINDING, Write};
use crate::admission::quota::Reservation;
use crate::admission::reinvocation::ReinvocationContext;
use crate::admission::{Operation, Options, Request};
use crate::metrics::admission::Step;
use crate::registry::metadata;

/// JSON pointer of the managed fields.
const MANAGED_FIELDS: &str = "/metadata/managedFields";

impl Write<'_> {
    fn admission<'b>(
        &'b self,
        operation: Operation,
        name: &'b str,
        old: Option<&'b Value>,
        reinvocation: &'b ReinvocationContext,
        reservation: &'b Mutex<Option<Reservation>>,
    ) -> Request<'b> {
        Request {
            operation,
            gvr: &self.row.spec.gvr,
            gvk: &self.row.spec.gvk,
            subresource: self.subresource,
            namespace: &self.context.info.namespace,
            name,
            user: &self.context.user,
            dry_run: self.options.dry_run,
            old,
            options: self.admission_options(operation),
            reinvocation,
            reservation,
            warnings: &self.context.warnings,
        }
    }

    fn admission_options(&self, operation: Operation) -> Options<'_> {
        let kind = match operation {
            Operation::Create => "CreateOptions",
            Operation::Update => "UpdateOptions",
            Operation::Delete => "DeleteOptions",
            Operation::Connect => return Options::default(),
        };
        let validation = self.context.query.get("fieldValidation").unwrap_or_default();
        Options {
            kind,
            dry_run: self.options.dry_run,
            manager: &self.options.manager,
            validation: if operation == Operation::Delete { "" } else { validation },
            more: self.delete_options.as_ref(),
        }
    }

    /// Runs the mutating side of all plugins, twice when webhooks changed the object.
    async fn mutate_with_reinvocation(
        &self,
        request: &Request<'_>,
        object: &mut Option<Value>,
    ) -> Result<(), Status> {
        self.mutate_in_round(request, object).await?;
        if request.reinvocation.begin_second_pass() {
            self.mutate_in_round(request, object).await?;
        }
        Ok(())
    }

    async fn mutate_in_round(
        &self,
        request: &Request<'_>,
        object: &mut Option<Value>,
    ) -> Result<(), Status> {
        let mut step = Step::begin("admit", request.operation);
        let mut outcome = Ok(());
        for plugin in &self.context.server.parts.admission {
            outcome = plugin.mutate(request, object).await;
            step.passed(plugin.name(), &outcome);
            if outcome.is_err() {
                break;
            }
        }
        step.end(&outcome);
        outcome
    }

    pub(super) async fn mutate(
        &self,
        operation: Operation,
        name: &str,
        old: Option<&Value>,
        value: Value,
    ) -> Result<Value, Status> {
        if operation == Operation::Update && self.subresource == BINDING {
            return Ok(value);
        }
        let (reinvocation, reservation) = (ReinvocationContext::default(), Mutex::default());
        let request = self.admission(operation, name, old, &reinvocation, &reservation);
        let owners = value.pointer(MANAGED_FIELDS).cloned();
        let mut object = Some(value);
        self.mutate_with_reinvocation(&request, &mut object).await?;
        let mut object =
            object.ok_or_else(|| Status::internal("admission took the object away"))?;
        self.restore_managed_fields(owners, &mut object);
        Ok(object)
    }

    /// Restores the managed fields when admission leaves invalid ones.
    fn restore_managed_fields(&self, owners: Option<Value>, object: &mut Value) {
        if object.pointer(MANAGED_FIELDS) == owners.as_ref() {
            return;
        }
        let Some(fault) = api::patch::apply::managed_fields_fault(object) else { return };
        let metadata = metadata::metadata_mut(object);
        match owners {
            Some(owners) => metadata.insert("managedFields".into(), owners),
            None => metadata.remove("managedFields"),
        };
        self.context.warn(format!(
            ".metadata.managedFields was in an invalid state after admission; this could be caused by an outdated mutating admission \
             controller; please fix your requests: {fault}"
        ));
    }

    /// Runs the validating side of all plugins. Returns the quota usage of the write, to be
    /// committed with it.
    pub(super) async fn admit(
        &self,
        operation: Operation,
        name: &str,
        old: Option<&Value>,
        value: Option<&Value>,
    ) -> Result<Option<Reservation>, Status> {
        // Admission has already checked the Binding object.
        if operation == Operation::Update && self.subresource == BINDING {
            return Ok(None);
        }
        let (reinvocation, reservation) = (ReinvocationContext::default(), Mutex::default());
        let request = self.admission(operation, name, old, &reinvocation, &reservation);
        let mut step = Step::begin("validate", operation);
        let mut outcome = Ok(());
        for plugin in &self.context.server.parts.admission {
            outcome = plugin.validate(&request, value).await;
            step.passed(plugin.name(), &outcome);
            if outcome.is_err() {
                break;
            }
        }
        step.end(&outcome);
        outcome.map(|()| reservation.into_inner())
    }

    /// Runs mutating and validating admission for an object that a subresource creates but does not
    /// store (a binding, an eviction, a token). Returns the object after admission.
    ///
    /// # Errors
    /// The error of the plugin that rejects the request.
    pub(crate) async fn admit_create(&self, name: &str, value: Value) -> Result<Value, Status> {
        let value = self.mutate(Operation::Create, name, None, value).await?;
        self.admit(Operation::Create, name, None, Some(&value)).await?;
        Ok(value)
    }

    /// Runs admission for a deletion, which has no new object.
    ///
    /// # Errors
    /// The error of the plugin that rejects the request.
    pub(crate) async fn admit_delete(&self, name: &str, old: &Value) -> Result<(), Status> {
        let (reinvocation, reservation) = (ReinvocationContext::default(), Mutex::default());
        let request =
            self.admission(Operation::Delete, name, Some(old), &reinvocation, &reservation);
        self.mutate_with_reinvocation(&request, &mut None).await?;
        self.admit(Operation::Delete, name, Some(old), None).await.map(drop)
    }

    /// Runs admission for a connection (exec, attach, port-forward, proxy).
    ///
    /// # Errors
    /// The error of the plugin that rejects the request.
    pub(crate) async fn admit_connect(&self, name: &str, options: &Value) -> Result<(), Status> {
        let mut object = Some(options.clone());
        let (reinvocation, reservation) = (ReinvocationContext::default(), Mutex::default());
        let request = self.admission(Operation::Connect, name, None, &reinvocation, &reservation);
        self.mutate_with_reinvocation(&request, &mut object).await?;
        self.admit(Operation::Connect, name, None, object.as_ref()).await.map(drop)
    }
}
