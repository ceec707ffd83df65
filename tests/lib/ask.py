#!/usr/bin/env python3
"""Sends requests to the servers of the network suite and prints the results.

ask.py tcp|udp ADDRESS PORT [TIMES]
    prints the answer, `refused` (`refused late` if none of several arrived before the first
    retransmission) or `nothing`; with TIMES the distinct answers in order, separated by `, `
ask.py serve NAME PORT
    an echo server in both families, over TCP and UDP; answers its name and, over TCP, the
    client's address
ask.py each PORT ADDRESS...
    prints the TCP answer of each address, in order
ask.py ways NETWORK,PORT,ADDRESS...
    prints a line for each argument: the TCP answers of its addresses from within a network
    namespace (a path), all in parallel
ask.py connect ADDRESS PORT FILE
    opens connections one after another until FILE exists; prints the number of failures
"""

import concurrent.futures, ctypes, ipaddress, os, socket, sys, threading, time

WAIT = float(os.environ.get("WAIT", "8"))  # Seconds until `nothing`.
REPEATED = 0.9 # TCP retransmits a SYN after 1 s.


def ask(protocol, address, port):
    """Returns the answer and its duration in seconds."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    kind = socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM
    begin = time.monotonic()
    with socket.socket(family, kind) as s:
        s.settimeout(WAIT)
        try:
            s.connect((address, port))
            answer = (
                question(s, begin) if protocol == "udp" else s.recv(200)
            ).decode().strip().split("\n")[0] or "closed"
        except (ConnectionRefusedError, PermissionError):
            # The kernel reports the rejection of a local UDP packet as EPERM.
            answer = "refused"
        except TimeoutError:
            answer = "nothing"
        except OSError as error:
            answer = error.strerror
    return answer, time.monotonic() - begin


def question(s, begin):
    """The answer to a packet, repeated each second as UDP clients do: the kernel limits ICMP errors
    per second and address (`icmp_ratelimit`, `Icmp6OutRateLimitHost`)."""
    s.settimeout(min(1, WAIT))
    while True:
        s.send(b"?\n")
        try:
            return s.recv(200)
        except TimeoutError:
            if time.monotonic() - begin >= WAIT:
                raise


def ways(arguments):
    libc = ctypes.CDLL(None, use_errno=True)

    def inside(network, port, address):
        # A thread can be in a different network namespace.
        with open(network) as namespace:
            if libc.setns(namespace.fileno(), 0x40000000) != 0:
                return os.strerror(ctypes.get_errno())
        return ask("tcp", address, int(port))[0].split(" ")[0]

    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        lines = []
        for argument in arguments:
            network, port, *addresses = argument.split(",")
            lines.append([pool.submit(inside, network, port, address) for address in addresses])
        for line in lines:
            print(" ".join(answer.result() for answer in line))


def serve(name, port):
    tcp = socket.create_server(
        ("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128
    )
    udp = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    udp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    udp.bind(("::", port))

    def packets():
        while True:
            _, peer = udp.recvfrom(2048)
            udp.sendto(f"{name}\n".encode(), peer)

    threading.Thread(target=packets, daemon=True).start()
    while True:
        stream, peer = tcp.accept()
        address = ipaddress.ip_address(peer[0])
        with stream:
            try:
                stream.sendall(
                    f"{name} {getattr(address, 'ipv4_mapped', None) or address}\n".encode()
                )
            except OSError:
                pass


def main():
    if sys.argv[1] == "each":
        print(
            " ".join(
                ask("tcp", address, int(sys.argv[2]))[0].split(" ")[0] for address in sys.argv[3:]
            )
        )
        return
    if sys.argv[1] == "ways":
        ways(sys.argv[2:])
        return
    protocol, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if protocol == "serve":
        serve(address, port)
    if protocol == "connect":
        requests = failed = 0
        while not os.path.exists(sys.argv[4]):
            requests += 1
            if ask("tcp", address, port)[0] in ("refused", "nothing", "closed"):
                failed += 1
            time.sleep(0.01)
        print("asked many" if requests > 50 else f"asked {requests}", "failed", failed)
        return
    times = int(sys.argv[4]) if len(sys.argv) > 4 else 1
    answers = [ask(protocol, address, port) for _ in range(times)]
    if answers[0][0] == "refused" and times == 1 and protocol == "tcp":
        # The machine may be busy: one of three must be fast.
        soonest = min(answers[0][1], *(ask(protocol, address, port)[1] for _ in range(2)))
        print("refused" if soonest < REPEATED else "refused late")
        return
    print(", ".join(sorted({a for a, _ in answers})))


main()
