#!/usr/bin/env python3
"""A DNS client and, for the suites, the DNS server outside of the cluster.

dns.py ask SERVER NAME TYPE [tcp]
    prints the code, and for each record of the answer `ttl TYPE data`, sorted, separated by ` | `
dns.py serve ADDRESS LOG [NAME=IPV4[/TTL] ...]
    answers for example.test and these names on port 53, and writes each question as a line of LOG
dns.py tls ADDRESS LOG CERTIFICATE_AND_KEY [NAME=IPV4[/TTL] ...]
    the same over TLS on port 853
"""

import random, socket, ssl, struct, sys, threading

TYPES = {"A": 1, "NS": 2, "CNAME": 5, "SOA": 6, "PTR": 12, "TXT": 16, "AAAA": 28, "SRV": 33}
NAMES = {number: name for name, number in TYPES.items()}
CODES = {0: "NOERROR", 1: "FORMERR", 2: "SERVFAIL", 3: "NXDOMAIN", 4: "NOTIMP", 5: "REFUSED"}


def pack(name):
    return (
        b"".join(
            bytes([len(label)]) + label.encode() for label in name.rstrip(".").split(".") if label
        )
        + b"\0"
    )


def unpack(message, at):
    labels, end = [], None
    while True:
        length = message[at]
        if length & 0xC0:
            end = end or at + 2
            at = struct.unpack_from("!H", message, at)[0] & 0x3FFF
        elif length == 0:
            return ".".join(labels), end or at + 1
        else:
            labels.append(message[at + 1 : at + 1 + length].decode())
            at += 1 + length


def family(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def exactly(stream, length):
    data = b""
    while len(data) < length:
        part = stream.recv(length - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def over_tcp(stream, message):
    stream.sendall(struct.pack("!H", len(message)) + message)


def from_tcp(stream):
    return exactly(stream, struct.unpack("!H", exactly(stream, 2))[0])


def data(message, kind, at, length):
    if kind in (1, 28):
        return socket.inet_ntop(
            socket.AF_INET if kind == 1 else socket.AF_INET6, message[at : at + length]
        )
    if kind in (2, 5, 12):
        return unpack(message, at)[0]
    if kind == 33:
        return f"{struct.unpack_from('!H', message, at + 4)[0]} {unpack(message, at + 6)[0]}"
    if kind == 16:
        return f"{length} bytes" if length > 100 else message[at + 1 : at + length].decode()
    return "..."


def ask(server, name, kind, tcp):
    question = (
        struct.pack("!HHHHHH", random.randrange(65536), 0x0100, 1, 0, 0, 0)
        + pack(name)
        + struct.pack("!HH", TYPES[kind], 1)
    )
    if tcp:
        with socket.create_connection((server, 53), timeout=10) as s:
            over_tcp(s, question)
            answer = from_tcp(s)
    else:
        with socket.socket(family(server), socket.SOCK_DGRAM) as s:
            s.settimeout(10)
            s.connect((server, 53))
            s.send(question)
            answer = s.recv(65535)
    assert answer[:2] == question[:2]
    flags, _, count = struct.unpack_from("!HHH", answer, 2)
    at, records = unpack(answer, 12)[1] + 4, []
    for _ in range(count):
        at = unpack(answer, at)[1]
        number, _, ttl, length = struct.unpack_from("!HHIH", answer, at)
        records.append(f"{ttl} {NAMES.get(number, number)} {data(answer, number, at + 10, length)}")
        at += 10 + length
    print(
        " | ".join([
            CODES.get(flags & 15, str(flags & 15)) + (" truncated" if flags & 0x200 else ""),
            *sorted(records),
        ])
    )


def respond(message, tcp, log, more):
    name, at = unpack(message, 12)
    kind = struct.unpack_from("!H", message, at)[0]
    log.write(f"{'tcp' if tcp else 'udp'} {name.lower()} {NAMES.get(kind, kind)}\n")
    log.flush()
    zone = {
        "www.example.test": {
            1: [socket.inet_aton("198.51.100.7")],
            28: [socket.inet_pton(socket.AF_INET6, "2001:db8:9::7")],
        },
        "big.example.test": {16: [bytes([200]) + b"x" * 200] * 8},
    }
    ttl = 300
    if name.lower() in more:
        address, ttl = more[name.lower()]
        zone[name.lower()] = {1: [address]}
    entry = zone.get(name.lower())
    records, code, cut = (entry or {}).get(kind, []), 0 if entry else 3, False
    if not tcp and len(records) > 4:
        records, cut = [], True
    soa = pack("example.test") + struct.pack("!HHIH", 6, 1, 60, 0)
    out = struct.pack(
        "!HHHHHH", struct.unpack_from("!H", message)[0], 0x8580 | code | (0x200 if cut else 0), 1,
        len(records), 0 if records or cut else 1, 0,
    )
    out += message[12 : at + 4]
    for record in records:
        out += b"\xc0\x0c" + struct.pack("!HHIH", kind, 1, ttl, len(record)) + record
    if not records and not cut:
        fields = (
            pack("ns.example.test")
            + pack("root.example.test")
            + struct.pack("!IIIII", 1, 60, 60, 60, 60)
        )
        out += soa[:-2] + struct.pack("!H", len(fields)) + fields
    return out


def serve(address, path, names, pem=None):
    more = {}
    for name in names:
        name, value = name.split("=")
        ipv4, _, ttl = value.partition("/")
        more[name] = (socket.inet_aton(ipv4), int(ttl or 300))
    log = open(path, "a", encoding="utf-8")
    tcp = socket.create_server((address, 853 if pem else 53), family=family(address))
    if pem:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)

    def connections():
        while True:
            stream, _ = tcp.accept()
            with stream:
                try:
                    if pem:
                        stream = context.wrap_socket(stream, server_side=True)
                    over_tcp(stream, respond(from_tcp(stream), True, log, more))
                except (EOFError, OSError):
                    pass

    if pem:
        connections()
    threading.Thread(target=connections, daemon=True).start()
    udp = socket.socket(family(address), socket.SOCK_DGRAM)
    udp.bind((address, 53))
    while True:
        message, peer = udp.recvfrom(4096)
        udp.sendto(respond(message, False, log, more), peer)


if sys.argv[1] == "ask":
    ask(sys.argv[2], sys.argv[3], sys.argv[4].upper(), "tcp" in sys.argv[5:])
elif sys.argv[1] == "tls":
    serve(sys.argv[2], sys.argv[3], sys.argv[5:], sys.argv[4])
else:
    serve(sys.argv[2], sys.argv[3], sys.argv[4:])
