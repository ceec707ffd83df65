"""Asks which machines of a link have an address, by ARP or neighbour discovery.

usage: neighbour.py owners INTERFACE ADDRESS [SECONDS]      all hardware addresses that answer
       neighbour.py other INTERFACE ADDRESS MAC SECONDS     prints `asks`, and then the time at which
                                                            another one than MAC answers, in seconds
                                                            since the epoch, or `never`
"""

import ipaddress
import socket
import struct
import sys
import time

ARP, IPV6 = 0x0806, 0x86DD


def mac_text(mac):
    return ":".join(f"{byte:02x}" for byte in mac)


def own_address(interface, family):
    """The first address of the interface in this family."""
    if family == 6:
        for line in open("/proc/net/if_inet6"):
            text, _, _, scope, _, name = line.split()
            if name == interface and scope == "00":
                return bytes.fromhex(text)
        raise SystemExit(f"{interface} has no IPv6 address")
    import fcntl
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", interface.encode())
        return fcntl.ioctl(probe, 0x8915, request)[20:24]  # SIOCGIFADDR


def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


class Link:
    def __init__(self, interface, address):
        self.ip = ipaddress.ip_address(address)
        self.kind = ARP if self.ip.version == 4 else IPV6
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(self.kind))
        self.socket.bind((interface, self.kind))
        self.mac = self.socket.getsockname()[4]
        self.own = own_address(interface, self.ip.version)

    def ask(self):
        target = self.ip.packed
        if self.kind == ARP:
            frame = b"\xff" * 6 + self.mac + struct.pack("!HHHBBH", ARP, 1, 0x0800, 6, 4, 1)
            frame += self.mac + self.own + bytes(6) + target
        else:
            to = bytes.fromhex("ff0200000000000000000001ff") + target[13:]
            message = struct.pack("!BBHI", 135, 0, 0, 0) + target + b"\x01\x01" + self.mac
            pseudo = self.own + to + struct.pack("!II", len(message), 58)
            total = checksum(pseudo + message)
            message = message[:2] + struct.pack("!H", total) + message[4:]
            frame = b"\x33\x33" + to[12:] + self.mac + struct.pack("!HIHBB", IPV6, 6 << 28,
                                                                    len(message), 58, 255)
            frame += self.own + to + message
        self.socket.send(frame)

    def owner(self, frame):
        """The sender of a frame that says that it has the address."""
        if self.kind == ARP:
            is_owner = len(frame) >= 32 and frame[28:32] == self.ip.packed
            return frame[22:28] if is_owner else None
        is_advertisement = len(frame) >= 78 and frame[20] == 58 and frame[54] == 136
        return frame[6:12] if is_advertisement and frame[62:78] == self.ip.packed else None

    def answers(self, seconds):
        """Owners that answer within this time."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                owner = self.owner(self.socket.recv(2048))
            except TimeoutError:
                return
            if owner and owner != self.mac:
                yield mac_text(owner)


def main():
    command, interface, address, *rest = sys.argv[1:]
    link = Link(interface, address)
    if command == "owners":
        seconds = float(rest[0]) if rest else 0.4
        found = set()
        for _ in range(2):
            link.ask()
            found.update(link.answers(seconds / 2))
        print(" ".join(sorted(found)))
        return
    avoided, seconds = rest[0], float(rest[1])
    begun = time.monotonic()
    print("asks", flush=True)
    while time.monotonic() - begun < seconds:
        link.ask()
        for owner in link.answers(0.02):
            if owner != avoided:
                print(time.time())
                return
    print("never")


main()
