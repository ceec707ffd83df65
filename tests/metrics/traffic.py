"""Sends traffic that most metrics of an API server count, then prints its /metrics.

usage: traffic.py URL TOKEN PORT; the webhooks listen on PORT (TLS with a generated certificate).
"""

import base64, http.client, http.server, json, os, ssl, subprocess, sys, tempfile, threading, time
import urllib.parse

url, token, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
host, own_port = urllib.parse.urlsplit(url).hostname, urllib.parse.urlsplit(url).port
context = ssl._create_unverified_context()


def ask(method, path, body=None, kind="application/json", headers=None, token_=token):
    connection = http.client.HTTPSConnection(host, own_port, context=context, timeout=30)
    given = {"Authorization": f"Bearer {token_}", "Content-Type": kind, **(headers or {})}
    connection.request(method, path, json.dumps(body) if body is not None else None, given)
    response = connection.getresponse()
    text = response.read()
    connection.close()
    return response.status, text


def made(path, body):
    code, text = ask("POST", path, body)
    if code not in (200, 201):
        sys.exit(f"POST {path}: {code} {text[:500]}")
    return json.loads(text)


class Hook(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        request = review["request"]
        if review["kind"] == "ConversionReview":
            objects = [dict(o, apiVersion=request["desiredAPIVersion"]) for o in request["objects"]]
            answer = {
                "uid": request["uid"], "convertedObjects": objects, "result": {"status": "Success"},
            }
        elif self.path.startswith("/refuse"):
            answer = {
                "uid": request["uid"], "allowed": False, "status": {"message": "no", "code": 418},
            }
        else:
            answer = {"uid": request["uid"], "allowed": True}
        body = json.dumps(
            {"apiVersion": review["apiVersion"], "kind": review["kind"], "response": answer}
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


folder = tempfile.mkdtemp()
subprocess.run(
    [
        "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
        "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout",
        f"{folder}/key", "-out", f"{folder}/cert",
    ],
    check=True, stderr=subprocess.DEVNULL,
)
server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Hook)
tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
tls.load_cert_chain(f"{folder}/cert", f"{folder}/key")
server.socket = tls.wrap_socket(server.socket, server_side=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
bundle = base64.b64encode(open(f"{folder}/cert", "rb").read()).decode()


def client(path, to=port):
    return {"url": f"https://127.0.0.1:{to}{path}", "caBundle": bundle}


def hook(name, path, resources, **more):
    rule = {
        "apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": resources,
        "scope": "*",
    }
    selector = {"matchLabels": {"hooked": name}}
    return {
        "name": f"{name}.example.com", "clientConfig": client(path), "rules": [rule],
        "admissionReviewVersions": ["v1"], "sideEffects": "None", "timeoutSeconds": 5,
        "objectSelector": selector, **more,
    }


ns = "/api/v1/namespaces/default"
if ask("GET", ns)[0] == 404:
    made("/api/v1/namespaces", {"metadata": {"name": "default"}})
registration = "/apis/admissionregistration.k8s.io/v1"
conditions = [{"name": "c", "expression": "object.metadata.name != 'left-out'"}]
never = [{"name": "c", "expression": "object.data.none == 'x'"}]
made(
    f"{registration}/validatingwebhookconfigurations",
    {
        "metadata": {"name": "v"},
        "webhooks": [
            hook("allow", "/allow", ["configmaps"]), hook("refuse", "/refuse", ["configmaps"]),
            hook("condition", "/allow", ["configmaps"], matchConditions=conditions),
            hook("fault", "/allow", ["configmaps"], matchConditions=never, failurePolicy="Ignore"),
            hook("open", "/allow", ["configmaps"], failurePolicy="Ignore") | {
                "clientConfig": client("/", 1)
            },
            hook("closed", "/allow", ["configmaps"]) | {"clientConfig": client("/", 1)},
        ],
    },
)
made(
    f"{registration}/mutatingwebhookconfigurations",
    {"metadata": {"name": "m"}, "webhooks": [hook("mutate", "/allow", ["configmaps"])]},
)
matches = {
    "resourceRules": [{
        "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
        "resources": ["configmaps"],
    }]
}
made(
    f"{registration}/validatingadmissionpolicies",
    {
        "metadata": {"name": "p"},
        "spec": {
            "matchConstraints": matches,
            "validations": [{"expression": "object.metadata.name != 'denied'"}],
        },
    },
)
made(
    f"{registration}/validatingadmissionpolicybindings",
    {"metadata": {"name": "b"}, "spec": {"policyName": "p", "validationActions": ["Deny"]}},
)
mutation = {
    "patchType": "ApplyConfiguration",
    "applyConfiguration": {
        "expression": "Object{metadata: Object.metadata{labels: {'mutated': 'yes'}}}"
    },
}
made(
    f"{registration}/mutatingadmissionpolicies",
    {
        "metadata": {"name": "mp"},
        "spec": {
            "matchConstraints": matches, "reinvocationPolicy": "Never", "mutations": [mutation],
            "matchConditions": [{"name": "c", "expression": "object.metadata.name == 'mutated'"}],
        },
    },
)
made(
    f"{registration}/mutatingadmissionpolicybindings",
    {"metadata": {"name": "mb"}, "spec": {"policyName": "mp"}},
)
schema = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object", "properties": {"n": {"type": "integer"}},
            "x-kubernetes-validations": [{"rule": "self.n > 0"}],
        }
    },
}
version = lambda name, storage, **more: {
    "name": name, "served": True, "storage": storage, "schema": {"openAPIV3Schema": schema}, **more,
}
made(
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    {
        "metadata": {"name": "foos.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "foos", "singular": "foo", "kind": "Foo", "listKind": "FooList"},
            "versions": [
                version("v1", True), version("v2", False),
                version("v1beta1", False, deprecated=True),
            ],
            "conversion": {
                "strategy": "Webhook",
                "webhook": {"clientConfig": client("/convert"), "conversionReviewVersions": ["v1"]},
            },
        },
    },
)
# Policies and definitions take effect after a moment.
until = time.time() + 60
while time.time() < until:
    denied = ask("POST", f"{ns}/configmaps?dryRun=All", {"metadata": {"name": "denied"}})[0] == 422
    mutated = b'"mutated":"yes"' in ask(
        "POST", f"{ns}/configmaps?dryRun=All", {"metadata": {"name": "mutated"}}
    )[1].replace(b'": "', b'":"')
    refused = (
        ask(
            "POST", f"{ns}/configmaps?dryRun=All",
            {"metadata": {"name": "x", "labels": {"hooked": "refuse"}}},
        )[0]
        == 418
    )
    served = ask("GET", "/apis/example.com/v2/namespaces/default/foos")[0] == 200
    if denied and mutated and refused and served:
        break
    time.sleep(0.2)
else:
    sys.exit(
        f"the cluster did not take what it was given: denied {denied}, mutated {mutated}, refused "
        f"{refused}, served {served}"
    )
for name in ["allow", "refuse", "condition", "fault", "open", "closed", "mutate", "none"]:
    ask(
        "POST", f"{ns}/configmaps",
        {"metadata": {"name": name, "labels": {"hooked": name}}, "data": {"k": "v"}},
    )
ask(
    "POST", f"{ns}/configmaps",
    {"metadata": {"name": "left-out", "labels": {"hooked": "condition"}}},
)
ask("POST", f"{ns}/configmaps?fieldValidation=Strict", {"metadata": {"name": "strict"}, "odd": 1})
foo = {"apiVersion": "example.com/v1", "kind": "Foo", "metadata": {"name": "f"}, "spec": {"n": 1}}
made("/apis/example.com/v1/namespaces/default/foos", foo)
ask(
    "POST", "/apis/example.com/v1/namespaces/default/foos",
    dict(foo, metadata={"name": "g"}, spec={"n": 0}),
)
ask("GET", "/apis/example.com/v2/namespaces/default/foos/f")
ask("GET", "/apis/example.com/v1beta1/namespaces/default/foos")
ask(
    "PATCH", "/apis/example.com/v1/namespaces/default/foos/f", {"spec": {"n": 2}},
    "application/merge-patch+json",
)
ask("GET", f"{ns}/endpoints")
ask("GET", "/api/v1/componentstatuses")
service = {
    "metadata": {"name": "s"},
    "spec": {"type": "NodePort", "selector": {"a": "b"}, "ports": [{"port": 80}]},
}
made(f"{ns}/services", service)
ask(
    "POST", f"{ns}/services",
    {"metadata": {"name": "t"}, "spec": {"clusterIP": "10.96.0.77", "ports": [{"port": 80}]}},
)
ask(
    "POST", f"{ns}/services",
    {"metadata": {"name": "u"}, "spec": {"clusterIP": "10.96.0.77", "ports": [{"port": 80}]}},
)
made(f"{ns}/secrets", {"metadata": {"name": "sealed"}, "data": {"k": "dg=="}})
ask("GET", f"{ns}/secrets/sealed")
ask("DELETE", f"{ns}/secrets/sealed")
made(
    "/api/v1/namespaces",
    {
        "metadata": {
            "name": "strict",
            "labels": {
                "pod-security.kubernetes.io/enforce": "baseline",
                "pod-security.kubernetes.io/warn": "restricted",
            },
        }
    },
)
ask("POST", "/api/v1/namespaces/strict/serviceaccounts", {"metadata": {"name": "default"}})
pod = lambda name, **more: {
    "metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}], **more},
}
for name, more in [("good", {}), ("bad", {"hostNetwork": True})]:
    until = time.time() + 20
    while (
        ask("POST", "/api/v1/namespaces/strict/pods", pod(name, **more))[0] == 403
        and name == "good"
        and time.time() < until
    ):
        time.sleep(0.2)
ask(
    "POST", "/apis/apps/v1/namespaces/strict/deployments",
    {
        "metadata": {"name": "d"},
        "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {
                "metadata": {"labels": {"a": "b"}},
                "spec": {"hostNetwork": True, "containers": [{"name": "c", "image": "i"}]},
            },
        },
    },
)
ask("GET", "/api/v1/pods?limit=1&resourceVersion=0")
code, page = ask("GET", "/api/v1/configmaps?limit=1")
more = json.loads(page)["metadata"].get("continue")
if more:
    ask("GET", f"/api/v1/configmaps?limit=1&continue={more}")
ask("GET", "/api/v1/configmaps?labelSelector=hooked%3Dallow")
ask(
    "GET",
    "/api/v1/configmaps?watch=1&timeoutSeconds=1&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan",
)
ask("GET", "/api/v1/namespaces", token_="wrong")
ask("GET", "/api/v1/namespaces", headers={"Impersonate-User": "jane"})
account = ask(
    "POST", f"{ns}/serviceaccounts/default/token",
    {
        "kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1",
        "spec": {"expirationSeconds": 3600},
    },
)
if account[0] == 201:
    ask("GET", "/api/v1/namespaces", token_=json.loads(account[1])["status"]["token"])
apply = {
    "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "applied"}, "data": {"a": "b"},
}
ask(
    "PATCH", f"{ns}/configmaps/applied?fieldManager=m&force=true", apply,
    "application/apply-patch+yaml",
)
ask("DELETE", f"{ns}/configmaps?labelSelector=hooked%3Dnone")
ask("GET", "/version")
ask("GET", "/openapi/v3")
ask("GET", "/api/v1/nodes/none/proxy/")
ask("GET", "/api/v1/namespaces/strict/pods/good/log")
ask("GET", "/metrics")
plain = __import__("socket").create_connection((host, own_port), timeout=10)
plain.sendall(b"not TLS at all\r\n\r\n")
plain.recv(1000)
plain.close()
code, text = ask("GET", "/metrics")
if code != 200:
    sys.exit(f"/metrics: {code}")
sys.stdout.write(text.decode())
