#!/usr/bin/env python3
"""Answers probes and hooks: health-server.py ADDRESS HTTP_PORT GRPC_PORT FILE

HTTP: writes every path to FILE; /bad answers 500, /redirect?TARGET redirects to TARGET, every
other path answers 200. gRPC: the health service, SERVING for every service except `dead`, with
as much HTTP/2 as sequential calls need.
"""

import http.server, socketserver, struct, sys, threading


class Http(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        with open(sys.argv[4], "a") as out:
            out.write(self.path + "\n")
        location = self.path.partition("?")[2] if self.path.startswith("/redirect?") else None
        self.send_response(302 if location else 500 if self.path == "/bad" else 200)
        if location:
            self.send_header("Location", location)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def literal(name, value):
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


class Grpc(socketserver.StreamRequestHandler):
    def frame(self, kind, flags, stream, payload=b""):
        self.wfile.write(
            struct.pack(">I", len(payload))[1:]
            + bytes([kind, flags])
            + struct.pack(">I", stream)
            + payload
        )

    def handle(self):
        try:
            self.serve()
        except (OSError, struct.error):
            pass

    def serve(self):
        self.rfile.read(24)
        self.frame(4, 0, 0)
        bodies = {}
        while True:
            head = self.rfile.read(9)
            if len(head) < 9:
                return
            length, kind, flags = struct.unpack(">I", b"\0" + head[:3])[0], head[3], head[4]
            stream = struct.unpack(">I", head[5:])[0]
            payload = self.rfile.read(length)
            if kind == 4 and not flags & 1:
                self.frame(4, 1, 0)
            elif kind == 6 and not flags & 1:
                self.frame(6, 1, 0, payload)
            elif kind in (0, 1):
                bodies[stream] = bodies.get(stream, b"") + (payload if kind == 0 else b"")
                if flags & 1:
                    dead = b"dead" in bodies.pop(stream)
                    self.frame(
                        1, 4, stream, b"\x88" + literal(b"content-type", b"application/grpc")
                    )
                    self.frame(
                        0, 0, stream, struct.pack(">BI", 0, 2) + bytes([8, 2 if dead else 1])
                    )
                    self.frame(1, 5, stream, literal(b"grpc-status", b"0"))


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address, daemon_threads = True, True


address, http_port, grpc_port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
threading.Thread(target=Server((address, grpc_port), Grpc).serve_forever, daemon=True).start()
http.server.ThreadingHTTPServer((address, http_port), Http).serve_forever()
