"""Prints the prefix of each packet that arrives at a group of NFLOG, one a line, until it is ended.

usage: nflog.py GROUP
"""
import socket
import struct
import sys

NETLINK_NETFILTER = 12
CONFIG, PACKET = 4 << 8 | 1, 4 << 8
REQUEST, ACK = 1, 4


def attributes(data):
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        yield kind & 0x3FFF, data[4:length]
        data = data[(length + 3) & ~3 :]


def configure(group, kind, value):
    body = struct.pack("=BBH", 0, 0, socket.htons(group))
    body += struct.pack("=HH", 4 + len(value), kind) + value
    body += bytes(-len(body) % 4)
    return struct.pack("=IHHII", 16 + len(body), CONFIG, REQUEST | ACK, 1, 0) + body


group = int(sys.argv[1])
sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
sock.bind((0, 0))
# Bind to the group, then copy 64 bytes of each packet.
for kind, value in (1, b"\x01"), (2, struct.pack(">IBB", 64, 2, 0)):
    sock.send(configure(group, kind, value))
    error = struct.unpack_from("=i", sock.recv(65536), 16)[0]
    if error:
        sys.exit(f"cannot listen to group {group} of NFLOG: error {-error}")
print("listening", flush=True)
while True:
    data = sock.recv(1 << 20)
    while len(data) >= 16:
        length, kind = struct.unpack_from("=IH", data)
        if kind == PACKET:
            prefix = dict(attributes(data[20:length])).get(10, b"")
            print(prefix.rstrip(b"\0").decode(), flush=True)
        data = data[(length + 3) & ~3 :]
