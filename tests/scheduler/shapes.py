"""Clusters and pending pods for the comparison of scheduling decisions; the same in every run."""

from affinity_shapes import (
    affine, constraint, default_spread, hard_spread, namespaces, node_affinity, pod_affinity,
    pod_anti_affinity, pod_labels, preferred_affinity, soft_spread, taint, term, toleration,
)
from cluster import args, configuration, container, node, some_node, zone_of
from volume_shapes import volume_limits, volumes


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


SHAPES = [
    plain, heterogeneous, taints, unschedulable, node_affinity, pod_affinity, pod_anti_affinity,
    preferred_affinity, hard_spread, soft_spread, default_spread, host_ports, images, preemption,
    preemption_with_nominations, preemption_with_constraints, resources_of_pods, without_nodes,
    mixed, packed, changed_plugins, features, volumes, volume_limits,
]
