#!/usr/bin/env python3
"""Tests a TLS listener as an anonymous client, also with abuse.

tls.py sweep ADDRESS PORT [CERT KEY]
    the accepted versions, and the accepted suites of TLS 1.2
tls.py names ADDRESS PORT TIMES
    handshakes with made-up server names and hosts; prints the number of different certificates
tls.py reset|continuation ADDRESS PORT
    HTTP/2 streams that are reset at once, or headers that never end; prints `ended` if the server
    closes the connection before a hundred thousand of them, and accepts the next one
tls.py request ADDRESS PORT
    sends a request of HTTP/1.1 from standard input unchanged; prints the status
tls.py silent ADDRESS PORT SECONDS
    a client that completes its handshake and sends nothing; prints `ended` if the server closes
    the connection in time
"""

import hashlib, random, socket, ssl, sys

VERSIONS = [
    ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3,
]


def context(version=None, cert=None, key=None):
    c = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    c.check_hostname, c.verify_mode = False, ssl.CERT_NONE
    if version:
        c.minimum_version = c.maximum_version = version
    if cert:
        c.load_cert_chain(cert, key)
    return c


def connect(address, port, c, name=None):
    s = socket.create_connection((address, port), 10)
    try:
        return c.wrap_socket(s, server_hostname=name)
    except Exception:
        s.close()
        raise


def taken(address, port, c):
    try:
        with connect(address, port, c) as s:
            return s.cipher()[0]
    except (ssl.SSLError, OSError):
        return None


def sweep(address, port, cert=None, key=None):
    versions = []
    for version in VERSIONS:
        c = context(version, cert, key)
        c.set_ciphers("ALL:COMPLEMENTOFALL:@SECLEVEL=0")
        if taken(address, port, c):
            versions.append(version.name)
    print(*versions)
    c = context(ssl.TLSVersion.TLSv1_2, cert, key)
    c.set_ciphers("ALL:COMPLEMENTOFALL:@SECLEVEL=0")
    for suite in sorted({s["name"] for s in c.get_ciphers() if not s["name"].startswith("TLS_")}):
        one = context(ssl.TLSVersion.TLSv1_2, cert, key)
        one.set_ciphers(suite + ":@SECLEVEL=0")
        if taken(address, port, one):
            print(suite)


def names(address, port, times):
    shown = set()
    for _ in range(times):
        name = "".join(random.choices("abcdefghij", k=12)) + random.choice(
            [".example.com", ".svc", ""]
        )
        with connect(address, port, context(), name) as s:
            shown.add(hashlib.sha256(s.getpeercert(True)).hexdigest())
            s.sendall(
                f"GET /healthz HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n".encode()
            )
            s.recv(4096)
    print(len(shown))


def frame(kind, flags, stream, payload):
    return (
        len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload
    )


def flood(kind, address, port):
    c = context()
    c.set_alpn_protocols(["h2"])
    # GET, https, /, authority a: indexed fields of RFC 7541, appendix A.
    headers = b"\x82\x87\x84\x41\x01a"
    with connect(address, port, c) as s:
        assert s.selected_alpn_protocol() == "h2"
        s.settimeout(20)
        try:
            s.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b""))
            if kind == "continuation":
                s.sendall(frame(1, 0, 1, headers))
            for i in range(100_000):
                if kind == "reset":
                    s.sendall(
                        frame(1, 5, 2 * i + 1, headers) + frame(3, 0, 2 * i + 1, b"\0\0\0\x08")
                    )
                else:
                    s.sendall(frame(9, 0, 1, b"\x00\x04name\x7f\x81\x00" + b"v" * 256))
            print("went on")
            return
        except OSError:
            pass
    taken_next = taken(address, port, context())
    print("ended" if taken_next else "gone")


def request(address, port):
    with connect(address, port, context()) as s:
        s.settimeout(10)
        try:
            s.sendall(sys.stdin.buffer.read())
            answer = s.recv(4096).split(b"\r\n")[0].decode(errors="replace")
        except OSError:
            answer = ""
    print(answer or "closed")


def silent(address, port, seconds):
    with connect(address, port, context()) as s:
        s.settimeout(seconds)
        try:
            while s.recv(4096):
                pass
            print("ended")
        except TimeoutError:
            print("held")
        except OSError:
            print("ended")


def main():
    what, address, port, *more = sys.argv[1:]
    port = int(port)
    if what == "sweep":
        sweep(address, port, *more)
    elif what == "names":
        names(address, port, int(more[0]))
    elif what in ("reset", "continuation"):
        flood(what, address, port)
    elif what == "request":
        request(address, port)
    elif what == "silent":
        silent(address, port, float(more[0]))


main()
