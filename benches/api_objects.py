"""Writes nodes, pods and other objects through the API of a side, with several connections at a time."""

import http.client, json, multiprocessing, os, pathlib, re, ssl, sys, time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests/lib"))
from writer import connect

SENDERS = 4
PIPELINE = 8 # requests of a connection at a time


def metadata(name, labels):
    return {"name": name} | ({"labels": labels} if labels else {})


def node(number, labels=None):
    allocatable = {"cpu": "4", "memory": "32Gi", "pods": "110"}
    return {
        "apiVersion": "v1", "kind": "Node", "metadata": metadata(f"node-{number}", labels),
        "status": {"allocatable": allocatable, "capacity": allocatable},
    }


def pod(name, labels=None, **spec):
    """A pod that tolerates everything; `spec` adds to its specification."""
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": metadata(name, labels),
        "spec": {
            "automountServiceAccountToken": False, "tolerations": [{"operator": "Exists"}],
            "containers": [{
                "name": "pause", "image": "registry.k8s.io/pause:3.10.2",
                "resources": {"requests": {"cpu": "10m", "memory": "50Mi"}},
            }],
        } | spec,
    }


class Api:
    """One connection as administrator. The address is a port of this machine with an identity, or
    a host with ("--kubeconfig", FILE)."""

    def __init__(self, address):
        port, identity = address
        self.headers = {"Content-Type": "application/json"}
        if identity[0] == "--kubeconfig":
            self.connection = connect(identity[1], port)
            return
        context = ssl._create_unverified_context()
        if identity[0] == "--identity":
            context.load_cert_chain(*identity[1:])
        else:
            self.headers["Authorization"] = "Bearer " + identity[0].partition("=")[2]
        self.connection = http.client.HTTPSConnection(
            "127.0.0.1", port, context=context, timeout=600
        )

    def get(self, path):
        self.connection.request("GET", path, None, self.headers)
        return self.connection.getresponse()


def changes(address, path, version):
    """The events of a collection after this resource version, each as a line of JSON, until the API
    server stops. An API server closes a watch whose client is slow; another one continues then."""
    while True:
        try:
            stream = Api(address).get(f"{path}?watch=1&resourceVersion={version}")
        except OSError:
            return
        while line := stream.readline():
            # An object has its own version first; an error has none.
            found = re.search(rb'"resourceVersion":"(\d+)"', line)
            if line.startswith(b'{"type":"ERROR"') or not found:
                print(f"{sys.argv[0]}: the watch of {path} ended: {line[:300]}", file=sys.stderr)
                # In a thread, sys.exit ends the thread alone.
                os._exit(1)
            version = found[1].decode()
            yield line


def request(api, path, body, method="POST"):
    """A request as bytes."""
    text = json.dumps(body).encode()
    headers = "".join(f"{name}: {value}\r\n" for name, value in api.headers.items())
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}Content-Length: {len(text)}\r\n\r\n"
    return head.encode() + text


def read_response(stream):
    """Status and body of an answer."""
    status, length, chunked = int(stream.readline().split()[1]), 0, False
    while (line := stream.readline().strip()):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
        chunked |= name.lower() == b"transfer-encoding"
    if not chunked:
        return status, stream.read(length)
    body = b""
    while length := int(stream.readline(), 16):
        body += stream.read(length)
        stream.readline()
    stream.readline()
    return status, body


def send(address, requests, accepted, times):
    """Sends requests (a key, a method, a path, a body) over one connection, several at a time: the
    clients must not be slower than the servers. Notes when each was sent."""
    api, own = Api(address), {}
    requests = [(key, request(api, path, body, method)) for key, method, path, body in requests]
    api.connection.connect()
    with api.connection.sock.makefile("rb") as stream:
        for begin in range(0, len(requests), PIPELINE):
            chunk = requests[begin : begin + PIPELINE]
            own |= dict.fromkeys((key for key, _ in chunk), time.monotonic())
            api.connection.sock.sendall(b"".join(text for _, text in chunk))
            for key, text in chunk:
                status, answer = read_response(stream)
                if status not in accepted:
                    line = text.partition(b"\r\n")[0].decode()
                    sys.exit(f"{sys.argv[0]}: {line} {key}: {status} {answer[:300]}")
    times.update(own)


def send_all(address, requests, accepted=(200, 201, 202)):
    """Sends the requests over several connections; the time of each by its key."""
    with multiprocessing.Manager() as manager:
        times = manager.dict()
        senders = [
            multiprocessing.Process(
                target=send, args=(address, requests[n::SENDERS], accepted, times)
            )
            for n in range(min(SENDERS, len(requests)))
        ]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        if any(sender.exitcode for sender in senders):
            sys.exit(1)
        return dict(times)


def create_all(address, path, bodies):
    """Creates the objects; the time of each creation by name."""
    return send_all(
        address, [(body["metadata"]["name"], "POST", path, body) for body in bodies]
    )
