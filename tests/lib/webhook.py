"""A webhook: webhook.py CERT KEY PORT-PIPE LOG. The path says what it does; every review it is sent becomes a line of LOG."""
import base64, http.server, json, ssl, sys

cert, key, port_file, log = sys.argv[1:]


class Hook(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        path, _, query = self.path.partition("?")
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        request = review["request"]
        with open(log, "a") as out:
            line = {"path": path, "query": query, "authorization": self.headers.get("Authorization"), **request}
            out.write(json.dumps(line) + "\n")
        if path == "/slow":
            # Answers when the other side has given up, or never.
            self.rfile.read(1)
            return
        if path == "/redirect":
            self.send_response(307)
            self.send_header("Location", "/allow")
            self.send_header("Content-Length", "0")
            self.end_headers()
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
        body = json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("0.0.0.0", 0), Hook)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(cert, key)
server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
with open(port_file, "w") as out:
    out.write(str(server.server_address[1]))
server.serve_forever()
