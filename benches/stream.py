#!/usr/bin/env python3
"""stream.py sink PORT: receives data over TCP, one connection after another. stream.py source
ADDRESS PORT SECONDS: sends at full speed, prints MB/s."""

import socket, sys, time

CHUNK = 1 << 20

if sys.argv[1] == "sink":
    server, buffer = socket.create_server(
        ("::", int(sys.argv[2])), family=socket.AF_INET6, dualstack_ipv6=True
    ), bytearray(CHUNK)
    while True:
        stream, _ = server.accept()
        with stream:
            while stream.recv_into(buffer):
                pass
            # The receiver confirms the end: bytes in buffers do not count as transferred.
            stream.sendall(b"!")
else:
    data, sent, seconds = bytes(CHUNK), 0, float(sys.argv[4])
    with socket.create_connection((sys.argv[2], int(sys.argv[3])), timeout=60) as stream:
        begin = time.monotonic()
        while time.monotonic() - begin < seconds:
            stream.sendall(data)
            sent += CHUNK
        stream.shutdown(socket.SHUT_WR)
        stream.recv(1)
        print(f"{sent / (time.monotonic() - begin) / 1e6:.0f}")
