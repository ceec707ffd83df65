"""An extender whose answers follow from the names of pods and nodes, and clusters that use it."""

import http.server, json, threading, zlib

from cluster import configuration, container, node, some_node, zone_of
from shapes import preemption

REFUSED, BROKEN = 37, 41  # one pod of so many


def number(*words):
    """A number that the words determine."""
    return zlib.crc32(" ".join(words).encode())


def filter_nodes(request):
    """`ExtenderFilterResult`: some nodes fail, and some of them for good."""
    pod = request["Pod"]["metadata"]["name"]
    if number(pod, "refused") % REFUSED == 0:
        return {"Error": f"the extender refuses {pod}"}
    names = request["NodeNames"]
    kind = {name: number(pod, name, "filter") % 8 for name in names}
    return {
        "NodeNames": [name for name in names if kind[name] > 2],
        "FailedNodes": {
            name: f"reason {number(name) % 2} of the extender" for name in names if kind[name] < 2
        },
        "FailedAndUnresolvableNodes": {
            name: "never fits" for name in names if kind[name] in (1, 2)
        },
    }


def prioritize_nodes(request):
    """`HostPriorityList`."""
    pod = request["Pod"]["metadata"]["name"]
    names = request["NodeNames"]
    if names is None:
        names = [item["metadata"]["name"] for item in request["Nodes"]["items"]]
    return [{"Host": name, "Score": number(pod, name, "score") % 11} for name in names]


def choose_victims(request):
    """`ExtenderPreemptionResult`: takes some nodes out, and spares the last of several victims."""
    pod = request["Pod"]["metadata"]["name"]
    by_node = request.get("NodeNameToMetaVictims")
    if by_node is None:
        by_node = request["NodeNameToVictims"]
    chosen = {}
    for name, victims in (by_node or {}).items():
        if number(pod, name, "victims") % 3 == 0:
            continue
        uids = [victim.get("UID") or victim["metadata"]["uid"] for victim in victims["Pods"]]
        uids = uids[:-1] if len(uids) > 2 else uids
        chosen[name] = {
            "Pods": [{"UID": uid} for uid in uids],
            "NumPDBViolations": victims.get("NumPDBViolations", 0),
        }
    return {"NodeNameToMetaVictims": chosen}


VERBS = {"filter": filter_nodes, "prioritize": prioritize_nodes, "preempt": choose_victims}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        _, kind, verb = self.path.split("/")
        pod = request["Pod"]["metadata"]["name"]
        broken = kind == "broken" or number(pod, kind, "broken") % BROKEN == 0
        body = b"" if broken else json.dumps(VERBS[verb](request)).encode()
        self.send_response(500 if broken else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def serve():
    """Starts the extender; it ends with the process."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}"


def extender(path, **fields):
    """An extender of a configuration; `run` puts the address of the server before the path."""
    return {"urlPrefix": path, "weight": 1} | fields


def with_extenders(shape, *extenders):
    shape.config = configuration({"schedulerName": "default-scheduler"})
    shape.config["extenders"] = list(extenders)


def extenders(shape, pods):
    """Filters and scores of several extenders: for all pods and for those of a resource, with names
    and with objects, one that fails and is ignored."""
    with_extenders(
        shape,
        extender("/broken", filterVerb="filter", prioritizeVerb="prioritize", ignorable=True,
                 nodeCacheCapable=True),
        extender("/names", filterVerb="filter", prioritizeVerb="prioritize", weight=3,
                 nodeCacheCapable=True),
        extender("/objects", prioritizeVerb="prioritize"),
        extender("/gpu/", filterVerb="filter", prioritizeVerb="prioritize", weight=5,
                 nodeCacheCapable=True, managedResources=[
                     {"name": "example.com/gpu", "ignoredByScheduler": True},
                     {"name": "example.com/link"},
                 ]),
    )
    for index in range(25):
        resources = {"example.com/link": "3"} if index % 2 else {}
        shape.add(node(f"n{index:03}", cpu="8", zone=zone_of(index), resources=resources))
    for _ in range(40):
        shape.pod(on=some_node(shape, 25))
    for _ in range(pods):
        requests = shape.requests()
        if shape.chance(0.3):
            requests["example.com/gpu"] = str(shape.choice([1, 50]))
        if shape.chance(0.2):
            requests["example.com/link"] = "1"
        limits = {"limits": requests} if shape.chance(0.5) else {}
        one = container(requests=requests)
        one["resources"] |= limits
        if shape.chance(0.2):
            shape.pod(initContainers=[one | {"name": "i"}])
        else:
            shape.pod(containers=[one])


def extenders_in_preemption(shape, pods):
    """An extender that chooses victims by their identifiers, after one that gets the objects."""
    with_extenders(
        shape,
        extender("/objects", preemptVerb="preempt"),
        extender("/names", preemptVerb="preempt", filterVerb="filter", nodeCacheCapable=True),
    )
    preemption(shape, pods)


SHAPES = [extenders, extenders_in_preemption]
