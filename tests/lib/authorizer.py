"""An authorization webhook: authorizer.py PORT-PIPE LOG. The user's name says what it answers; every review becomes a line of LOG."""
import http.server, json, sys

port_file, log = sys.argv[1:]
ANSWERS = {
    "allowed": {"allowed": True, "reason": "the webhook says yes"},
    "denied": {"allowed": False, "denied": True, "reason": "the webhook says no"},
    "both": {"allowed": True, "denied": True},
}


class Hook(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        line = {"path": self.path, "authorization": self.headers.get("Authorization"), "review": review}
        with open(log, "a") as out:
            out.write(json.dumps(line) + "\n")
        user = review["spec"].get("user", "")
        review["status"] = ANSWERS.get(user, {"allowed": False, "reason": "not mine"})
        body = b"nonsense" if user == "broken" else json.dumps(review).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook)
with open(port_file, "w") as out:
    out.write(str(server.server_address[1]))
server.serve_forever()
