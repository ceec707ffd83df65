"""Prints each packet that arrives at an interface, until it is killed.

usage: capture.py INTERFACE
"""

import socket
import sys

ALL_PROTOCOLS = 3
TYPES = {0x0800: "IPv4", 0x0806: "ARP", 0x86DD: "IPv6"}

packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
packets.bind((sys.argv[1], 0))
print("capture of", sys.argv[1], flush=True)
while True:
    data, address = packets.recvfrom(65536)
    if address[2] == socket.PACKET_OUTGOING:
        continue
    kind = int.from_bytes(data[12:14], "big")
    print(TYPES.get(kind, hex(kind)), data[:80].hex(), flush=True)
