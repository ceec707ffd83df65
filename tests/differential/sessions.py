"""Sessions: a sequence of requests of one client with its own objects, stored on both servers. A
step may refer to an earlier answer: `$rv0` and `$uid0` are version and uid of the object in the
answer to step 0, `$continue2` is the continue token of the list of step 2, `$body1` is the body of
the answer to step 1 (protobuf unchanged). Each server receives its own values."""

import base64, copy, json, random, re

import mutations

# Not stored: objects that affect other requests, and objects that their server changes by itself.
NOT_WRITTEN = {
    "namespace", "limitrange", "resourcequota", "vwc", "mwc", "vap", "vapb", "map", "mapb",
    "apiservice", "crd", "servicecidr", "ipaddress", "flowschema", "plc", "priorityclass",
    "ingressclass", "storageclass", "node", "csinode", "tokenreview", "sar", "ssar", "lsar", "ssrr",
    "ssr", "service-nodeport", "service-lb", "service", "clusterrole", "clusterrole-agg",
    "clusterrolebinding",
}
MANAGERS = ["m1", "m2", "m3"]
SCALED = {"deployment", "deployment-min", "replicaset", "rc", "statefulset"}
WATCH_ACCEPTS = [
    "application/json", "application/json", "application/json;as=Table;v=v1;g=meta.k8s.io",
    "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
    "application/vnd.kubernetes.protobuf;stream=watch", "application/vnd.kubernetes.protobuf",
    "application/yaml", "application/json;stream=watch",
    "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
]
READ_ACCEPTS = [
    "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf",
    "application/json;as=Table;v=v1;g=meta.k8s.io",
    "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", "application/yaml",
    "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
    "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io, application/json",
]


def namespaced(path, namespace):
    return re.sub(r"/namespaces/[^/]+/", f"/namespaces/{namespace}/", path)


class Steps:
    """The requests of a session in order; `kind` is `plain`, `watch` or `cleanup` (whose answer is
    not compared)."""

    def __init__(self):
        self.steps = []

    def __call__(
        self, method, at, body=None, query=None, content=None, accept=None, kind="plain", end=False
    ):
        headers = {}
        if content:
            headers["Content-Type"] = content
        if accept:
            headers["Accept"] = accept
        self.steps.append({
            "method": method, "path": at,
            "query": {key: value for key, value in (query or {}).items() if value is not None},
            "headers": headers, "kind": kind, "end": end,
            "body": body if body is None or isinstance(body, str) else json.dumps(body),
        })


class Maker:
    """`plain`: the maker of single requests, whose objects and words are used; `namespace`: the
    namespace of this client's objects."""

    def __init__(self, plain, namespace):
        self.plain, self.namespace = plain, namespace
        self.names = [
            name
            for name in sorted(plain.bases)
            if name not in NOT_WRITTEN and plain.bases[name].get("stored")
        ]
        self.packed = {(api, kind): path for (api, kind), path in plain.packed.items()}

    def session(self, number):
        r = random.Random(f"{self.plain.seed}/session/{number}")
        name = r.choice(self.names)
        base = self.plain.bases[name]
        path = namespaced(base["path"], self.namespace)
        own = f"s{number}"
        obj = self.own(base["obj"], own, number)
        stored = self.own(base["stored"], own, number)
        ask = Steps()

        if r.random() < 0.25:
            # Created by apply, so that one manager owns all fields.
            ask("PATCH", f"{path}/{own}", obj, {"fieldManager": "m1"}, mutations.PATCHES["apply"])
        else:
            self.written(
                r, ask, "POST", path, obj,
                {
                    "fieldManager": r.choice([None, "m1", "kubectl-client-side-apply"]),
                    "fieldValidation": r.choice([None, "Strict", "Warn", "Ignore"]),
                },
            )
        if r.random() < 0.35:
            for more in ("a", "b", "c"):
                ask("POST", path, self.own(base["obj"], f"{own}-{more}", number))
            self.lists(r, ask, path, number)
        for _ in range(r.choice([1, 2, 3, 4, 6])):
            self.step(r, ask, name, base, path, own, stored, number)
        if r.random() < 0.4:
            query = {"watch": "1", "resourceVersion": "$rv0", "labelSelector": f"session=s{number}"}
            if r.random() < 0.3:
                query = {
                    "watch": "true", "fieldSelector": f"metadata.name={own}",
                    "resourceVersion": r.choice(["$rv0", "0", ""]),
                }
            if r.random() < 0.3:
                query.update(
                    sendInitialEvents="true", allowWatchBookmarks="true",
                    resourceVersionMatch="NotOlderThan",
                )
                query["resourceVersion"] = r.choice(["", "0", "$rv0"])
            if r.random() < 0.1:
                query[
                    r.choice([
                        "timeoutSeconds", "resourceVersionMatch", "limit", "continue",
                        "sendInitialEvents", "allowWatchBookmarks",
                    ])
                ] = r.choice(["1", "x", "Exact", "true", "false"])
            self.ended(r, ask, path, own)
            ask(
                "GET", path if r.random() < 0.9 or "fieldSelector" in query else f"{path}/{own}",
                None, query, None, r.choice(WATCH_ACCEPTS), "watch",
            )
        else:
            self.ended(r, ask, path, own)
        if r.random() < 0.3:
            ask(
                "DELETE", path,
                r.choice([
                    None, {"gracePeriodSeconds": 0}, {"propagationPolicy": "Background"},
                    {"zzz": 1},
                ]),
                {"labelSelector": f"session=s{number}", "dryRun": r.choice([None, "All", "x"])},
            )
        ask(
            "DELETE", path, {"gracePeriodSeconds": 0}, {"labelSelector": f"session=s{number}"},
            kind="cleanup",
        )
        return {"id": number, "base": name, "verb": "session", "steps": ask.steps}

    def own(self, obj, own, number):
        obj = copy.deepcopy(obj)
        meta = obj.setdefault("metadata", {})
        meta.pop("namespace", None)
        meta.pop("finalizers", None)
        meta.pop("ownerReferences", None)
        meta["name"] = own if "." not in meta.get("name", "") else own + "." + meta["name"]
        meta.setdefault("labels", {})["session"] = f"s{number}"
        return obj

    def written(self, r, ask, method, path, obj, query):
        """A body as JSON, as YAML, or slightly invalid."""
        kind = r.random()
        if kind < 0.7:
            ask(method, path, obj, query)
        elif kind < 0.9:
            ask(method, path, to_yaml(obj, r), query, "application/yaml")
        else:
            ask(method, path, self.plain.mutate(r, copy.deepcopy(obj), 1), query)

    def lists(self, r, ask, path, number):
        query = {
            "labelSelector": f"session=s{number}", "limit": r.choice(["1", "2", "3", "10"]),
            "resourceVersion": r.choice([None, None, "0", "$rv0"]),
            "resourceVersionMatch": r.choice([None, None, "NotOlderThan", "Exact"]),
        }
        accept = r.choice([None, *READ_ACCEPTS[:5]])
        ask("GET", path, None, query, None, accept)
        at = len(ask.steps) - 1
        if accept is None:
            ask(
                "GET", path, None,
                {"labelSelector": f"session=s{number}", "limit": "1", "continue": f"$continue{at}"},
            )
            ask(
                "GET", path, None,
                {
                    "labelSelector": f"session=s{number}", "limit": "5",
                    "continue": f"$continue{at}", "resourceVersion": r.choice([None, "0", "1"]),
                },
                None, r.choice([None, *READ_ACCEPTS]),
            )

    def step(self, r, ask, name, base, path, own, stored, number):
        at = f"{path}/{stored['metadata']['name']}"
        manager = r.choice(MANAGERS)
        kind = r.randrange(16)
        plain = self.plain
        if kind == 0:
            ask("GET", at, None, None, None, r.choice(READ_ACCEPTS))
            if (
                "protobuf" in ask.steps[-1]["headers"]["Accept"]
                and "as=" not in ask.steps[-1]["headers"]["Accept"]
            ):
                ask(
                    "PUT", at, f"$body{len(ask.steps) - 1}", {"fieldManager": manager},
                    "application/vnd.kubernetes.protobuf",
                    r.choice([None, "application/vnd.kubernetes.protobuf"]),
                )
        elif kind in (1, 2):
            body = plain.mutate(r, copy.deepcopy(stored), r.choice([0, 1, 1]))
            if isinstance(body.get("metadata"), dict) and r.random() < 0.5:
                body["metadata"]["resourceVersion"] = r.choice(
                    ["$rv0", "$rvlast", "$rvlast", "1", "x", ""]
                )
            if isinstance(body.get("metadata"), dict) and r.random() < 0.1:
                body["metadata"]["uid"] = r.choice(
                    ["$uid0", "11111111-2222-3333-4444-555555555555"]
                )
            if r.random() < 0.2:
                ask("PUT", at, to_yaml(body, r), {"fieldManager": manager}, "application/yaml")
            else:
                ask("PUT", at, body, {"fieldManager": manager})
        elif kind in (3, 4, 5):
            verb = r.choice(["merge", "strategic", "json"])
            body = (
                [plain.operation(r, stored) for _ in range(r.choice([1, 2]))]
                if verb == "json"
                else plain.part(r, stored, verb == "strategic")
            )
            ask(
                "PATCH", at, body,
                {"fieldManager": manager, "fieldValidation": r.choice([None, "Strict", "Warn"])},
                mutations.PATCHES[verb],
            )
        elif kind in (6, 7, 8):
            body = plain.mutate(
                r, self.cut(r, self.own(base["obj"], own, number)), r.choice([0, 0, 1])
            )
            ask(
                "PATCH", at, body,
                {
                    "fieldManager": manager, "force": r.choice([None, None, "true", "false"]),
                    "fieldValidation": r.choice([None, "Strict"]),
                },
                mutations.PATCHES["apply"],
            )
        elif kind == 9:
            full = plain.status(base)
            body = {
                "apiVersion": stored["apiVersion"], "kind": stored["kind"],
                "metadata": {"name": stored["metadata"]["name"]},
                "status": plain.mutate(r, full, r.choice([0, 1])) if full else {"x": 1},
            }
            if r.random() < 0.5:
                ask(
                    "PATCH", at + "/status", body,
                    {"fieldManager": manager, "force": r.choice([None, "true"])},
                    mutations.PATCHES["apply"],
                )
            else:
                ask(
                    "PATCH", at + "/status", {"status": self.cut(r, body["status"])},
                    {"fieldManager": manager}, mutations.PATCHES[r.choice(["merge", "strategic"])],
                )
        elif kind == 10 and name in SCALED:
            method = r.choice(["GET", "PUT", "PATCH", "APPLY"])
            scale = {
                "apiVersion": "autoscaling/v1", "kind": "Scale",
                "metadata": {"name": stored["metadata"]["name"], "namespace": self.namespace},
                "spec": {"replicas": r.choice([0, 1, 3, -1, 2147483648, "x", None])},
            }
            if r.random() < 0.3:
                scale = plain.mutate(r, scale, 1)
            if method == "GET":
                ask(
                    "GET", at + "/scale", None, None, None,
                    r.choice([
                        None, "application/vnd.kubernetes.protobuf", "application/yaml",
                        "application/json;as=Table;v=v1;g=meta.k8s.io",
                    ]),
                )
            elif method == "PUT":
                ask("PUT", at + "/scale", scale, {"fieldManager": manager})
            elif method == "PATCH":
                ask(
                    "PATCH", at + "/scale", {"spec": scale.get("spec")}, {"fieldManager": manager},
                    mutations.PATCHES[r.choice(["merge", "strategic"])],
                )
            else:
                ask(
                    "PATCH", at + "/scale", scale,
                    {"fieldManager": manager, "force": r.choice([None, "true"])},
                    mutations.PATCHES["apply"],
                )
        elif kind in (10, 11) and stored["kind"] == "Pod":
            self.pods(r, ask, at, stored, manager)
        elif kind == 11 and name == "serviceaccount":
            body = {
                "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
                "spec": {
                    "audiences": r.choice([["x"], [], None, ["a", "b"]]),
                    "expirationSeconds": r.choice([600, 1, 3600, None, -1, 2**33]),
                    "boundObjectRef": r.choice([
                        None, {"kind": "Pod", "apiVersion": "v1", "name": "nope"},
                        {"kind": "Secret", "apiVersion": "v1", "name": "se"},
                        {"kind": "X", "apiVersion": "v1"},
                    ]),
                },
            }
            ask(
                "POST", at + "/token", plain.mutate(r, body, r.choice([0, 1])),
                {"dryRun": r.choice([None, "All"])},
            )
        elif kind in (11, 12):
            ask(
                "DELETE", at,
                r.choice([
                    {"preconditions": {"resourceVersion": "$rv0"}},
                    {"preconditions": {"uid": "$uid0"}}, {"preconditions": {"uid": "x"}},
                    {"propagationPolicy": "Orphan"}, {"propagationPolicy": "Foreground"},
                    {"gracePeriodSeconds": -1}, {"gracePeriodSeconds": 0}, None,
                ]),
                {"dryRun": r.choice([None, "All"])}, None,
                r.choice([None, None, "application/vnd.kubernetes.protobuf", "application/yaml"]),
            )
        elif kind == 13:
            ask(
                "PATCH", at,
                {
                    "metadata": {
                        "finalizers": r.choice([
                            ["example.com/f"], [], None, ["x"], ["foregroundDeletion"],
                            ["orphan", "example.com/f"],
                        ])
                    }
                },
                {"fieldManager": manager}, mutations.PATCHES["merge"],
            )
        elif kind == 14:
            packed = self.packed.get((stored["apiVersion"], stored["kind"]))
            if packed:
                raw = bytearray(open(packed, "rb").read())
                if r.random() < 0.5:
                    raw[r.randrange(4, len(raw))] = r.randrange(256)
                if r.random() < 0.1:
                    raw = raw[: r.randrange(len(raw))]
                ask(
                    "POST", path, "$raw" + base64.b64encode(bytes(raw)).decode(), {"dryRun": "All"},
                    "application/vnd.kubernetes.protobuf",
                    r.choice([None, "application/vnd.kubernetes.protobuf"]),
                )
        else:
            ask(
                "GET", path, None,
                {
                    "fieldSelector": f"metadata.name={stored['metadata']['name']}",
                    "resourceVersion": r.choice([None, "0", "$rv0", "$rvlast"]),
                    "resourceVersionMatch": r.choice([None, None, "Exact", "NotOlderThan"]),
                },
                None, r.choice(READ_ACCEPTS),
            )

    def pods(self, r, ask, at, stored, manager):
        kind = r.randrange(4)
        if kind == 0:
            body = copy.deepcopy(stored)
            body["spec"]["ephemeralContainers"] = [
                {"name": "dbg", "image": "x", "targetContainerName": r.choice(["c", "nope"])}
            ]
            if r.random() < 0.5:
                ask(
                    "PUT", at + "/ephemeralcontainers",
                    self.plain.mutate(r, body, r.choice([0, 1])), {"fieldManager": manager},
                )
            else:
                ask(
                    "PATCH", at + "/ephemeralcontainers",
                    {
                        "spec": {
                            "ephemeralContainers": self.plain.mutate(
                                r, body["spec"]["ephemeralContainers"], r.choice([0, 1])
                            )
                        }
                    },
                    {"fieldManager": manager}, mutations.PATCHES[r.choice(["strategic", "merge"])],
                )
        elif kind == 1:
            containers = [
                {
                    "name": c["name"],
                    "resources": {
                        "requests": {"cpu": r.choice(["100m", "2", "x", "-1"])},
                        "limits": {
                            "cpu": r.choice(["1", "100m"]), "memory": r.choice(["1Gi", "10M"]),
                        },
                    },
                }
                for c in stored["spec"]["containers"]
            ]
            ask(
                "PATCH", at + "/resize",
                {"spec": {"containers": self.plain.mutate(r, containers, r.choice([0, 0, 1]))}},
                {"fieldManager": manager, "dryRun": r.choice([None, "All"])},
                mutations.PATCHES["strategic"],
            )
        elif kind == 2:
            ask(
                "POST", at + "/eviction",
                self.plain.mutate(
                    r,
                    {
                        "apiVersion": r.choice(["policy/v1", "policy/v1", "policy/v1beta1"]),
                        "kind": "Eviction", "metadata": {"name": stored["metadata"]["name"]},
                        "deleteOptions": r.choice([
                            {}, {"gracePeriodSeconds": 5}, {"dryRun": ["All"]},
                            {"preconditions": {"resourceVersion": "1"}},
                        ]),
                    },
                    r.choice([0, 1]),
                ),
                {"dryRun": r.choice([None, "All"])},
            )
        else:
            ask(
                "POST", at + "/binding",
                self.plain.mutate(
                    r,
                    {
                        "apiVersion": "v1", "kind": "Binding",
                        "metadata": {"name": stored["metadata"]["name"]},
                        "target": {"kind": "Node", "name": "n"},
                    },
                    r.choice([0, 0, 1]),
                ),
                {"dryRun": r.choice([None, "All"])},
            )

    def cut(self, r, obj):
        """A part of the object; other managers own the rest."""
        obj = copy.deepcopy(obj)
        for _ in range(r.choice([0, 1, 2, 4])):
            places = [
                at
                for at in mutations.paths(obj)
                if at[0] not in ("apiVersion", "kind")
                and at not in (("metadata",), ("metadata", "name"))
                and isinstance(at[-1], str)
            ]
            if places:
                at = r.choice(places)
                del mutations.get(obj, at[:-1])[at[-1]]
        return obj

    def ended(self, r, ask, path, own):
        # The first body may lack a name or a map as metadata.
        first = ask.steps[0]["body"]
        meta = json.loads(first).get("metadata") if first.startswith("{") else None
        name = meta.get("name") if isinstance(meta, dict) else None
        written = name if isinstance(name, str) and name else own
        ask(
            "PATCH", f"{path}/{written}", {"metadata": {"finalizers": None}}, None,
            mutations.PATCHES["merge"], end=True,
        )
        ask("DELETE", f"{path}/{written}", {"gracePeriodSeconds": 0}, end=True)


def to_yaml(obj, r):
    import yaml

    text = yaml.safe_dump(
        obj, default_flow_style=r.choice([None, False]), sort_keys=r.random() < 0.5,
        allow_unicode=True,
    )
    if r.random() < 0.1:
        text = r.choice([
            "---\n" + text, text + "---\n" + text, "# comment\n" + text,
            text + "zzz: [1, {a: b}]\n", text.replace("\n", "\r\n"), text + "metadata: {}\n",
            "%YAML 1.2\n---\n" + text, text + "\t", "!!map " + text,
        ])
    return text
