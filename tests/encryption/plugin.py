#!/usr/bin/env python3
"""plugin.py SOCKET FOLDER: a KMS v2 plugin (k8s.io/kms/apis/v2) for tests. The file FOLDER/key
names its key, FOLDER/health its health (ok if missing); each call adds a line to FOLDER/calls. gRPC
is HTTP/2 with five bytes before a message; the message alone determines the method, so that the
plugin reads no headers. Its encryption is not secure.
"""

import hashlib, hmac, os, socket, struct, sys, threading

where, folder = sys.argv[1], sys.argv[2]


def said(name, default):
    try:
        return open(os.path.join(folder, name)).read().strip()
    except OSError:
        return default


def varint(value):
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def field(number, value):
    return varint(number << 3 | 2) + varint(len(value)) + value if value else b""


def fields(message):
    out, at = {}, 0

    def number():
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = message[at]
            at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while at < len(message):
        tag, length = number(), number()
        out[tag >> 3] = message[at : at + length]
        at += length
    return out


def stream(key, nonce, length):
    blocks = (
        hashlib.sha256(key + nonce + struct.pack(">I", i)).digest() for i in range(length // 32 + 1)
    )
    return b"".join(blocks)[:length]


def mixed(key_id, nonce, text):
    return bytes(
        a ^ b for a, b in zip(text, stream(hashlib.sha256(key_id).digest(), nonce, len(text)))
    )


def answer(message):
    """The response, or a status and its reason."""
    given, key = fields(message), said("key", "one").encode()
    with open(os.path.join(folder, "calls"), "a") as calls:
        calls.write(("decrypt" if 3 in given else "encrypt" if 1 in given else "status") + "\n")
    if not given:
        return field(1, b"v2") + field(2, said("health", "ok").encode()) + field(3, key)
    if 3 not in given:
        nonce = os.urandom(16)
        sealed = mixed(key, nonce, given[1])
        tag = hmac.digest(key, nonce + sealed, "sha256")
        return (
            field(1, nonce + tag + sealed)
            + field(2, key)
            + field(3, field(1, b"version.test.example") + field(2, b"1"))
        )
    nonce, tag, sealed = given[1][:16], given[1][16:48], given[1][48:]
    if not hmac.compare_digest(tag, hmac.digest(given[3], nonce + sealed, "sha256")):
        return 3, b"this is not what key " + given[3] + b" sealed"
    return field(1, mixed(given[3], nonce, sealed))


def header(name, value):
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def serve(peer):
    lock, bodies = threading.Lock(), {}

    def exactly(length):
        out = b""
        while len(out) < length:
            part = peer.recv(length - len(out))
            if not part:
                raise EOFError
            out += part
        return out

    def frame(kind, flags, number, payload):
        with lock:
            peer.sendall(
                struct.pack(">I", len(payload))[1:]
                + bytes([kind, flags])
                + struct.pack(">I", number)
                + payload
            )

    try:
        exactly(24)
        frame(4, 0, 0, b"")
        while True:
            head = exactly(9)
            length, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
            number, payload = struct.unpack(">I", head[5:])[0] & 0x7FFFFFFF, exactly(length)
            if kind == 4 and not flags & 1:
                frame(4, 1, 0, b"")
            elif kind == 6 and not flags & 1:
                frame(6, 1, 0, payload)
            elif kind == 0:
                bodies[number] = bodies.get(number, b"") + payload
                if flags & 1:
                    response = answer(bodies.pop(number)[5:])
                    frame(1, 4, number, b"\x88" + header(b"content-type", b"application/grpc"))
                    if isinstance(response, tuple):
                        frame(
                            1, 5, number, header(b"grpc-status", str(response[0]).encode())
                            + header(b"grpc-message", response[1]),
                        )
                    else:
                        frame(0, 0, number, b"\x00" + struct.pack(">I", len(response)) + response)
                        frame(1, 5, number, header(b"grpc-status", b"0"))
    except (EOFError, OSError):
        peer.close()


if os.path.exists(where):
    os.unlink(where)
listener = socket.socket(socket.AF_UNIX)
listener.bind(where)
listener.listen()
print("listening", flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
