//! The operations of served resources, independent of the OpenAPI version.

use crate::object::Gvk;
use crate::schema::{Schema, Shape};

use super::{Served, ServedSubresource, group_path};

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

/// A method of a path.
#[derive(Debug, Clone)]
pub(super) struct Operation {
    /// The path with `{name}` and `{namespace}`.
    pub(super) path: String,
    /// The HTTP method in lower case.
    pub(super) method: &'static str,
    /// The field `operationId`.
    pub(super) id: String,
    /// The field `x-kubernetes-action`.
    pub(super) action: &'static str,
    /// The field `x-kubernetes-group-version-kind`.
    pub(super) gvk: Option<Gvk>,
    /// The query parameters, with name and JSON type.
    pub(super) query: Vec<(String, &'static str)>,
    /// The type name of the request body, and whether the body is required.
    pub(super) body: Option<(String, bool)>,
    /// The status codes and type names of the responses; a stream has no type.
    pub(super) responses: Vec<(u16, Option<String>)>,
    /// Whether the operation is a patch, which has different media types.
    pub(super) patch: bool,
    /// Whether the resource is custom, without protobuf and strategic merge patch.
    pub(super) custom: bool,
    /// The tag, such as `core_v1` or `apps_v1`.
    pub(super) tag: String,
}

const LIST_QUERY: &[(&str, &str)] = &[
    ("allowWatchBookmarks", "boolean"),
    ("continue", "string"),
    ("fieldSelector", "string"),
    ("labelSelector", "string"),
    ("limit", "integer"),
    ("pretty", "string"),
    ("resourceVersion", "string"),
    ("resourceVersionMatch", "string"),
    ("sendInitialEvents", "boolean"),
    ("timeoutSeconds", "integer"),
    ("watch", "boolean"),
];
const WRITE_QUERY: &[(&str, &str)] = &[
    ("dryRun", "string"),
    ("fieldManager", "string"),
    ("fieldValidation", "string"),
    ("pretty", "string"),
];
const DELETE_QUERY: &[(&str, &str)] = &[
    ("dryRun", "string"),
    ("gracePeriodSeconds", "integer"),
    ("orphanDependents", "boolean"),
    ("pretty", "string"),
    ("propagationPolicy", "string"),
];

/// Returns the operations of all resources of one group version and of its discovery document.
pub(super) fn of_group_version(
    schema: &Schema,
    served: &[Served],
    group: &str,
    version: &str,
) -> Vec<Operation> {
    let mut out = Vec::new();
    for one in
        served.iter().filter(|s| s.gvr.group.as_ref() == group && s.gvr.version.as_ref() == version)
    {
        let maker = Maker { schema, served: one, names: Names::new(group, version), out: &mut out };
        maker.all();
    }
    if !out.is_empty() {
        let names = Names::new(group, version);
        out.push(Operation {
            path: format!("{}/", group_path(group, version)),
            method: "get",
            id: format!("get{}APIResources", names.camel),
            action: "",
            gvk: None,
            query: Vec::new(),
            body: None,
            responses: vec![(200, Some(format!("{META}.APIResourceList")))],
            patch: false,
            custom: false,
            tag: names.tag,
        });
    }
    out
}

struct Names {
    /// The group version in camel case, such as `AppsV1`.
    camel: String,
    /// The tag, such as `apps_v1`.
    tag: String,
}

impl Names {
    fn new(group: &str, version: &str) -> Self {
        let short =
            if group.is_empty() { "core" } else { group.strip_suffix(".k8s.io").unwrap_or(group) };
        let camel: String = short.split(['.', '-']).map(capitalised).collect();
        let mut chars = camel.chars();
        let lower: String =
            chars.next().map(|c| c.to_ascii_lowercase()).into_iter().chain(chars).collect();
        Self { tag: format!("{lower}_{version}"), camel: camel + &capitalised(version) }
    }
}

fn capitalised(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map(|c| c.to_ascii_uppercase()).into_iter().chain(chars).collect()
}

struct Maker<'a> {
    schema: &'a Schema,
    served: &'a Served,
    names: Names,
    out: &'a mut Vec<Operation>,
}

impl Maker<'_> {
    fn all(mut self) {
        let one = self.served;
        let base = group_path(&one.gvr.group, &one.gvr.version);
        let resource = one.gvr.resource.as_ref();
        let scoped = if one.namespaced {
            format!("{base}/namespaces/{{namespace}}/{resource}")
        } else {
            format!("{base}/{resource}")
        };
        let kind = one.gvk.kind.as_ref();
        let noun = if one.namespaced { format!("Namespaced{kind}") } else { kind.to_owned() };
        let Some(object) = self.type_name(&one.gvk) else { return };
        let list_kind = match &one.custom {
            Some(custom) => custom.list_kind.clone(),
            None => format!("{kind}List"),
        };
        let list = self.type_name(&Gvk::new(&one.gvk.group, &one.gvk.version, &list_kind));
        let has = |verb: &str| one.verbs.iter().any(|v| v == verb);

        if let Some(list) = list.filter(|_| has("list")) {
            self.lists(&base, &scoped, &noun, &list);
        }
        if has("create") {
            let answers = [200, 201, 202].map(|code| (code, Some(object.clone()))).to_vec();
            let id = format!("create{}{noun}", self.names.camel);
            self.add(
                "post",
                &scoped,
                id,
                "post",
                WRITE_QUERY,
                Some((object.clone(), true)),
                answers,
            );
        }
        if has("deletecollection") {
            self.delete_collection(&scoped, &noun);
        }
        let named = format!("{scoped}/{{name}}");
        self.object(&named, &noun, &object, &one.verbs, "");
        if has("watch") && one.custom.is_none() {
            self.watches(&base, resource, &noun, kind);
        }
        for sub in &one.subresources {
            self.subresource(&named, &noun, sub);
        }
    }

    /// Adds the list operation and, for a namespaced kind, the list over all namespaces.
    fn lists(&mut self, base: &str, scoped: &str, noun: &str, list: &str) {
        let kind = self.served.gvk.kind.clone();
        self.add(
            "get",
            scoped,
            format!("list{}{noun}", self.names.camel),
            "list",
            LIST_QUERY,
            None,
            vec![(200, Some(list.to_owned()))],
        );
        if self.served.namespaced {
            let id = format!("list{}{kind}ForAllNamespaces", self.names.camel);
            self.add(
                "get",
                &format!("{base}/{}", self.served.gvr.resource),
                id,
                "list",
                LIST_QUERY,
                None,
                vec![(200, Some(list.to_owned()))],
            );
        }
    }

    /// Adds the deletion of all objects that a selector matches.
    fn delete_collection(&mut self, scoped: &str, noun: &str) {
        let id = format!("delete{}Collection{noun}", self.names.camel);
        let query: Vec<_> = DELETE_QUERY
            .iter()
            .chain(
                LIST_QUERY
                    .iter()
                    .filter(|(n, _)| !matches!(*n, "watch" | "allowWatchBookmarks" | "pretty")),
            )
            .copied()
            .collect();
        self.add(
            "delete",
            scoped,
            id,
            "deletecollection",
            &query,
            delete_options(),
            status(&[200]),
        );
    }

    /// Adds the operations that read, replace, patch and delete one object or subresource.
    fn object(&mut self, path: &str, noun: &str, object: &str, verbs: &[String], suffix: &str) {
        let camel = self.names.camel.clone();
        let answer =
            |codes: &[u16]| codes.iter().map(|c| (*c, Some(object.to_owned()))).collect::<Vec<_>>();
        for verb in verbs {
            match verb.as_str() {
                "get" => self.add(
                    "get",
                    path,
                    format!("read{camel}{noun}{suffix}"),
                    "get",
                    &[("pretty", "string")],
                    None,
                    answer(&[200]),
                ),
                "update" => {
                    let body = Some((object.to_owned(), true));
                    self.add(
                        "put",
                        path,
                        format!("replace{camel}{noun}{suffix}"),
                        "put",
                        WRITE_QUERY,
                        body,
                        answer(&[200, 201]),
                    );
                }
                "patch" => {
                    let query: Vec<_> =
                        WRITE_QUERY.iter().copied().chain([("force", "boolean")]).collect();
                    let body = Some((format!("{META}.Patch"), true));
                    self.add(
                        "patch",
                        path,
                        format!("patch{camel}{noun}{suffix}"),
                        "patch",
                        &query,
                        body,
                        answer(&[200, 201]),
                    );
                    if let Some(last) = self.out.last_mut() {
                        last.patch = true;
                    }
                }
                "delete" => {
                    let id = format!("delete{camel}{noun}{suffix}");
                    self.add(
                        "delete",
                        path,
                        id,
                        "delete",
                        DELETE_QUERY,
                        delete_options(),
                        status(&[200, 202]),
                    );
                }
                _ => {}
            }
        }
    }

    /// Adds the deprecated watch paths.
    fn watches(&mut self, base: &str, resource: &str, noun: &str, kind: &str) {
        let event = || vec![(200, Some(format!("{META}.WatchEvent")))];
        let camel = self.names.camel.clone();
        let scoped = if self.served.namespaced {
            format!("{base}/watch/namespaces/{{namespace}}/{resource}")
        } else {
            format!("{base}/watch/{resource}")
        };
        self.add(
            "get",
            &scoped,
            format!("watch{camel}{noun}List"),
            "watchlist",
            LIST_QUERY,
            None,
            event(),
        );
        self.add(
            "get",
            &format!("{scoped}/{{name}}"),
            format!("watch{camel}{noun}"),
            "watch",
            LIST_QUERY,
            None,
            event(),
        );
        if self.served.namespaced {
            let id = format!("watch{camel}{kind}ListForAllNamespaces");
            self.add(
                "get",
                &format!("{base}/watch/{resource}"),
                id,
                "watchlist",
                LIST_QUERY,
                None,
                event(),
            );
        }
    }

    fn subresource(&mut self, named: &str, noun: &str, sub: &ServedSubresource) {
        let path = format!("{named}/{}", sub.name);
        let suffix = capitalised(&sub.name);
        let first = self.out.len();
        if sub.connect {
            self.connect(&path, noun, &suffix, sub);
        } else {
            let Some(object) = self.type_name(&sub.gvk) else { return };
            self.object(&path, noun, &object, &sub.verbs, &suffix);
            if sub.verbs.iter().any(|v| v == "create") {
                let answers = [200, 201, 202].map(|code| (code, Some(object.clone()))).to_vec();
                let id = format!("create{}{noun}{suffix}", self.names.camel);
                self.add("post", &path, id, "post", WRITE_QUERY, Some((object, true)), answers);
            }
        }
        for operation in self.out.iter_mut().skip(first) {
            operation.gvk = Some(sub.gvk.clone());
        }
    }

    /// Adds the operations of a stream or proxy; the fields of the options kind are query
    /// parameters.
    fn connect(&mut self, path: &str, noun: &str, suffix: &str, sub: &ServedSubresource) {
        let options =
            self.schema.kind(&sub.gvk).map(|id| std::sync::Arc::clone(self.schema.get(id)));
        let query: Vec<(String, &'static str)> = options
            .iter()
            .flat_map(|ty| &ty.fields)
            .filter(|f| !matches!(f.json.as_ref(), "kind" | "apiVersion"))
            .map(|f| (f.json.to_string(), json_type(&f.shape)))
            .collect();
        let proxy = sub.name == "proxy";
        let methods: &[&'static str] = if proxy {
            &["get", "post", "put", "delete", "patch", "head", "options"]
        } else {
            &["get", "post"]
        };
        let paths = [(path.to_owned(), "")]
            .into_iter()
            .chain(proxy.then(|| (format!("{path}/{{path}}"), "WithPath")));
        for (path, with) in paths {
            for method in methods {
                let id = format!(
                    "connect{}{}{noun}{suffix}{with}",
                    self.names.camel,
                    capitalised(method)
                );
                self.add(method, &path, id, "connect", &[], None, vec![(200, None)]);
                if let Some(last) = self.out.last_mut() {
                    last.query.clone_from(&query);
                }
            }
        }
    }

    #[allow(clippy::too_many_arguments, reason = "one row of the table of operations")]
    fn add(
        &mut self,
        method: &'static str,
        path: &str,
        id: String,
        action: &'static str,
        query: &[(&str, &'static str)],
        body: Option<(String, bool)>,
        responses: Vec<(u16, Option<String>)>,
    ) {
        self.out.push(Operation {
            path: path.to_owned(),
            method,
            id,
            action,
            gvk: Some(self.served.gvk.clone()),
            query: query.iter().map(|(name, ty)| ((*name).to_owned(), *ty)).collect(),
            body,
            responses,
            patch: false,
            custom: self.served.custom.is_some(),
            tag: self.names.tag.clone(),
        });
    }

    fn type_name(&self, gvk: &Gvk) -> Option<String> {
        let own = (&gvk.group, &gvk.version) == (&self.served.gvk.group, &self.served.gvk.version);
        if own && self.served.custom.is_some() {
            return Some(super::custom::model(gvk));
        }
        self.schema.kind(gvk).map(|id| self.schema.get(id).name.to_string())
    }
}

fn delete_options() -> Option<(String, bool)> {
    Some((format!("{META}.DeleteOptions"), false))
}

fn status(codes: &[u16]) -> Vec<(u16, Option<String>)> {
    codes.iter().map(|c| (*c, Some(format!("{META}.Status")))).collect()
}

fn json_type(shape: &Shape) -> &'static str {
    match shape {
        Shape::Bool => "boolean",
        Shape::Int32 | Shape::Int64 => "integer",
        _ => "string",
    }
}
