"""Common code of the tests' HTTP servers: answers with their length, no log, and a port that is
reported to the caller."""

import http.server, ssl


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def body(self):
        return self.rfile.read(int(self.headers["Content-Length"]))

    def answer(self, code, body=b"", location=None):
        self.send_response(code)
        if location:
            self.send_header("Location", location)
        if body:
            self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def serve(handler, port_file, host="127.0.0.1", cert=None, key=None):
    """Serves until killed, over TLS if there is a certificate; the port is a free one and written
    to port_file."""
    server = http.server.ThreadingHTTPServer((host, 0), handler)
    if cert:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    with open(port_file, "w") as out:
        out.write("%d\n" % server.server_address[1])
    server.serve_forever()
