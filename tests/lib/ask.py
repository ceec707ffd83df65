#!/usr/bin/env python3
"""Asks servers of the network suite and says what came of it.

ask.py tcp|udp ADDRESS PORT [TIMES]: prints what is answered, `refused` (`refused late` when none of several came before the
first repetition of the packet) or `nothing`; with TIMES the different answers in order, separated by `, `.
ask.py serve NAME PORT: an echo server in both families, over TCP and UDP: says its name and, over TCP, the client's address.
ask.py each PORT ADDRESS...: what TCP at each address answers, in order.
ask.py ways NETWORK,PORT,ADDRESS...: a line for each argument with what TCP at its addresses answers from within a network
namespace (a path), all asked at once.
ask.py connect ADDRESS PORT FILE: new connections, one after another, until FILE is there; prints how many failed.
"""
import concurrent.futures, ctypes, ipaddress, os, socket, sys, threading, time

WAIT = float(os.environ.get("WAIT", "8"))  # Seconds until `nothing`.
REPEATED = 0.9  # A SYN is repeated after 1 s.


def ask(protocol, address, port):
    """The answer, and the seconds it took."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    kind = socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM
    begin = time.monotonic()
    with socket.socket(family, kind) as s:
        s.settimeout(WAIT)
        try:
            s.connect((address, port))
            answer = (question(s, begin) if protocol == "udp" else s.recv(200)).decode().strip().split("\n")[0] or "closed"
        except (ConnectionRefusedError, PermissionError):
            # The kernel tells its own machine that a UDP packet was rejected by EPERM.
            answer = "refused"
        except TimeoutError:
            answer = "nothing"
        except OSError as error:
            answer = error.strerror
    return answer, time.monotonic() - begin


def question(s, begin):
    """The answer to a packet. It is repeated each second, as clients of UDP do: the kernel sends an address only so many
    ICMP errors of a second (`icmp_ratelimit`, `Icmp6OutRateLimitHost`)."""
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
        # A thread of its own may be in a network of its own.
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
    tcp = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128)
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
                stream.sendall(f"{name} {getattr(address, 'ipv4_mapped', None) or address}\n".encode())
            except OSError:
                pass


def main():
    if sys.argv[1] == "each":
        print(" ".join(ask("tcp", address, int(sys.argv[2]))[0].split(" ")[0] for address in sys.argv[3:]))
        return
    if sys.argv[1] == "ways":
        ways(sys.argv[2:])
        return
    protocol, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if protocol == "serve":
        serve(address, port)
    if protocol == "connect":
        asked = failed = 0
        while not os.path.exists(sys.argv[4]):
            asked += 1
            if ask("tcp", address, port)[0] in ("refused", "nothing", "closed"):
                failed += 1
            time.sleep(0.01)
        print("asked many" if asked > 50 else f"asked {asked}", "failed", failed)
        return
    times = int(sys.argv[4]) if len(sys.argv) > 4 else 1
    answers = [ask(protocol, address, port) for _ in range(times)]
    if answers[0][0] == "refused" and times == 1 and protocol == "tcp":
        # The machine may be busy: one of three must come at once.
        soonest = min(answers[0][1], *(ask(protocol, address, port)[1] for _ in range(2)))
        print("refused" if soonest < REPEATED else "refused late")
        return
    print(", ".join(sorted({a for a, _ in answers})))


main()
