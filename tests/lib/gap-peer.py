"""The servers that the API server calls in 08-known-gaps: gap-peer.py CERT KEY PORT-PIPE LOG.
Webhooks of admission (/admit, /admit/slow), conversion (/convert), authorization (/authorize, by
user) and tokens (/token), and an API server of the group agg.example whose OpenAPI document has
version 2 only. Writes every request as a line of LOG."""

import json, sys, time
from listener import Handler, serve

cert, key, port_file, log = sys.argv[1:]

RESOURCES = {
    "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "agg.example/v1",
    "resources": [{
        "name": "gaps", "singularName": "gap", "kind": "Gap", "namespaced": False,
        "verbs": ["create", "get", "list", "watch"],
    }],
}
SWAGGER = {
    "swagger": "2.0", "info": {"title": "gaps", "version": "1"},
    "paths": {"/apis/agg.example/v1/gaps": {"get": {"responses": {"200": {"description": "OK"}}}}},
}
DOCUMENTS = {
    "/apis/agg.example/v1": RESOURCES,
    "/apis/agg.example/v1/gaps": {
        "kind": "GapList", "apiVersion": "agg.example/v1", "metadata": {}, "items": [],
    },
    "/openapi/v2": SWAGGER,
}


def converted(thing, version):
    """spec.a of version v1 is spec.b of version v2."""
    old, new = ("a", "b") if version.endswith("/v2") else ("b", "a")
    spec = thing.get("spec") or {}
    if old in spec:
        spec[new] = spec.pop(old)
    return {**thing, "apiVersion": version, "spec": spec}


class Peer(Handler):
    def note(self, **more):
        line = {
            "path": self.path.partition("?")[0], "port": self.client_address[1],
            "authorization": self.headers.get("Authorization"),
            "traceparent": self.headers.get("traceparent"), **more,
        }
        with open(log, "a") as out:
            out.write(json.dumps(line) + "\n")

    def say(self, document, code=200):
        self.answer(code, json.dumps(document).encode())

    def do_GET(self):
        self.note()
        if "watch=1" in self.path:
            self.note(path="watching")
            time.sleep(2)
        document = DOCUMENTS.get(self.path.partition("?")[0])
        self.say(document or {"kind": "Status", "code": 404}, 200 if document else 404)

    def do_POST(self):
        review = json.loads(self.body())
        path = self.path.partition("?")[0]
        if path == "/apis/agg.example/v1/gaps":
            return self.say({"kind": "Gap", "apiVersion": "agg.example/v1"}, 201)
        request = review.get("request") or {}
        if path == "/authorize":
            return self.authorize(review)
        if path == "/token":
            self.note(token=review["spec"]["token"])
            return self.say({**review, "status": {"authenticated": False, "error": "unknown"}})
        response = {"uid": request["uid"]}
        if path == "/convert":
            version = request["desiredAPIVersion"]
            self.note(to=version, managed="managedFields" in json.dumps(request))
            response["result"] = {"status": "Success"}
            response["convertedObjects"] = [converted(o, version) for o in request["objects"]]
        else:
            members = ("name", "operation", "resource", "subResource", "userInfo")
            self.note(**{name: request.get(name) for name in members})
            response["allowed"] = True
            if path == "/admit/slow":
                time.sleep(0.8)
        kinds = ("apiVersion", "kind")
        self.say({**{name: review[name] for name in kinds}, "response": response})

    def authorize(self, review):
        user = review["spec"]["user"]
        self.note(user=user)
        status = {"allowed": True}
        if user == "again":
            self.send_response(429)
            self.send_header("Retry-After", "0")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if user == "slow":
            time.sleep(1.5)
        if user == "large":
            status["reason"] = "x" * (1 << 20)
        if user == "reason":
            status["reason"] = "x" * 10_001
        self.say({**review, "status": status})


serve(Peer, port_file, "0.0.0.0", cert, key)
