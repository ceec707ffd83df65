"""The cluster and the pending pods of a comparison of scheduling decisions."""

import json, random

ZONES = ["a", "b", "c", "d"]
DATE = "2026-01-01T00:%02d:%02dZ"


def time(seconds):
    """A time that grows with `seconds`, which are fewer than 86,400."""
    return "2026-01-01T%02d:%02d:%02dZ" % (seconds // 3600, seconds // 60 % 60, seconds % 60)


def node(name, cpu="4", memory="16Gi", pods=110, zone=None, labels=None, taints=None, **more):
    allocatable = {"cpu": cpu, "memory": memory, "pods": str(pods), "ephemeral-storage": "50Gi"}
    allocatable |= more.pop("resources", {})
    all_labels = {"kubernetes.io/hostname": name} | (labels or {})
    if zone:
        all_labels["topology.kubernetes.io/zone"] = zone
    spec = {"taints": taints} if taints else {}
    if more.pop("unschedulable", False):
        spec["unschedulable"] = True
        spec.setdefault("taints", []).append(
            {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
        )
    status = {"allocatable": allocatable, "capacity": allocatable} | more
    return {
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": all_labels},
        "spec": spec, "status": status,
    }


def container(name="c", requests=None, **more):
    resources = {"requests": requests} if requests else {}
    return {"name": name, "image": "app", "resources": resources} | more


class Shape:
    """A cluster: its objects and pods, with numbers from a generator of its own."""

    def __init__(self, name, seed, config=None):
        self.name, self.random, self.config = name, random.Random(seed), config
        self.objects, self.pods, self.count = [], [], 0

    def add(self, *objects):
        self.objects += objects

    def chance(self, part):
        return self.random.random() < part

    def choice(self, items):
        return self.random.choice(items)

    def nodes(self, count, **more):
        for number in range(count):
            fields = {k: v(number) if callable(v) else v for k, v in more.items()}
            self.add(node(f"n{number:03}", **fields))

    def requests(self):
        """Requests of a container; some have none, some only one resource."""
        out = {}
        if self.chance(0.8):
            out["cpu"] = f"{self.choice([50, 100, 250, 300, 500, 750, 1000])}m"
        if self.chance(0.7):
            out["memory"] = self.choice(["64Mi", "200Mi", "256M", "512Mi", "1Gi", "1500M"])
        return out

    def pod(self, on=None, labels=None, namespace="default", annotations=None, name=None, **spec):
        self.count += 1
        name = name or f"p{self.count:05}"
        spec.setdefault("containers", [container(requests=self.requests())])
        spec.setdefault("schedulerName", "default-scheduler")
        out = {
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name, "namespace": namespace, "uid": f"uid-{namespace}-{name}",
                "creationTimestamp": time(self.count), "labels": labels or {},
                "annotations": annotations or {},
            },
            "spec": spec, "status": {},
        }
        if on:
            spec["nodeName"] = on
            out["status"] = {"phase": "Running", "startTime": time(self.count)}
            self.add(out)
        else:
            self.pods.append(out)
        return out

    def lines(self):
        yield {"config": self.config}
        yield from self.objects
        yield from self.pods


def zone_of(number):
    return ZONES[number % 3]


def some_node(shape, count):
    return f"n{shape.random.randrange(count):03}"


def configuration(*profiles):
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "profiles": list(profiles),
    }


def args(name, **fields):
    return {
        "name": name,
        "args": {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": name + "Args"} | fields,
    }


def make(build, seed, pods):
    """The shape with this seed and number of pending pods."""
    shape = Shape(build.__name__.replace("_", "-"), seed)
    build(shape, pods)
    return shape


def text(shape):
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in shape.lines())
