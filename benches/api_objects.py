"""Creates nodes and pods through the API of a side, with several connections at a time."""

import http.client, json, multiprocessing, ssl, sys, time

CREATORS = 4
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
    """One connection as administrator."""

    def __init__(self, address):
        port, identity = address
        context = ssl._create_unverified_context()
        self.headers = {"Content-Type": "application/json"}
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


def request(api, path, body):
    """A POST request as bytes."""
    text = json.dumps(body).encode()
    headers = "".join(f"{name}: {value}\r\n" for name, value in api.headers.items())
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}Content-Length: {len(text)}\r\n\r\n"
    return head.encode() + text


def read_response(stream):
    status = int(stream.readline().split()[1])
    length = 0
    while (line := stream.readline().strip()):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return status, stream.read(length)


def create(address, path, bodies, times):
    """Creates the objects over one connection, several requests at a time: the clients must not be
    slower than the servers."""
    api, own = Api(address), {}
    names = [body["metadata"]["name"] for body in bodies]
    requests = [request(api, path, body) for body in bodies]
    api.connection.connect()
    with api.connection.sock.makefile("rb") as stream:
        for begin in range(0, len(bodies), PIPELINE):
            chunk = slice(begin, begin + PIPELINE)
            own |= dict.fromkeys(names[chunk], time.monotonic())
            api.connection.sock.sendall(b"".join(requests[chunk]))
            for name in names[chunk]:
                status, text = read_response(stream)
                if status != 201:
                    sys.exit(f"{sys.argv[0]}: POST {path} {name}: {status} {text[:300]}")
    times.update(own)


def create_all(address, path, bodies):
    """Creates the objects over several connections; the time of each creation by name."""
    with multiprocessing.Manager() as manager:
        times = manager.dict()
        creators = [
            multiprocessing.Process(target=create, args=(address, path, bodies[n::CREATORS], times))
            for n in range(CREATORS)
        ]
        for creator in creators:
            creator.start()
        for creator in creators:
            creator.join()
        return dict(times)
