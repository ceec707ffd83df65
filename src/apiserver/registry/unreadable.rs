//! Errors of stored values that cannot be read: upstream's corrupt objects
//! (`k8s.io/apiserver/pkg/storage/etcd3/corrupt_obj_deleter.go`).

use api::status::{Cause, Details};
use api::{Gvr, Status};
use store::KeyValue;

/// Most errors that one list reports (`maxCorruptObjErrsToAggregate`).
pub(crate) const REPORTED_MAX: usize = 100;

/// The path prefix that upstream's errors of a single read leave out.
const PATH_PREFIX: &str = "/registry";

/// Which step of reading failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Decryption.
    Transform,
    /// Decoding, or conversion to the requested version.
    Decode,
}

/// A stored value that cannot be read.
#[derive(Debug, Clone)]
pub struct Unreadable {
    key: String,
    revision: i64,
    step: Step,
    /// The cause.
    pub why: String,
}

impl Unreadable {
    /// The error of the value `kv`.
    pub(crate) fn new(kv: &KeyValue, step: Step, why: String) -> Self {
        let key = String::from_utf8_lossy(&kv.key).into_owned();
        Self { key, revision: kv.mod_revision.0, step, why }
    }

    /// The key in the store.
    pub fn key(&self) -> &str {
        &self.key
    }

    fn text(&self, key: &str) -> String {
        let (what, revision) = match self.step {
            Step::Transform => ("data from the storage is not transformable", 0),
            Step::Decode => ("object not decodable", self.revision),
        };
        format!(
            "StorageError: corrupt object, Code: 6, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: {what} revision={revision}: {}",
            self.why
        )
    }
}

impl From<Unreadable> for Status {
    /// The error of a read of only this object.
    fn from(unreadable: Unreadable) -> Self {
        let key = unreadable.key.strip_prefix(PATH_PREFIX).unwrap_or(&unreadable.key);
        Self::internal(&unreadable.text(key))
    }
}

/// The error of a list that covers these objects; `None` when there are none.
pub(crate) fn list_error(gvr: &Gvr, all: &[Unreadable]) -> Option<Status> {
    let first = all.first()?;
    let resource = api::status::qualified(&gvr.group, &gvr.resource);
    let mut message = format!(
        "failed to read one or more {resource} from the storage: {}",
        first.text(&first.key)
    );
    let reported = all.get(..REPORTED_MAX).unwrap_or(all);
    if reported.len() > 1 {
        message = format!("{message} (and {} more)", reported.len() - 1);
    }
    let mut causes: Vec<Cause> = reported
        .iter()
        .map(|unreadable| Cause {
            reason: "UnexpectedServerResponse".into(),
            message: unreadable.text(&unreadable.key),
            field: unreadable.key.clone(),
        })
        .collect();
    if all.len() >= REPORTED_MAX {
        causes.push(Cause {
            reason: "FieldValueTooMany".into(),
            message: "too many errors, the list is truncated".into(),
            field: String::new(),
        });
    }
    let mut status = Status::failure(500, "StoreReadError", message);
    status.details = Some(Details {
        name: "list".into(),
        group: gvr.group.to_string(),
        kind: gvr.resource.to_string(),
        causes,
        ..Details::default()
    });
    Some(status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use store::Revision;

    fn unreadable(key: &str, step: Step) -> Unreadable {
        let kv = KeyValue {
            key: Bytes::from(key.to_owned()),
            value: Bytes::new(),
            create_revision: Revision(1),
            mod_revision: Revision(7),
            version: 1,
            lease: 0,
        };
        Unreadable::new(&kv, step, "no key".into())
    }

    #[test]
    fn errors_of_reads_and_lists_have_upstream_texts() {
        let transform = unreadable("/registry/secrets/n/a", Step::Transform);
        let status = Status::from(transform.clone());
        assert_eq!((status.code, status.reason.as_str()), (500, "InternalError"));
        assert_eq!(
            status.message,
            "Internal error occurred: StorageError: corrupt object, Code: 6, Key: /secrets/n/a, ResourceVersion: 0, AdditionalErrorMsg: data from the storage is not transformable revision=0: no key"
        );
        let decode = unreadable("/registry/secrets/n/b", Step::Decode);
        let gvr = Gvr::new("", "v1", "secrets");
        assert_eq!(list_error(&gvr, &[]), None);
        let status = list_error(&gvr, &[transform, decode]).unwrap();
        assert_eq!((status.code, status.reason.as_str()), (500, "StoreReadError"));
        assert_eq!(
            status.message,
            "failed to read one or more secrets from the storage: StorageError: corrupt object, Code: 6, Key: /registry/secrets/n/a, ResourceVersion: 0, AdditionalErrorMsg: data from the storage is not transformable revision=0: no key (and 1 more)"
        );
        let details = status.details.unwrap();
        assert_eq!((details.name.as_str(), details.kind.as_str()), ("list", "secrets"));
        let cause = &details.causes[1];
        assert_eq!(
            (cause.reason.as_str(), cause.field.as_str()),
            ("UnexpectedServerResponse", "/registry/secrets/n/b")
        );
        assert!(cause.message.ends_with("object not decodable revision=7: no key"));
        let many = vec![unreadable("/registry/secrets/n/a", Step::Decode); REPORTED_MAX];
        let causes = list_error(&gvr, &many).unwrap().details.unwrap().causes;
        assert_eq!(causes.len(), REPORTED_MAX + 1);
        assert_eq!(causes[REPORTED_MAX].reason, "FieldValueTooMany");
    }
}
