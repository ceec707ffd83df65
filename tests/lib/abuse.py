"""Hostile clients: raw HTTP/1.1 and HTTP/2 over TLS, to control every byte. The suites state the
result of each."""

import json, os, re, resource, socket, ssl, struct, sys, threading, time

HOST, PORT = "127.0.0.1", int(os.environ["ABUSE_PORT"])
TOKEN = os.environ["ABUSE_TOKEN"]
PID = os.environ.get("ABUSE_PID", "")
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)


def tls(protocol=None, plain=False, buffer=None):
    """A connection; `protocol` is offered by ALPN."""
    s = socket.socket()
    if buffer:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    s.settimeout(30)
    s.connect((HOST, PORT))
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if plain:
        return s
    # `create_default_context` reads all CAs of the system, which takes 50 ms per connection.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if protocol:
        context.set_alpn_protocols([protocol])
    return context.wrap_socket(s, server_hostname="localhost")


def read_all(s, seconds, linger):
    """Reads until the end of the connection or until `seconds` pass without data, and `linger`
    seconds after a complete answer. Returns the bytes and whether the connection ended."""
    s.settimeout(seconds)
    out = b""
    try:
        while True:
            piece = s.recv(1 << 16)
            if not piece:
                return out, True
            out += piece
            if complete(out):
                if not linger:
                    return out, False
                s.settimeout(linger)
    except TimeoutError:
        return out, False
    except OSError:
        return out, True


def complete(answer):
    head, separator, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    is_complete = len(body) >= int(length[1]) if length else body.endswith(b"0\r\n\r\n")
    return bool(separator) and is_complete


def say(data, seconds=10, linger=0.0):
    """Sends bytes on a new connection: status, body, whether the server closed it, seconds."""
    begun, s = time.monotonic(), tls()
    try:
        s.sendall(data)
    except OSError:
        pass
    answer, closed = read_all(s, seconds, linger)
    s.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    words = head.split(b"\r\n")[0].split(b" ")
    if re.search(rb"(?i)transfer-encoding: chunked", head):
        pieces = b""
        while body:
            size, _, body = body.partition(b"\r\n")
            count = int(size or b"0", 16)
            pieces, body = pieces + body[:count], body[count + 2 :]
        body = pieces
    warnings = re.findall(rb"(?i)\r\nwarning: ([^\r]*)", head)
    return (
        int(words[1]) if len(words) > 1 else 0, body, closed, time.monotonic() - begun,
        b" ".join(warnings),
    )


def request(
    method, path, body=None, headers=(), token=TOKEN, kind="application/json", host="localhost"
):
    lines = [f"{method} {path} HTTP/1.1"]
    if host is not None:
        lines.append(f"Host: {host}")
    if token:
        lines.append(f"Authorization: Bearer {token}")
    names = [h.split(":")[0].lower() for h in headers]
    if body is not None:
        body = body.encode() if isinstance(body, str) else body
        if kind:
            lines.append(f"Content-Type: {kind}")
        if not {"content-length", "transfer-encoding"} & set(names):
            lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, *headers, "", ""]).encode("latin1") + (body or b"")


def rss():
    """Memory of the server in MB."""
    with open(f"/proc/{PID}/status") as f:
        match = re.search(r"VmRSS:\s+(\d+)", f.read())
    if not match:
        sys.exit("the server has ended")
    return int(match[1]) // 1024


class Others:
    """Another client, which sends small requests while the block runs. Records its slowest answer
    and the largest memory of the server."""

    def __enter__(self):
        self.slowest, self.answers, self.failures, self.before = 0.0, 0, [], rss()
        self.most, self.over = self.before, threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        return self

    def run(self):
        while not self.over.is_set():
            begun = time.monotonic()
            try:
                code = say(request("GET", "/api/v1/namespaces/default"), 20)[0]
                if code != 200:
                    self.failures.append(code)
            except OSError as error:
                self.failures.append(repr(error))
                if len(self.failures) > 20:
                    return
            self.answers += 1
            self.slowest = max(self.slowest, time.monotonic() - begun)
            self.most = max(self.most, rss())
            self.over.wait(0.05)

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()

    def verdict(self, growth, seconds):
        grown = self.most - self.before
        if self.failures:
            return f"another client was not served: {self.failures[:3]}"
        if grown > growth:
            return f"memory grew by {grown} MB, from {self.before}"
        if self.slowest > seconds:
            return f"another client waited {self.slowest:.1f} s"
        return ""


# HTTP/2, RFC 9113: a frame begins with nine bytes.
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind, flags=0, stream=0, payload=b""):
    return (
        struct.pack(">I", len(payload))[1:]
        + bytes([kind, flags])
        + struct.pack(">I", stream)
        + payload
    )


def setting(number, value):
    return struct.pack(">HI", number, value)


def integer(value, bits, first=0):
    most = (1 << bits) - 1
    if value < most:
        return bytes([first | value])
    out, value = [first | most], value - most
    while value >= 128:
        out.append(value % 128 + 128)
        value //= 128
    return bytes([*out, value])


def field(name, value):
    """A header field without indexing."""
    name, value = (t.encode() if isinstance(t, str) else t for t in (name, value))
    return b"\0" + integer(len(name), 7) + name + integer(len(value), 7) + value


def fields(path, method="GET", *more):
    pairs = [
        (":method", method), (":scheme", "https"), (":authority", "localhost"), (":path", path),
        ("authorization", f"Bearer {TOKEN}"), *more,
    ]
    return b"".join(field(*pair) for pair in pairs)


class Second:
    """A connection of HTTP/2."""

    def __init__(self, settings=b"", buffer=None):
        self.s = tls("h2", buffer=buffer)
        self.s.sendall(PREFACE + frame(SETTINGS, payload=settings))

    def send(self, data):
        """Returns `False` if the server has closed the connection."""
        try:
            self.s.sendall(data)
            return True
        except OSError:
            return False

    def frames(self, seconds=2.0):
        """Yields frames until the end, or until `seconds` pass without data: kind, flags, stream,
        payload; `None` at the end."""
        self.s.settimeout(seconds)
        buffer = b""
        try:
            while True:
                while len(buffer) >= 9 and len(buffer) >= 9 + int.from_bytes(buffer[:3]):
                    size = int.from_bytes(buffer[:3])
                    yield buffer[3], buffer[4], int.from_bytes(buffer[5:9]), buffer[9 : 9 + size]
                    buffer = buffer[9 + size :]
                piece = self.s.recv(1 << 16)
                if not piece:
                    break
                buffer += piece
        except TimeoutError:
            return
        except OSError:
            pass
        yield None

    def fate(self, seconds=2.0):
        """The state of the connection: `open`, `closed`, or the code of GOAWAY."""
        fate = "open"
        for got in self.frames(seconds):
            if got is None:
                return "closed" if fate == "open" else fate
            if got[0] == GOAWAY:
                fate = int.from_bytes(got[3][4:8])
        return fate

    def ask(self, stream, path, seconds=5.0):
        """Whether a complete answer arrives on this stream."""
        self.send(frame(HEADERS, 0x5, stream, fields(path)))
        for got in self.frames(seconds):
            if got and got[2] == stream and got[0] in (DATA, HEADERS) and got[1] & 1:
                return True
        return False


def check(name, fault):
    """Prints one line for the suite."""
    print(f"{'ok  ' if not fault else 'FAIL'} {name}{': ' + fault if fault else ''}", flush=True)


def config_map(name, **more):
    return json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, **more})


MAPS = "/api/v1/namespaces/default/configmaps"
