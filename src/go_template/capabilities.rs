//! `.Capabilities` of Helm.

use std::sync::Arc;

use crate::engine::Capabilities;
use crate::error::Failure;
use crate::signature::Param;
use crate::value::{Elem, List, Object, Value};

/// A Go struct of named fields.
struct Fields {
    name: &'static str,
    fields: Vec<(&'static str, Value)>,
    /// What `String` gives, and the methods that give the same.
    text: String,
    methods: &'static [&'static str],
}

impl Object for Fields {
    fn type_name(&self) -> &'static str {
        self.name
    }

    fn field(&self, name: &str) -> Option<Value> {
        let field = self.fields.iter().find(|(field, _)| *field == name);
        field.map(|(_, value)| value.clone())
    }

    fn method(&self, name: &str) -> Option<&'static [Param]> {
        self.methods.contains(&name).then_some(&[])
    }

    fn call(&self, _name: &str, _args: &[Value]) -> Result<Value, Failure> {
        Ok(Value::from(self.text.clone()))
    }

    fn text(&self) -> String {
        self.text.clone()
    }

    fn data(&self) -> Value {
        self.fields.iter().cloned().collect()
    }
}

pub(crate) struct CapabilitiesObject(Fields);

impl CapabilitiesObject {
    pub(crate) fn new(capabilities: &Capabilities) -> Self {
        let kube = Fields {
            name: "common.KubeVersion",
            fields: vec![
                ("Version", Value::from(capabilities.kube_version.as_str())),
                ("Major", Value::from(capabilities.kube_major.as_str())),
                ("Minor", Value::from(capabilities.kube_minor.as_str())),
            ],
            text: normalized(&capabilities.kube_version),
            methods: &["String", "GitVersion"],
        };
        let helm = Fields {
            name: "version.BuildInfo",
            fields: vec![
                ("Version", Value::from(capabilities.helm_version.as_str())),
                ("GitCommit", Value::from("")),
                ("GitTreeState", Value::from("")),
                ("GoVersion", Value::from("")),
                ("KubeClientVersion", Value::from("v1.37")),
            ],
            text: format!("{{{}    v1.37}}", capabilities.helm_version),
            methods: &[],
        };
        let versions =
            capabilities.api_versions.iter().map(|version| Value::from(version.as_str()));
        let versions = List::of(Elem::Versions, versions.collect());
        let text = format!("&{{{} [] {}}}", capabilities.kube_version, helm.text);
        Self(Fields {
            name: "*common.Capabilities",
            fields: vec![
                ("KubeVersion", Value::Object(Arc::new(kube))),
                ("APIVersions", Value::List(versions)),
                ("HelmVersion", Value::Object(Arc::new(helm))),
            ],
            text,
            methods: &[],
        })
    }
}

/// The version without what follows the numbers, for constraints.
fn normalized(version: &str) -> String {
    let end = version.find(['-', '+']).unwrap_or(version.len());
    version.get(..end).unwrap_or_default().to_owned()
}

impl Object for CapabilitiesObject {
    fn type_name(&self) -> &'static str {
        self.0.type_name()
    }

    fn field(&self, name: &str) -> Option<Value> {
        self.0.field(name)
    }

    fn text(&self) -> String {
        self.0.text()
    }

    fn data(&self) -> Value {
        self.0.data()
    }
}
