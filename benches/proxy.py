"""The client of benches/proxy: makes Services, waits for their rules, times first packets.

Service I has the address 10.43.(64 + I/256).(I%256) and two endpoints, 198.18.x.y and 198.19.x.y at
port 8080, all of which are addresses of the machine itself (a local route). Commands, with the
directory of the administrator's client certificate where the API is needed:

proxy.py serve                          answers `a` at port 8080 and `b` at 8081
proxy.py load API TLS FROM TO           makes Services and EndpointSlices
proxy.py live COUNT SINCE               seconds from SINCE (monotonic) until the last rule is live
proxy.py first COUNT SAMPLES            p50 and p99 of connect() to random Services, microseconds
proxy.py change API TLS COUNT SAMPLES   milliseconds from the answer to a changed EndpointSlice to
                                        the first connection to its new endpoint, one per line
"""

import concurrent.futures, http.client, json, random, socket, ssl, struct, sys, threading, time

GROUP = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"


def address(index):
    return f"10.43.{64 + index // 256}.{index % 256}"


def service(index):
    return {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": f"s{index}"},
        "spec": {"clusterIP": address(index), "ports": [{"port": 80, "targetPort": 8080}]},
    }


def endpoints(index, port=8080):
    return {
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "name": f"s{index}", "labels": {"kubernetes.io/service-name": f"s{index}"},
        },
        "ports": [{"name": "", "port": port, "protocol": "TCP"}],
        "endpoints": [
            {
                "addresses": [f"198.{net}.{index // 256}.{index % 256}"],
                "conditions": {"ready": True},
            }
            for net in (18, 19)
        ],
    }


class Api:
    def __init__(self, at, tls):
        context = ssl.create_default_context(cafile=f"{tls}/server-ca.crt")
        context.load_cert_chain(f"{tls}/client-admin.crt", f"{tls}/client-admin.key")
        host, port = at.rsplit(":", 1)
        self.connection = http.client.HTTPSConnection(host, int(port), context=context, timeout=60)

    def send(self, method, path, body):
        self.connection.request(
            method, path, json.dumps(body), {"Content-Type": "application/json"}
        )
        answer = self.connection.getresponse()
        text = answer.read()
        if answer.status not in (200, 201):
            sys.exit(f"benches/proxy: {method} {path}: {answer.status} {text[:200]}")


def load(at, tls, begin, end):
    def worker(part):
        api = Api(at, tls)
        for index in range(begin + part, end, 8):
            api.send("POST", "/api/v1/namespaces/default/services", service(index))
            api.send("POST", GROUP, endpoints(index))

    # The exit of one worker is that of the process.
    with concurrent.futures.ThreadPoolExecutor(8) as workers:
        for done in [workers.submit(worker, part) for part in range(8)]: done.result()


def serve():
    def answer(port, text):
        listener = socket.create_server(("0.0.0.0", port), backlog=4096)
        while True:
            connection, _ = listener.accept()
            try: connection.send(text)
            except OSError: pass
            connection.close()

    for port, text in ((8080, b"a"), (8081, b"b")):
        threading.Thread(target=answer, args=(port, text)).start()


def connect(index, wait=2):
    """A connection whose end leaves no TIME_WAIT; None if there is no endpoint yet."""
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.settimeout(wait)
    try:
        s.connect((address(index), 80))
        return s
    except OSError:
        s.close()
        return None


def live(count, since):
    # Without the rule a packet leaves the machine or is refused, so attempts are short.
    for index in sorted({0, count - 1, *(count * part // 16 for part in range(16))}):
        while (s := connect(index, 0.02)) is None:
            if time.monotonic() - since > 600: sys.exit("benches/proxy: no rule after 600 s")
        s.close()
    print(f"{time.monotonic() - since:.3f}")


def first(count, samples):
    for index in range(200): (connect(index % count) or sys.exit("no endpoint")).close()
    times = []
    for _ in range(samples):
        index = random.randrange(count)
        begin = time.perf_counter()
        s = connect(index)
        times.append((time.perf_counter() - begin) * 1e6)
        if s is None: sys.exit(f"benches/proxy: Service {index} does not answer")
        s.close()
    times.sort()
    print(f"{times[samples // 2]:.1f} {times[samples * 99 // 100]:.1f}")


def change(at, tls, count, samples):
    api = Api(at, tls)
    for index in random.sample(range(count), min(samples, count)):
        for port, text in ((8081, b"b"), (8080, b"a")):
            api.send("PUT", f"{GROUP}/s{index}", endpoints(index, port))
            begin = time.perf_counter()
            while True:
                s = connect(index)
                got = s and s.recv(1)
                if s: s.close()
                if got == text: break
                if time.perf_counter() - begin > 120: sys.exit("benches/proxy: no change")
            print(f"{(time.perf_counter() - begin) * 1000:.2f}")


numbers = lambda texts: [int(text) for text in texts]
match sys.argv[1:]:
    case ["serve"]: serve()
    case ["load", at, tls, *rest]: load(at, tls, *numbers(rest))
    case ["live", count, since]: live(int(count), float(since))
    case ["first", *rest]: first(*numbers(rest))
    case ["change", at, tls, *rest]: change(at, tls, *numbers(rest))
    case _: sys.exit(__doc__)
