"""A receiver of audit events: audit.py PORT-PIPE LOG. Every list it is sent becomes a line of LOG; /fail refuses its first two."""
import http.server, json, sys

port_file, log = sys.argv[1:]
refused = 0


class Receiver(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        global refused
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        code = 200
        if self.path.startswith("/fail") and refused < 2:
            refused += 1
            code = 503
        else:
            line = {"path": self.path, "authorization": self.headers.get("Authorization"), "type": self.headers.get("Content-Type"), "list": body}
            with open(log, "a") as out:
                out.write(json.dumps(line) + "\n")
        self.send_response(code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
with open(port_file, "w") as out:
    out.write(str(server.server_address[1]))
server.serve_forever()
