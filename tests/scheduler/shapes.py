"""Clusters and pending pods for the comparison of scheduling decisions; the same in every run."""

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


def plain(shape, pods):
    shape.nodes(40, zone=zone_of)
    for _ in range(60):
        shape.pod(on=some_node(shape, 40))
    for _ in range(pods):
        shape.pod()


def heterogeneous(shape, pods):
    sizes = [("1", "2Gi"), ("2", "4Gi"), ("8", "8Gi"), ("16", "64Gi"), ("500m", "1Gi")]
    for number in range(45):
        cpu, memory = sizes[number % 5]
        resources = {}
        if number % 4 == 0:
            resources = {"example.com/gpu": "4", "hugepages-2Mi": "1Gi"}
        if number % 7 == 0:
            resources["ephemeral-storage"] = "2Gi"
        shape.add(
            node(f"n{number:03}", cpu, memory, pods=6 + number % 9, resources=resources)
        )
    for _ in range(pods):
        requests = shape.requests()
        if shape.chance(0.2):
            requests["example.com/gpu"] = str(shape.choice([1, 2, 5]))
        if shape.chance(0.2):
            requests["ephemeral-storage"] = shape.choice(["500Mi", "1Gi", "3Gi"])
        if shape.chance(0.1):
            requests |= {"hugepages-2Mi": "64Mi", "memory": "64Mi"}
        if shape.chance(0.05):
            requests["example.com/none"] = "1"
        if shape.chance(0.05):
            requests["cpu"] = "20"
        shape.pod(containers=[container(requests=requests)])


def taint(shape):
    return {
        "key": shape.choice(["k", "l", "dedicated"]), "value": shape.choice(["", "x", "y"]),
        "effect": shape.choice(["NoSchedule", "PreferNoSchedule", "NoExecute"]),
    }


def toleration(shape):
    out = {"operator": shape.choice(["Exists", "Equal", "Equal", ""])}
    if shape.chance(0.9) or out["operator"] != "Exists":
        out["key"] = shape.choice(["k", "l", "dedicated"])
    if out["operator"] != "Exists":
        out["value"] = shape.choice(["", "x", "y"])
    if not out["operator"]:
        del out["operator"]
    if shape.chance(0.6):
        out["effect"] = shape.choice(["NoSchedule", "PreferNoSchedule", "NoExecute"])
    return out


def taints(shape, pods):
    for number in range(40):
        on_node = [taint(shape) for _ in range(shape.choice([0, 1, 1, 2, 3]))]
        distinct = {(t["key"], t["effect"]): t for t in on_node}
        shape.add(node(f"n{number:03}", taints=list(distinct.values())))
    for _ in range(pods):
        shape.pod(tolerations=[toleration(shape) for _ in range(shape.choice([0, 1, 2, 4]))])


def unschedulable(shape, pods):
    shape.nodes(30, cpu="6", unschedulable=lambda n: n % 3 == 0)
    for _ in range(pods):
        tolerations = []
        if shape.chance(0.3):
            tolerations = [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]
        if shape.chance(0.1):
            tolerations = [{"operator": "Exists"}]
        shape.pod(tolerations=tolerations)


def requirement(shape):
    key = shape.choice(["disk", "size", "topology.kubernetes.io/zone", "none"])
    operator = shape.choice(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"])
    if operator in ("Gt", "Lt"):
        return {"key": "size", "operator": operator, "values": [str(shape.random.randrange(9))]}
    if operator in ("Exists", "DoesNotExist"):
        return {"key": key, "operator": operator}
    values = {"disk": ["ssd", "hdd"], "size": ["1", "2", "3"]}.get(key, ZONES)
    return {"key": key, "operator": operator, "values": shape.random.sample(values, 2)}


def term(shape, count):
    out = {"matchExpressions": [requirement(shape) for _ in range(shape.choice([1, 1, 2]))]}
    if shape.chance(0.15):
        names = [some_node(shape, count) for _ in range(3)] + ["missing"]
        out["matchFields"] = [{"key": "metadata.name", "operator": "In", "values": names[:1]}]
        if shape.chance(0.5):
            out["matchFields"] = [{"key": "metadata.name", "operator": "NotIn", "values": names[:1]}]
        if shape.chance(0.5):
            del out["matchExpressions"]
    return out


def node_affinity(shape, pods):
    labels = lambda n: {"disk": ["ssd", "hdd"][n % 2], "size": str(n % 7)} if n % 5 else {}
    shape.nodes(40, zone=zone_of, labels=labels)
    for _ in range(pods):
        spec, affinity = {}, {}
        if shape.chance(0.5):
            terms = [term(shape, 40) for _ in range(shape.choice([1, 2, 3]))]
            affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": terms}
        if shape.chance(0.1):
            names = [some_node(shape, 40), some_node(shape, 40), "missing"]
            names = shape.random.sample(names, shape.choice([1, 2, 3]))
            fields = [{"key": "metadata.name", "operator": "In", "values": [n]} for n in names]
            terms = [{"matchFields": [f]} for f in fields]
            if shape.chance(0.3):
                terms = [{"matchFields": fields}]
            affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": terms}
        if shape.chance(0.5):
            affinity["preferredDuringSchedulingIgnoredDuringExecution"] = [
                {"weight": shape.random.randrange(1, 100), "preference": term(shape, 40)}
                for _ in range(shape.choice([1, 2, 3]))
            ]
        if shape.chance(0.2):
            spec["nodeSelector"] = {"disk": shape.choice(["ssd", "hdd", "tape"])}
        if affinity:
            spec["affinity"] = {"nodeAffinity": affinity}
        shape.pod(**spec)


APPS = ["web", "db", "cache", "batch"]
TOPOLOGIES = ["topology.kubernetes.io/zone", "kubernetes.io/hostname", "rack"]


def namespaces(shape):
    for name, labels in [("default", {"team": "x"}), ("other", {"team": "y"}), ("third", {})]:
        labels = labels | {"kubernetes.io/metadata.name": name}
        shape.add({
            "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels},
        })


def selector(shape):
    if shape.chance(0.7):
        return {"matchLabels": {"app": shape.choice(APPS)}}
    if shape.chance(0.1):
        return {}
    operator = shape.choice(["In", "NotIn", "Exists", "DoesNotExist"])
    out = {"key": shape.choice(["app", "tier"]), "operator": operator}
    if operator in ("In", "NotIn"):
        out["values"] = shape.random.sample(APPS, 2)
    return {"matchExpressions": [out]}


def affinity_term(shape, topologies=TOPOLOGIES):
    out = {"labelSelector": selector(shape), "topologyKey": shape.choice(topologies)}
    if shape.chance(0.1):
        out["namespaces"] = shape.random.sample(["default", "other", "third"], 2)
    if shape.chance(0.1):
        out["namespaceSelector"] = shape.choice([{}, {"matchLabels": {"team": "y"}}])
    if shape.chance(0.05):
        del out["labelSelector"]
    return out


def pod_labels(shape):
    labels = {"app": shape.choice(APPS)} if shape.chance(0.9) else {}
    if shape.chance(0.3):
        labels["tier"] = shape.choice(APPS)
    return labels


def affine(shape, required=0.0, anti=0.0, preferred=0.0, **more):
    """Affinity of a pod with these shares of each kind of term."""
    out = {}
    for kind, part in (("podAffinity", required), ("podAntiAffinity", anti)):
        if shape.chance(part):
            terms = [affinity_term(shape, **more) for _ in range(shape.choice([1, 1, 2]))]
            out.setdefault(kind, {})["requiredDuringSchedulingIgnoredDuringExecution"] = terms
        if shape.chance(preferred):
            terms = [
                {"weight": shape.random.randrange(1, 100), "podAffinityTerm": affinity_term(shape)}
                for _ in range(shape.choice([1, 2]))
            ]
            out.setdefault(kind, {})["preferredDuringSchedulingIgnoredDuringExecution"] = terms
    return {"affinity": out} if out else {}


def racks(shape, count, **more):
    labels = lambda n: {"rack": f"r{n % 8}"} if n % 6 else {}
    shape.nodes(count, zone=lambda n: zone_of(n) if n % 9 else None, labels=labels, **more)


def with_affinity(shape, pods, **parts):
    namespaces(shape)
    racks(shape, 40, cpu="16", memory="64Gi")
    space = lambda: shape.choice(["default", "default", "other", "third"])
    for _ in range(80):
        spec = affine(shape, **parts)
        shape.pod(on=some_node(shape, 40), labels=pod_labels(shape), namespace=space(), **spec)
    for _ in range(pods):
        shape.pod(labels=pod_labels(shape), namespace=space(), **affine(shape, **parts))


def pod_affinity(shape, pods):
    with_affinity(shape, pods, required=0.4)


def pod_anti_affinity(shape, pods):
    with_affinity(shape, pods, anti=0.25)


def preferred_affinity(shape, pods):
    with_affinity(shape, pods, required=0.1, anti=0.05, preferred=0.4)


def constraint(shape, hard):
    out = {
        "maxSkew": shape.choice([1, 1, 2, 5]), "topologyKey": shape.choice(TOPOLOGIES),
        "whenUnsatisfiable": "DoNotSchedule" if hard else "ScheduleAnyway",
        "labelSelector": selector(shape),
    }
    if hard and shape.chance(0.2):
        out["minDomains"] = shape.choice([2, 4, 9])
    if shape.chance(0.2):
        out["nodeAffinityPolicy"] = shape.choice(["Honor", "Ignore"])
    if shape.chance(0.2):
        out["nodeTaintsPolicy"] = shape.choice(["Honor", "Ignore"])
    if shape.chance(0.2):
        out["matchLabelKeys"] = ["tier"]
    return out


def with_spread(shape, pods, hard):
    taint = [{"key": "k", "value": "", "effect": "NoSchedule"}]
    racks(shape, 40, cpu="16", memory="64Gi", taints=lambda n: taint if n % 11 == 0 else None)
    for _ in range(60):
        shape.pod(on=some_node(shape, 40), labels=pod_labels(shape))
    for _ in range(pods):
        kinds = [hard if shape.chance(0.8) else not hard for _ in range(shape.choice([1, 1, 2]))]
        spread = {}
        for kind in kinds:
            new = constraint(shape, kind)
            spread[new["topologyKey"], kind] = new
        spec = {"topologySpreadConstraints": list(spread.values())}
        if shape.chance(0.2):
            spec["nodeSelector"] = {"topology.kubernetes.io/zone": shape.choice(ZONES[:3])}
        shape.pod(labels=pod_labels(shape), **spec)


def hard_spread(shape, pods):
    with_spread(shape, pods, True)


def soft_spread(shape, pods):
    with_spread(shape, pods, False)


def default_spread(shape, pods):
    racks(shape, 40, cpu="16", memory="64Gi")
    meta = lambda name: {"name": name, "namespace": "default"}
    shape.add(
        {"apiVersion": "v1", "kind": "Service", "metadata": meta("web"),
         "spec": {"selector": {"app": "web"}}},
        {"apiVersion": "v1", "kind": "Service", "metadata": meta("web-tier"),
         "spec": {"selector": {"app": "web", "tier": "db"}}},
        {"apiVersion": "v1", "kind": "Service", "metadata": meta("headless"), "spec": {}},
    )
    owners = {}
    for kind, app, version in [
        ("ReplicaSet", "db", "apps/v1"), ("StatefulSet", "cache", "apps/v1"),
        ("ReplicationController", "batch", "v1"),
    ]:
        label = {"app": app} if kind == "ReplicationController" else {"matchLabels": {"app": app}}
        shape.add({
            "apiVersion": version, "kind": kind, "metadata": meta(app) | {"uid": f"uid-{app}"},
            "spec": {
                "selector": label, "serviceName": app,
                "template": {"metadata": {"labels": {"app": app}}, "spec": {"containers": []}},
            },
        })
        owners[app] = [{
            "apiVersion": version, "kind": kind, "name": app, "uid": f"uid-{app}",
            "controller": True,
        }]
    for number in range(pods + 60):
        labels = pod_labels(shape)
        owner = owners.get(labels.get("app"))
        on = some_node(shape, 40) if number < 60 else None
        made = shape.pod(on=on, labels=labels)
        if owner and shape.chance(0.9):
            made["metadata"]["ownerReferences"] = owner


def host_ports(shape, pods):
    shape.nodes(25, cpu="32", memory="128Gi")
    for _ in range(pods):
        ports = []
        for _ in range(shape.choice([0, 1, 1, 2])):
            port = {"containerPort": 80, "hostPort": shape.choice([80, 81, 443, 8080])}
            if shape.chance(0.5):
                port["protocol"] = shape.choice(["TCP", "UDP", "SCTP"])
            if shape.chance(0.4):
                port["hostIP"] = shape.choice(["127.0.0.1", "10.0.0.1", "0.0.0.0", "::", "::1"])
            ports.append(port)
        side = container("s", restartPolicy="Always", ports=ports)
        if shape.chance(0.2):
            shape.pod(containers=[container()], initContainers=[side])
        else:
            shape.pod(containers=[container(requests=shape.requests(), ports=ports)])


def images(shape, pods):
    names = [f"registry.example/team/app{n}:v{n % 3}" for n in range(12)] + ["app:latest"]
    sizes = {n: shape.choice([10, 40, 120, 300, 900, 2500]) << 20 for n in names}
    for number in range(40):
        here = shape.random.sample(names, shape.choice([0, 2, 5]))
        shape.add(node(f"n{number:03}", cpu="16", memory="64Gi", images=[
            {"names": [n, n.replace(":", "@sha256:")], "sizeBytes": sizes[n]}
            for n in here
        ]))
    for _ in range(pods):
        used = shape.random.sample(names + ["app"], shape.choice([1, 2, 3]))
        containers = [container(f"c{n}", shape.requests()) | {"image": i} for n, i in enumerate(used)]
        spec = {"containers": containers[:2]}
        if containers[2:]:
            spec["initContainers"] = containers[2:]
        if shape.chance(0.1):
            spec["volumes"] = [{"name": "v", "image": {"reference": shape.choice(names)}}]
        shape.pod(**spec)


def budget(name, app, allowed):
    return {
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": app}}, "minAvailable": 1},
        "status": {
            "disruptionsAllowed": allowed, "currentHealthy": 3, "desiredHealthy": 1,
            "expectedPods": 3,
        },
    }


def preemption(shape, pods, leaving=0.0, extra=None):
    shape.nodes(25, cpu="4", memory="8Gi", pods=12, zone=zone_of, labels=lambda n: {"rack": f"r{n % 5}"})
    shape.add(budget("web", "web", 0), budget("db", "db", 2), budget("tier", "cache", 1))
    for number in range(25 * 7):
        shape.pod(
            on=f"n{number % 25:03}", labels=pod_labels(shape), priority=shape.choice([-5, 0, 0, 10, 100]),
            containers=[container(requests={
                "cpu": f"{shape.choice([200, 400, 600])}m", "memory": shape.choice(["256Mi", "1Gi"]),
            })], **(extra(shape) if extra else {}),
        )
    for _ in range(pods):
        annotations = {"victims": "leaving"} if shape.chance(leaving) else None
        spec = extra(shape) if extra else {}
        if shape.chance(0.1):
            spec["preemptionPolicy"] = "Never"
        shape.pod(
            labels=pod_labels(shape), priority=shape.choice([0, 10, 50, 100, 1000]),
            annotations=annotations, containers=[container(requests={
                "cpu": f"{shape.choice([100, 500, 1500, 3000])}m",
                "memory": shape.choice(["128Mi", "1Gi", "4Gi"]),
            })], **spec,
        )


def preemption_with_nominations(shape, pods):
    preemption(shape, pods, leaving=0.5)


def preemption_with_constraints(shape, pods):
    def extra(shape):
        spec = affine(shape, anti=0.15, preferred=0.1)
        if shape.chance(0.15):
            new = constraint(shape, True) | {"topologyKey": "rack"}
            new.pop("minDomains", None)
            spec["topologySpreadConstraints"] = [new]
        if shape.chance(0.1):
            spec["nodeSelector"] = {"rack": shape.choice(["r0", "r1", "none"])}
        return spec

    namespaces(shape)
    preemption(shape, pods, leaving=0.2, extra=extra)


def resources_of_pods(shape, pods):
    shape.nodes(40, cpu="8", memory="16Gi")
    for _ in range(pods):
        spec = {"containers": [
            container(f"c{n}", shape.requests()) for n in range(shape.choice([1, 2, 3]))
        ]}
        inits = []
        for number in range(shape.choice([0, 0, 1, 2, 3])):
            more = {"restartPolicy": "Always"} if shape.chance(0.4) else {}
            inits.append(container(f"i{number}", shape.requests(), **more))
        if inits:
            spec["initContainers"] = inits
        if shape.chance(0.2):
            spec["overhead"] = {"cpu": "250m", "memory": "120Mi"}
        if shape.chance(0.2):
            spec["resources"] = {"requests": {"cpu": "2"} | (
                {"memory": "3Gi"} if shape.chance(0.5) else {}
            )}
        shape.pod(**spec)


def without_nodes(shape, pods):
    for _ in range(min(pods, 20)):
        shape.pod()


def mixed(shape, pods):
    """More than 100 nodes, so that the limits of searches are reached."""
    namespaces(shape)
    labels = lambda n: {"disk": ["ssd", "hdd"][n % 2], "rack": f"r{n % 12}", "size": str(n % 7)}
    soft = [{"key": "k", "value": "", "effect": "PreferNoSchedule"}]
    shape.nodes(
        140, cpu="8", memory="16Gi", zone=lambda n: zone_of(n) if n % 10 else None, labels=labels,
        taints=lambda n: soft if n % 4 == 0 else None, unschedulable=lambda n: n % 17 == 0,
    )
    for _ in range(250):
        spec = affine(shape, anti=0.05, preferred=0.1)
        shape.pod(on=some_node(shape, 140), labels=pod_labels(shape), **spec)
    for _ in range(pods):
        spec = affine(shape, required=0.1, anti=0.1, preferred=0.2)
        if shape.chance(0.2):
            spec["topologySpreadConstraints"] = [constraint(shape, shape.chance(0.5))]
        if shape.chance(0.2):
            spec.setdefault("affinity", {})["nodeAffinity"] = {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 20, "preference": term(shape, 140)}
                ]
            }
        if shape.chance(0.1):
            spec["tolerations"] = [toleration(shape)]
        shape.pod(labels=pod_labels(shape), **spec)


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


def packed(shape, pods):
    """Several profiles that pack pods, each by another strategy."""
    strategy = lambda **fields: args("NodeResourcesFit", scoringStrategy=fields)
    weights = [{"name": "cpu", "weight": 3}, {"name": "memory"}, {"name": "example.com/gpu", "weight": 5}]
    shape.config = configuration(
        {"schedulerName": "most", "pluginConfig": [strategy(type="MostAllocated", resources=weights)]},
        {"schedulerName": "ratio", "pluginConfig": [strategy(
            type="RequestedToCapacityRatio", resources=weights, requestedToCapacityRatio={"shape": [
                {"utilization": 0, "score": 0}, {"utilization": 45, "score": 9},
                {"utilization": 100, "score": 3},
            ]},
        )]},
        {"schedulerName": "least", "pluginConfig": [
            strategy(type="LeastAllocated", resources=[*weights, {"name": "ephemeral-storage"}]),
            args("NodeResourcesBalancedAllocation", resources=[
                {"name": "cpu"}, {"name": "memory"}, {"name": "example.com/gpu"},
            ]),
        ]},
    )
    for number in range(40):
        resources = {"example.com/gpu": "8"} if number % 2 else {}
        shape.add(node(f"n{number:03}", ["4", "8"][number % 2], ["16Gi", "8Gi"][number % 3 % 2],
                       resources=resources))
    for _ in range(pods):
        requests = shape.requests()
        if shape.chance(0.3):
            requests["example.com/gpu"] = str(shape.choice([1, 2]))
        if shape.chance(0.3):
            requests["ephemeral-storage"] = "1Gi"
        shape.pod(
            schedulerName=shape.choice(["most", "ratio", "least"]),
            containers=[container(requests=requests)],
        )


def changed_plugins(shape, pods):
    """Profiles with other plugins, weights and arguments."""
    zone = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a", "b"]}
    ssd = {"key": "disk", "operator": "In", "values": ["ssd"]}
    shape.config = configuration(
        {"schedulerName": "default-scheduler", "plugins": {
            "preScore": {"disabled": [{"name": "TaintToleration"}, {"name": "InterPodAffinity"}]},
            "score": {
                "disabled": [{"name": "TaintToleration"}, {"name": "InterPodAffinity"}],
                "enabled": [{"name": "ImageLocality", "weight": 10}],
            },
            "multiPoint": {"enabled": [{"name": "NodeResourcesFit", "weight": 7}]},
            "postFilter": {"disabled": [{"name": "*"}]},
        }},
        {"schedulerName": "arguments", "pluginConfig": [
            args("NodeAffinity", addedAffinity={
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [zone]}]
                },
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 30, "preference": {"matchExpressions": [ssd]}}
                ],
            }),
            args("InterPodAffinity", hardPodAffinityWeight=40, ignorePreferredTermsOfExistingPods=True),
            args("PodTopologySpread", defaultingType="List", defaultConstraints=[
                {"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"},
                {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
                 "whenUnsatisfiable": "ScheduleAnyway"},
            ]),
            args("NodeResourcesFit", ignoredResources=["example.com/ignored"],
                 ignoredResourceGroups=["ignored.example.com"]),
            args("DefaultPreemption", minCandidateNodesPercentage=100),
        ]},
    )
    namespaces(shape)
    shape.add({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "web", "namespace": "default"}, "spec": {"selector": {"app": "web"}},
    })
    soft = [{"key": "k", "value": "", "effect": "PreferNoSchedule"}]
    labels = lambda n: {"disk": ["ssd", "hdd"][n % 2]} | ({"rack": f"r{n % 5}"} if n % 7 else {})
    shape.nodes(30, cpu="8", memory="16Gi", zone=zone_of, labels=labels,
                taints=lambda n: soft if n % 3 == 0 else None,
                images=[{"names": ["app:latest"], "sizeBytes": 400 << 20}])
    for _ in range(60):
        spec = affine(shape, required=0.2, preferred=0.2)
        shape.pod(on=some_node(shape, 30), labels=pod_labels(shape), **spec)
    for _ in range(pods):
        requests = shape.requests()
        if shape.chance(0.2):
            requests[shape.choice(["example.com/ignored", "ignored.example.com/a", "example.com/b"])] = "1"
        shape.pod(
            labels=pod_labels(shape), schedulerName=shape.choice(["default-scheduler", "arguments"]),
            priority=shape.choice([0, 10]), containers=[container(requests=requests)],
            **affine(shape, required=0.1, preferred=0.2),
        )


def features(shape, pods):
    """Nodes that declare features."""
    name = "RestartAllContainersOnContainerExits"
    shape.nodes(20, declaredFeatures=lambda n: [name, "Other"] if n % 4 == 0 else ["Other"])
    rules = [{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}}]
    for _ in range(pods):
        more = {"restartPolicyRules": rules} if shape.chance(0.4) else {}
        shape.pod(containers=[container(requests={"cpu": "100m"}, **more)])


def volume(name, size, classname, claim=None, labels=None, zones=None, **more):
    out = {
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {
            "capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"],
            "storageClassName": classname, "persistentVolumeReclaimPolicy": "Retain",
            "volumeMode": "Filesystem",
        } | (more or {"csi": {"driver": "csi.example.com", "volumeHandle": name}}),
        "status": {"phase": "Bound" if claim else "Available"},
    }
    if zones:
        expression = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": zones}
        out["spec"]["nodeAffinity"] = {
            "required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
        }
    if claim:
        out["spec"]["claimRef"] = {
            "kind": "PersistentVolumeClaim", "namespace": "default", "name": claim,
            "uid": f"uid-{claim}",
        }
    return out


def claim(name, size, classname, bound=None, modes=("ReadWriteOnce",), **annotations):
    out = {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "1",
            "annotations": annotations,
        },
        "spec": {
            "accessModes": list(modes), "storageClassName": classname, "volumeMode": "Filesystem",
            "resources": {"requests": {"storage": size}},
        },
        "status": {"phase": "Bound" if bound else "Pending"},
    }
    if bound:
        out["spec"]["volumeName"] = bound
        out["metadata"]["annotations"] = {"pv.kubernetes.io/bind-completed": "yes"}
    return out


def storage_class(name, provisioner, mode, topologies=None):
    out = {
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
        "provisioner": provisioner, "volumeBindingMode": mode,
    }
    if topologies:
        out["allowedTopologies"] = [{"matchLabelExpressions": [
            {"key": "topology.kubernetes.io/zone", "values": topologies}
        ]}]
    return out


def mounts(*claims):
    return {"volumes": [
        {"name": f"v{n}", "persistentVolumeClaim": {"claimName": c}} for n, c in enumerate(claims)
    ]}


def volumes(shape, pods):
    """Claims that are bound, unbound, missing, delayed or of one pod."""
    shape.nodes(30, cpu="16", memory="64Gi", zone=zone_of)
    shape.add(
        storage_class("now", "csi.example.com", "Immediate"),
        storage_class("later", "csi.example.com", "WaitForFirstConsumer"),
        storage_class("zones", "csi.example.com", "WaitForFirstConsumer", topologies=["a"]),
        storage_class("static", "kubernetes.io/no-provisioner", "WaitForFirstConsumer"),
    )
    for number in range(pods):
        name, kind = f"c{number}", shape.choice(range(11))
        zone = shape.choice(ZONES[:3])
        pod = mounts(name)
        if kind == 0:
            shape.add(volume(f"v{number}", "5Gi", "now", claim=name, zones=[zone]))
            shape.add(claim(name, "5Gi", "now", bound=f"v{number}"))
        elif kind == 1:
            shape.add(claim(name, "5Gi", "now"))
        elif kind == 2:
            shape.add(claim(name, "5Gi", "later"))
        elif kind == 3:
            shape.add(claim(name, "5Gi", "zones"))
        elif kind == 4:
            # One volume of a class of its own: no other pod takes it first.
            own = f"static-{number}"
            shape.add(storage_class(own, "kubernetes.io/no-provisioner", "WaitForFirstConsumer"))
            shape.add(volume(f"v{number}", "10Gi", own, zones=[zone]), claim(name, "5Gi", own))
        elif kind == 5:
            shape.add(claim(name, "5Gi", "static"))
        elif kind == 6:
            labels = {"topology.kubernetes.io/zone": shape.choice(["a", "a__b", "d"])}
            shape.add(volume(f"v{number}", "5Gi", "now", claim=name, labels=labels))
            shape.add(claim(name, "5Gi", "now", bound=f"v{number}"))
        elif kind == 7:
            shape.add(claim(name, "5Gi", "now", bound="missing"))
        elif kind == 8:
            shape.add(volume(f"v{number}", "5Gi", "now", claim=name))
            shape.add(claim(name, "5Gi", "now", bound=f"v{number}", modes=["ReadWriteOncePod"]))
            if shape.chance(0.5):
                shape.pod(on=some_node(shape, 30), priority=shape.choice([0, 10]), **mounts(name))
        elif kind == 9:
            disk = {"iscsi": {"targetPortal": "p", "iqn": f"iqn.{number % 3}", "lun": 0,
                              "readOnly": shape.chance(0.5)}}
            pod = {"volumes": [{"name": "v"} | disk]}
        # Of kind 10 the claim does not exist.
        shape.pod(priority=shape.choice([0, 5, 20]), **pod)


def volume_limits(shape, pods):
    """Limits of CSI drivers on nodes, with attachments."""
    shape.nodes(12, cpu="64", memory="256Gi", pods=400, zone=zone_of)
    shape.add(storage_class("now", "csi.example.com", "Immediate"))
    for number in range(12):
        drivers = [{"name": "csi.example.com", "nodeID": f"n{number:03}", "topologyKeys": [],
                    "allocatable": {"count": 8 + number}}]
        if number % 3 == 0:
            drivers.append({"name": "other.example.com", "nodeID": "x", "topologyKeys": [],
                            "allocatable": {"count": 3}})
        if number != 5:
            shape.add({
                "apiVersion": "storage.k8s.io/v1", "kind": "CSINode",
                "metadata": {"name": f"n{number:03}"}, "spec": {"drivers": drivers},
            })
    for number in range(pods):
        driver = shape.choice(["csi.example.com", "csi.example.com", "other.example.com"])
        source = {"csi": {"driver": driver, "volumeHandle": f"h{number}"}}
        shape.add(volume(f"v{number}", "5Gi", "now", claim=f"c{number}", **source))
        shape.add(claim(f"c{number}", "5Gi", "now", bound=f"v{number}"))
        if shape.chance(0.1):
            shape.add({
                "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
                "metadata": {"name": f"a{number}"},
                "spec": {"attacher": driver, "nodeName": some_node(shape, 12),
                         "source": {"persistentVolumeName": f"v{number}"}},
                "status": {"attached": True},
            })
        used = [f"c{number}"]
        if number and shape.chance(0.3):
            used.append(f"c{shape.random.randrange(number)}")
        shape.pod(containers=[container()], **mounts(*used))


SHAPES = [
    plain, heterogeneous, taints, unschedulable, node_affinity, pod_affinity, pod_anti_affinity,
    preferred_affinity, hard_spread, soft_spread, default_spread, host_ports, images, preemption,
    preemption_with_nominations, preemption_with_constraints, resources_of_pods, without_nodes,
    mixed, packed, changed_plugins, features, volumes, volume_limits,
]


def make(build, seed, pods):
    """The shape with this seed and number of pending pods."""
    shape = Shape(build.__name__.replace("_", "-"), seed)
    build(shape, pods)
    return shape


def text(shape):
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in shape.lines())
