"""Floods, slow clients and hundreds of clients: none may stop other clients, and the cost of each
is bounded."""

from abuse import *

CONNECTIONS = int(os.environ.get("ABUSE_CONNECTIONS", "500"))
ENHANCE_YOUR_CALM, PROTOCOL_ERROR, FLOW_CONTROL_ERROR, FRAME_SIZE_ERROR = 11, 1, 3, 6


def abuse(name, growth=50, seconds=3.0):
    """Runs a part while another client sends requests, and checks its result, that client and the
    memory."""

    def run(part):
        fault = ""
        with Others() as others:
            try:
                fault = part() or ""
            except OSError as error:
                fault = repr(error)
        check(name, fault or others.verdict(growth, seconds))

    return run


def ends(connection, *fates):
    """An error unless the connection ended in one of these ways."""
    fate = connection.fate(3)
    return "" if fate in fates else f"the connection ended as {fate}, not {fates}"


def flood(connection, piece, times):
    for _ in range(times):
        if not connection.send(piece):
            break


# Slow handshakes begin first and are checked last.
half = [tls(plain=True) for _ in range(200)]
begun = time.monotonic()


@abuse("HTTP/2: streams that are opened and reset at once end the connection")
def _():
    c, head = Second(), fields(MAPS)
    for i in range(200):
        streams = range(200 * i + 1, 200 * i + 201, 2)
        if not c.send(
            b"".join(
                frame(HEADERS, 5, n, head) + frame(RESET, 0, n, struct.pack(">I", 8))
                for n in streams
            )
        ):
            break
    return ends(c, ENHANCE_YOUR_CALM, "closed")


@abuse("HTTP/2: endless headers end the connection")
def _():
    c = Second()
    c.send(frame(HEADERS, 1, 1, fields("/api")))
    flood(c, frame(CONTINUATION, 0, 1, field("x", "a" * 1000) * 10), 20000)
    return ends(c, ENHANCE_YOUR_CALM, "closed")


@abuse("HTTP/2: empty continuations end the connection")
def _():
    c = Second()
    c.send(frame(HEADERS, 1, 1, fields("/api")))
    flood(c, frame(CONTINUATION, 0, 1) * 100, 2000)
    return ends(c, ENHANCE_YOUR_CALM, PROTOCOL_ERROR, "closed")


@abuse("HTTP/2: empty parts of a body end the connection")
def _():
    c = Second()
    c.send(frame(HEADERS, 4, 1, fields(MAPS, "POST", ("content-type", "application/json"))))
    flood(c, frame(DATA, 0, 1) * 100, 2000)
    return ends(c, ENHANCE_YOUR_CALM, "closed")


@abuse("HTTP/2: 100,000 pings and settings with unread answers cost no memory")
def _():
    for piece in (frame(PING, 0, 0, b"12345678"), frame(SETTINGS, 0, 0, setting(4, 70000))):
        c = Second(buffer=4096)
        c.s.settimeout(3)
        flood(c, piece * 100, 1000)


@abuse("HTTP/2: headers of 100 KB are refused with 431, and the connection stays")
def _():
    c, block = Second(), fields("/api") + field("x", "a" * 100000)
    parts = [block[i : i + 16000] for i in range(0, len(block), 16000)]
    frames = [frame(CONTINUATION, 4 * (part is parts[-1]), 1, part) for part in parts[1:]]
    c.send(frame(HEADERS, 1, 1, parts[0]) + b"".join(frames))
    status = next((got[3] for got in c.frames(3) if got and got[0] == HEADERS), b"")
    # The status as h2 encodes it: a Huffman literal after the index of `:status`.
    return "" if b"\x83\x69\x90\xff" in status and c.ask(3, "/api") else f"answered {status!r}"


@abuse("HTTP/2: an indexed header of 4 KB, named 10,000 times in a request, is refused")
def _():
    c = Second()
    c.send(
        frame(
            HEADERS, 5, 1,
            fields("/api") + b"\x40" + integer(1, 7) + b"x" + integer(3900, 7) + b"a" * 3900,
        )
    )
    for i in range(300):
        if not c.send(frame(HEADERS, 5, 3 + 2 * i, fields("/api") + b"\xbe" * 10000)):
            break
    return ends(c, ENHANCE_YOUR_CALM, "closed")


@abuse("HTTP/2: windows of zero, too large and too small are protocol errors")
def _():
    for fate, piece in [
        (PROTOCOL_ERROR, frame(WINDOW, 0, 0, struct.pack(">I", 0))),
        (FLOW_CONTROL_ERROR, frame(WINDOW, 0, 0, struct.pack(">I", (1 << 31) - 1)) * 2),
        ((FLOW_CONTROL_ERROR, PROTOCOL_ERROR), frame(SETTINGS, 0, 0, setting(4, 1 << 31))),
        (PROTOCOL_ERROR, frame(SETTINGS, 0, 0, setting(5, 1))),
        (PROTOCOL_ERROR, frame(DATA, 0, 1, b"x")),
        (PROTOCOL_ERROR, frame(HEADERS, 5, 2, fields("/api"))),
        (FRAME_SIZE_ERROR, b"\xff" * 9 + b"x" * 100000),
    ]:
        c = Second()
        c.send(piece)
        fault = ends(c, *(fate if isinstance(fate, tuple) else (fate,)))
        if fault:
            return fault


@abuse(
    "HTTP/2: 1,000 large unread answers are not held in memory", growth=150, seconds=5
)
def _():
    connections = [Second(setting(4, 0)) for _ in range(5)]
    for c in connections:
        c.send(b"".join(frame(HEADERS, 5, 2 * i + 1, fields("/openapi/v2")) for i in range(200)))
    # The server answers another stream, too. Flow control does not cover headers: once all headers
    # have arrived, all answers exist, and their memory is part of this measurement.
    for c in connections:
        c.send(frame(HEADERS, 5, 401, fields("/api/v1/namespaces/default")))
    for c in connections:
        left = set(range(1, 402, 2))
        for got in c.frames(5):
            left -= {got[2]} if got and got[0] in (HEADERS, RESET) else set()
            if not left:
                break
        if left:
            return f"{len(left)} of 201 streams of a connection that takes nothing are not answered"


@abuse("200 heads and 200 bodies that arrive byte by byte")
def _():
    heads, bodies = [tls() for _ in range(200)], [tls() for _ in range(200)]
    for s in heads:
        s.sendall(b"GET /api HTTP/1.1\r\nHost: localhost\r\nX: ")
    for s in bodies:
        s.sendall(request("POST", MAPS, "{", ["Content-Length: 3000000"]))
    for _ in range(5):
        for s in heads + bodies:
            s.sendall(b" ")


@abuse(f"{CONNECTIONS} connections that send nothing", growth=50 + CONNECTIONS // 20)
def _():
    opened = [tls("h2" if i % 2 else None) for i in range(CONNECTIONS)]
    return "" if len(opened) == CONNECTIONS else "not all were taken"


@abuse("200 watches whose clients do not read, with 100 writes of 20 KB", growth=100)
def _():
    say(request("POST", MAPS, config_map("seen")))
    watches = [tls(buffer=4096) for _ in range(200)]
    for s in watches:
        s.sendall(request("GET", MAPS + "?watch=1"))
    for i in range(100):
        code = say(
            request("PUT", f"{MAPS}/seen", config_map("seen", data={"a": "x" * 20000, "i": str(i)}))
        )[0]
        if code != 200:
            return f"a write was answered {code}"


@abuse("100 clients that request a large list and do not read it", growth=300)
def _():
    for i in range(4):
        say(request("POST", MAPS, config_map(f"large{i}", data={"a": "x" * 500000})))
    slow = [tls(buffer=4096) for _ in range(100)]
    for s in slow:
        s.sendall(request("GET", MAPS))


def handshakes():
    for s in half:
        s.settimeout(max(0.1, 20 - (time.monotonic() - begun)))
        if s.recv(1):
            return "the server sent data"
    return ""


try:
    check("200 connections without a handshake are closed in time", handshakes())
except OSError as error:
    check("200 connections without a handshake are closed in time", repr(error))
