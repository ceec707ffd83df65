"""A false server: TLS with a given certificate; writes the requests it receives to a file.

usage: false-server.py ADDRESS PORT MODE CA CERT KEY LOG [REAL]
Modes: `shows` answers /cacerts with CA; `web` answers 404; `past` and `future` are `shows` with a
clock that is a year off; `newer` forwards requests to the real server (host:port), as if from an
agent of a newer version; `forward` forwards bytes, without TLS.
Prints a line once it listens.
"""

import http.client, http.server, json, socket, ssl, sys, threading, time

address, port, mode, ca, cert, key, log = sys.argv[1:8]
real = sys.argv[8] if len(sys.argv) > 8 else None


def pump(a, b):
    try:
        while data := a.recv(65536):
            b.sendall(data)
        b.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def forward():
    host, real_port = real.rsplit(":", 1)
    listener = socket.create_server((address, int(port)))
    print("listening", flush=True)
    while True:
        client, _ = listener.accept()
        server = socket.create_connection((host, int(real_port)))
        for pair in ((client, server), (server, client)):
            threading.Thread(target=pump, args=pair, daemon=True).start()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def date_time_string(self, timestamp=None):
        year = 365 * 86400
        return super().date_time_string(
            time.time() + {"past": -year, "future": year + 60}.get(mode, 0)
        )

    def note(self, body=b""):
        with open(log, "ab") as file:
            file.write(f"{self.command} {self.path}\n{self.headers}\n".encode() + body + b"\n")

    def reply(self, status, body, kind="text/plain"):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.note()
        if mode == "web" or self.path != "/cacerts":
            self.reply(404, b"not here")
        else:
            self.reply(200, open(ca, "rb").read())

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.note(body)
        if mode != "newer":
            return self.reply(404, b"not here")
        ask = json.loads(body)
        ask["version"] = "v1.38.0"
        connection = http.client.HTTPSConnection(real, context=ssl._create_unverified_context())
        connection.request(
            "POST", self.path, json.dumps(ask), {"authorization": self.headers["authorization"]}
        )
        answer = connection.getresponse()
        self.reply(answer.status, answer.read(), "application/json")

    def log_message(self, *_):
        pass


if mode == "forward":
    forward()
server = http.server.ThreadingHTTPServer((address, int(port)), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(cert, key)
server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
print("listening", flush=True)
server.serve_forever()
