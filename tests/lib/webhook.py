"""A webhook: webhook.py CERT KEY PORT-PIPE LOG. The path selects its behaviour; writes every
received review as a line of LOG."""

import base64, json, sys
from listener import Handler, serve

cert, key, port_file, log = sys.argv[1:]


class Hook(Handler):
    def do_POST(self):
        path, _, query = self.path.partition("?")
        review = json.loads(self.body())
        request = review["request"]
        with open(log, "a") as out:
            line = {
                "path": path, "query": query, "authorization": self.headers.get("Authorization"),
                **request,
            }
            out.write(json.dumps(line) + "\n")
        if path == "/slow":
            # Answers after the client has closed the connection, or never.
            self.rfile.read(1)
            return
        if path == "/redirect":
            self.answer(307, location="/allow")
            return
        response = {"uid": request["uid"], "allowed": path != "/deny"}
        if path == "/deny":
            response["status"] = {"message": "the webhook says no", "code": 403}
        if path == "/warn":
            response["warnings"] = ["mind the gap"]
        if path in ("/one", "/two"):
            patch = []
            data = (request["object"] or {}).get("data") or {}
            if path == "/one" and "start" in data:
                patch = [{"op": "add", "path": "/data/one", "value": "yes"}]
            if path == "/two" and "one" in data:
                patch = [{"op": "add", "path": "/data/two", "value": "yes"}]
            if patch:
                response["patchType"] = "JSONPatch"
                response["patch"] = base64.b64encode(json.dumps(patch).encode()).decode()
        self.answer(
            200,
            json.dumps({
                "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
                "response": response,
            }).encode(),
        )


serve(Hook, port_file, "0.0.0.0", cert, key)
