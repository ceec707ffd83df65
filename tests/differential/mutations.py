"""Random requests, derived from real objects: every kind and verb, most of them wrong in one place.
A seed and a number determine a request on every machine. A request is a dry run (`dryRun=All`) or
reads, so that both servers keep their prepared state."""

import copy, json, random, string

WORDS = [
    "", "a", "x", "0", "-1", "True", "null", "Bad_Name!", "a.b", "A", "a/b", "a/b/c", "../x", "é",
    "a" * 64, "a" * 254, "10", "10m", "1.5Gi", "-5Mi", "1e3", "abc def", "10%", "101%", "10.0.0.1",
    "::1", "10.0.0.0/8", "2026-01-01T00:00:00Z", "Always", "Never", "TCP", "tcp", "default",
    "kubernetes.io/x", "example.com/x", "http", "*", "$(x)", "{}", " ", "a\nb", "-a", "a-", "1a",
    "ClusterFirst", "None", "/", "/a", "a:b",
]
NUMBERS = [
    0, 1, -1, 2, 3, 7, 10, 100, 65535, 65536, 2147483647, 2147483648, -2147483649,
    9223372036854775807, 9223372036854775808, 1.5, 1e3, -0.0,
]
ANYTHING = [None, True, False, [], {}, "x", 1, [1], ["a"], [None], {"a": "b"}, [{}], 1.5, ""]
SELECTORS = [
    "", "a=b", "a!=b", "a", "!a", "a in (b,c)", "a notin (b)", "a>1", "a<x", "a=b,c", "a=b=c", "==",
    "a in b", "in in (in)", "a,", ",", "a=é", "a in ()", "x/y/z=1", "!a=b", "a==b", "a = b",
]
FIELDS = [
    "metadata.name=x", "metadata.namespace=a", "spec.nodeName=", "spec.nodeName!=n",
    "status.phase=Running", "type=x", "involvedObject.kind=Pod", "nope=1", "metadata.name",
    "metadata.name=a,metadata.name=b", "metadata.labels.a=b", "=", "a=b", "spec.unschedulable=true",
    "metadata.name==x", "status.successful=1", "reason=a", "spec.serviceAccountName=default",
    "metadata.name=a\\,b", "metadata.name=a\\b",
]
ACCEPTS = [
    "application/json", "application/yaml", "application/vnd.kubernetes.protobuf",
    "application/json;as=Table;v=v1;g=meta.k8s.io",
    "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
    "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
    "application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json", "text/html", "*/*",
    "application/*", "application/cbor", "application/json;as=Nope;v=v1;g=meta.k8s.io",
    "application/json;stream=watch", "application/json;pretty=1", "",
    "application/json;q=0.1,application/yaml;q=0.9", "nonsense",
]
PATCHES = {
    "json": "application/json-patch+json", "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json", "apply": "application/apply-patch+yaml",
}
VERBS = [
    ("create", 34), ("update", 22), ("merge", 7), ("strategic", 8), ("json", 7), ("apply", 9),
    ("read", 8), ("delete", 3), ("subresource", 8), ("odd", 4),
]
SUBRESOURCES = [
    "status", "scale", "eviction", "binding", "token", "ephemeralcontainers", "resize", "approval",
    "finalize", "log", "proxy", "attach", "nope",
]


def paths(value, at=()):
    if at:
        yield at
    if isinstance(value, dict):
        for key, part in value.items():
            yield from paths(part, at + (key,))
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from paths(part, at + (index,))


def get(value, at):
    for key in at:
        value = value[key]
    return value


def change(value, at, new):
    parent = get(value, at[:-1])
    parent[at[-1]] = new


class Maker:
    """`bases`: name → {path, obj}; `full`: (apiVersion, kind) → an object with every field, for
    fields that a base lacks."""

    def __init__(self, bases, full, seed):
        self.bases, self.full, self.seed = bases, full, seed
        self.names = sorted(bases)
        self.pool = {}
        for base in bases.values():
            for at in paths(base["obj"]):
                value = get(base["obj"], at)
                if isinstance(at[-1], str):
                    self.pool.setdefault(at[-1], []).append(value)

    def mutate(self, r, obj, times):
        for _ in range(times):
            all_paths = (
                [at for at in paths(obj) if at[0] not in ("apiVersion", "kind")]
                if r.random() < 0.98
                else list(paths(obj))
            )
            if not all_paths:
                return obj
            at = r.choice(all_paths)
            old, kind = get(obj, at), r.random()
            if kind < 0.14:
                parent = get(obj, at[:-1])
                del parent[at[-1]]
            elif kind < 0.30 and isinstance(at[-1], str) and self.pool.get(at[-1]):
                change(obj, at, copy.deepcopy(r.choice(self.pool[at[-1]])))
            elif kind < 0.40:
                change(obj, at, copy.deepcopy(r.choice(ANYTHING)))
            elif kind < 0.50:
                self.graft(r, obj)
            elif kind < 0.55 and isinstance(old, dict):
                old[r.choice(["zzz", "name", "spec", "Name", "x-y"])] = copy.deepcopy(
                    r.choice(ANYTHING)
                )
            elif isinstance(old, bool):
                change(obj, at, not old)
            elif isinstance(old, (int, float)):
                change(obj, at, r.choice(NUMBERS + [old + 1, old - 1, -old]))
            elif isinstance(old, str):
                change(
                    obj, at,
                    r.choice(
                        WORDS + [old + "x", old.upper(), old + ".", old[:-1], old + "é", old * 2]
                    ),
                )
            elif isinstance(old, list) and old:
                one = copy.deepcopy(r.choice(old))
                change(
                    obj, at,
                    r.choice([
                        old + [one], [one], old[::-1], [],
                        old + [copy.deepcopy(r.choice(ANYTHING))], old * 20,
                    ]),
                )
            elif isinstance(old, dict) and old:
                key = r.choice(sorted(old, key=str))
                old[r.choice(WORDS[:20])] = copy.deepcopy(old[key])
            else:
                change(obj, at, copy.deepcopy(r.choice(ANYTHING)))
        return obj

    def graft(self, r, obj):
        """A field that the object does not have, from the full object of its kind, at the same
        path."""
        full = (
            self.full.get((obj.get("apiVersion"), obj.get("kind")))
            if isinstance(obj, dict)
            else None
        )
        missing = []

        def walk(ours, theirs):
            if isinstance(ours, dict) and isinstance(theirs, dict):
                for key, value in theirs.items():
                    if key in ours:
                        walk(ours[key], value)
                    elif key not in ("status", "managedFields"):
                        missing.append((ours, key, value))
            elif isinstance(ours, list) and isinstance(theirs, list) and theirs:
                for part in ours:
                    walk(part, theirs[0])

        walk(obj, full)
        if missing:
            ours, key, value = r.choice(missing)
            ours[key] = copy.deepcopy(value)
            if r.random() < 0.5:
                self.mutate_leaf(r, ours, key)

    def mutate_leaf(self, r, parent, key):
        leaves = [
            at for at in paths({key: parent[key]}) if not isinstance(get(parent, at), (dict, list))
        ]
        if leaves:
            at = r.choice(leaves)
            old = get(parent, at)
            change(
                parent, at,
                r.choice(
                    NUMBERS
                    if isinstance(old, (int, float)) and not isinstance(old, bool)
                    else WORDS if isinstance(old, str) else ANYTHING
                ),
            )

    def request(self, number):
        r = random.Random(f"{self.seed}/{number}")
        name = r.choice(self.names)
        base = self.bases[name]
        obj, path = copy.deepcopy(base["obj"]), base["path"]
        verb = r.choices([v for v, _ in VERBS], [w for _, w in VERBS])[0]
        own = obj.get("metadata", {}).get("name")
        if verb in (
            "update", "merge", "strategic", "json", "delete", "subresource",
        ) and not base.get("stored"):
            verb = "create"
        query, headers, method, body = {"dryRun": "All"}, {}, "POST", None
        strict = r.choice(
            ["Strict", "Strict", "Warn", "Ignore", None, "strict"]
            if r.random() < 0.2
            else ["Strict", "Warn"]
        )
        if strict is not None:
            query["fieldValidation"] = strict
        if verb == "create":
            body = self.mutate(r, obj, r.choice([1, 1, 1, 2, 3]))
        elif verb == "update":
            method, path, body = (
                "PUT", f"{path}/{own}",
                self.mutate(r, copy.deepcopy(base["stored"]), r.choice([1, 1, 2])),
            )
        elif verb in ("merge", "strategic"):
            method, path, headers = "PATCH", f"{path}/{own}", {"Content-Type": PATCHES[verb]}
            body = self.part(r, base["stored"], verb == "strategic")
        elif verb == "json":
            method, path, headers = "PATCH", f"{path}/{own}", {"Content-Type": PATCHES["json"]}
            body = [self.operation(r, base["stored"]) for _ in range(r.choice([1, 1, 2, 3]))]
        elif verb == "apply":
            method, headers = "PATCH", {"Content-Type": PATCHES["apply"]}
            path = f"{path}/{own}" if own else f"{path}/x"
            body = self.mutate(r, obj, r.choice([0, 1, 1, 2]))
            query["fieldManager"] = r.choice(["m", "m", "m", "other", "", "x" * 129])
            if r.random() < 0.5:
                query["force"] = r.choice(["true", "false", "x"])
        elif verb == "read":
            return self.read(r, number, name, path, own)
        elif verb == "delete":
            method, path = "DELETE", f"{path}/{own}" if r.random() < 0.8 else path
            body = r.choice([
                None, {}, {"gracePeriodSeconds": r.choice(NUMBERS)},
                {"propagationPolicy": r.choice(["Orphan", "Foreground", "Background", "x", ""])},
                {"orphanDependents": True},
                {"preconditions": {"uid": "11111111-2222-3333-4444-555555555555"}},
                {"preconditions": {"resourceVersion": "1"}}, {"zzz": 1}, {"dryRun": ["x"]},
                {"orphanDependents": True, "propagationPolicy": "Orphan"},
                {"kind": "DeleteOptions", "apiVersion": "v1"}, {"kind": "Pod", "apiVersion": "v1"},
                [],
            ])
            # The server ignores the query of a request with a body.
            if isinstance(body, dict):
                body.setdefault("dryRun", ["All"])
        elif verb == "subresource":
            path = (
                f"{path}/{own}/{r.choice(SUBRESOURCES)}"
                if r.random() < 0.6
                else f"{path}/{own}/status"
            )
            method = r.choice(["GET", "PUT", "PATCH", "POST", "PUT", "PATCH"])
            if method == "PATCH":
                headers, body = {"Content-Type": PATCHES["merge"]}, self.part(
                    r, {**base["stored"], "status": self.status(base)}, False
                )
            elif method != "GET":
                body = {**copy.deepcopy(base["stored"]), "status": self.status(base)}
                body = self.mutate(r, body, r.choice([0, 1, 2]))
        else:
            return self.odd(r, number, name, path, own, obj)
        if r.random() < 0.03:
            query[
                r.choice(["dryRun", "fieldManager", "pretty", "nope", "fieldValidation", "timeout"])
            ] = r.choice(["All", "x", "", "true", "1s", "All,All"])
            query.setdefault("dryRun", "All")
        if (
            method == "POST"
            and query.get("dryRun") != "All"
            or method in ("PUT", "PATCH", "DELETE")
            and query.get("dryRun") != "All"
        ):
            query["dryRun"] = "All"
        return self.made(number, name, verb, method, path, query, headers, body)

    def status(self, base):
        full = self.full.get((base["obj"].get("apiVersion"), base["obj"].get("kind"))) or {}
        return copy.deepcopy(full.get("status", {}))

    def part(self, r, stored, strategic):
        """A patch: the path of a field of the object, and a value."""
        at = r.choice(list(paths(stored)))
        value = r.choice([
            None, *ANYTHING, *WORDS[:12], *NUMBERS[:6], get(stored, at),
            *self.pool.get(at[-1], [])[:6],
        ])
        patch = copy.deepcopy(value)
        for index in range(len(at) - 1, -1, -1):
            key = at[index]
            if isinstance(key, int):
                element = get(stored, at[: index + 1])
                if isinstance(element, dict) and isinstance(patch, dict):
                    for merge in (
                        "name", "containerPort", "port", "mountPath", "type", "key", "ip", "uid",
                    ):
                        if merge in element and r.random() < 0.9:
                            patch.setdefault(merge, element[merge])
                            break
                patch = [patch]
                if strategic and r.random() < 0.15:
                    patch.insert(0, {"$patch": r.choice(["replace", "delete", "merge", "x"])})
            else:
                patch = {key: patch}
                if strategic and r.random() < 0.04:
                    patch[
                        r.choice([
                            "$patch", "$retainKeys", f"$setElementOrder/{key}",
                            f"$deleteFromPrimitiveList/{key}",
                        ])
                    ] = r.choice(["replace", "delete", "merge", [key], ["x"], [{"name": "c"}], 1])
        return patch

    def operation(self, r, stored):
        at = r.choice(list(paths(stored)))
        pointer = "/" + "/".join(str(key).replace("~", "~0").replace("/", "~1") for key in at)
        if r.random() < 0.15:
            pointer += r.choice(["/x", "/-", "/0", "/99", "~", "/"])
        op = r.choice(
            ["add", "remove", "replace", "test", "move", "copy", "nope"]
            if r.random() < 0.3
            else ["add", "remove", "replace", "test"]
        )
        made = {"op": op, "path": pointer}
        if op in ("move", "copy"):
            other = r.choice(list(paths(stored)))
            made["from"] = "/" + "/".join(
                str(key).replace("~", "~0").replace("/", "~1") for key in other
            )
        elif op != "remove" and r.random() < 0.97:
            made["value"] = copy.deepcopy(
                r.choice([*ANYTHING, get(stored, at), *self.pool.get(at[-1], [])[:6], *WORDS[:10]])
            )
        return made

    def read(self, r, number, name, path, own):
        query, headers = {}, {
            "Accept": r.choice(ACCEPTS) if r.random() < 0.5 else "application/json"
        }
        if own and r.random() < 0.4:
            path = (
                f"{path}/{own}"
                if r.random() < 0.8
                else f"{path}/{r.choice(['nope', 'Bad_Name!', 'a' * 300, '%20', 'é'])}"
            )
        for key, values, share in [
            ("labelSelector", SELECTORS, 0.3), ("fieldSelector", FIELDS, 0.3),
            ("limit", ["1", "0", "-1", "x", "500", "99999999999999999999"], 0.2),
            ("resourceVersion", ["0", "x", "-1", "00"], 0.2),
            ("resourceVersionMatch", ["Exact", "NotOlderThan", "x", ""], 0.15),
            ("continue", ["x", "", "eyJ2IjoibWV0YS5rOHMuaW8vdjEifQ"], 0.05),
            ("pretty", ["true", "1", "x"], 0.05), ("timeoutSeconds", ["1", "x", "-1"], 0.05),
            ("allowWatchBookmarks", ["true", "x"], 0.03),
            ("sendInitialEvents", ["true", "false"], 0.03),
            ("includeObject", ["None", "Object", "Metadata", "x"], 0.05), ("nope", ["1"], 0.03),
        ]:
            if r.random() < share:
                query[key] = r.choice(values)
        return self.made(number, name, "read", "GET", path, query, headers, None)

    def odd(self, r, number, name, path, own, obj):
        """Requests that no client sends: bodies that are not objects, unknown paths, unsuitable
        verbs."""
        kind = r.randrange(6)
        query, headers, method, body = {"dryRun": "All"}, {}, "POST", json.dumps(obj)
        if kind == 0:
            body = r.choice([
                "", "{", "null", "[]", "1", '"x"', "{}", '{"apiVersion":"v1"}', '{"kind":"Pod"}',
                "{} {}", "\ufeff{}", '{"a":1,"a":2}', "x: [", "a: 1\nb: 2", "[" * 200,
                '{"metadata":' * 50 + "1" + "}" * 50,
            ])
        elif kind == 1:
            headers["Content-Type"] = r.choice([
                "application/yaml", "text/plain", "application/xml", "",
                "application/json; charset=utf-8", "application/vnd.kubernetes.protobuf",
                "application/cbor", "a/b/c",
            ])
        elif kind == 2:
            method, path = r.choice(["PUT", "PATCH", "HEAD", "OPTIONS", "TRACE", "NOPE"]), path
        elif kind == 3:
            body, cut = json.dumps(obj), r.randrange(1, 40)
            body = body[:-cut]
        elif kind == 4:
            path = r.choice([
                path + "/", path + "/a/b/c", path.replace("/v1/", "/v9/"), path.upper(),
                path.replace("namespaces/a", "namespaces/nope"), path.replace("namespaces/a/", ""),
                "/apis/nope/v1/x", "/api", "/apis", "/apis/apps", "/version/x", "/healthz/nope",
                "//api/v1/pods", "/api/v1/namespaces/a/pods/p/log/x",
            ])
            method = r.choice(["GET", "POST", "DELETE", "PUT"])
        else:
            text = json.dumps(obj)
            at = r.randrange(len(text))
            body = (
                text[:at]
                + r.choice(list("{}[]\",:\\ \n0-e") + ["\\u00", "\\ud800", "\x00", "//"])
                + text[at + 1 :]
            )
        if method == "DELETE" and not query.get("dryRun"):
            query["dryRun"] = "All"
        return self.made(number, name, "odd", method, path, query, headers, body)

    def made(self, number, name, verb, method, path, query, headers, body):
        return {
            "id": number, "base": name, "verb": verb, "method": method, "path": path,
            "query": query, "headers": headers,
            "body": body if body is None or isinstance(body, str) else json.dumps(body),
        }
