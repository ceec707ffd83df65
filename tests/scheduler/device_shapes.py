"""Clusters and pending pods with ResourceClaims, ResourceSlices and DeviceClasses."""

from cluster import args, configuration, container, node, some_node, time, zone_of
from device_objects import (
    allocated, alternatives, device, device_claim, device_class, exactly, named, node_count,
    request, resource, resource_slice, uses, zones,
)
from partition_shapes import partitions

GPU, NIC = "gpu.example.com", "nic.example.com"
MODELS = ["a", "b", "c"]


def generated(shape, make, **spec):
    """A pod whose claim comes from a template: often it exists, sometimes it does not yet, is not
    needed, or belongs to another pod."""
    entry = {"name": "e", "resourceClaimTemplateName": "template"}
    pod = shape.pod(resourceClaims=[entry], **spec)
    name, kind = f"{pod['metadata']['name']}-e", shape.random.random()
    status = {"name": "e", "resourceClaimName": name}
    if kind < 0.1:
        return
    if kind < 0.2:
        status = {"name": "e"}
    owner = "uid-other" if kind > 0.9 else pod["metadata"]["uid"]
    pod["status"]["resourceClaimStatuses"] = [status]
    reference = {
        "apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": owner,
        "controller": True,
    }
    if kind < 0.85 or kind > 0.9:
        claim = make(name)
        claim["metadata"]["ownerReferences"] = [reference]
        shape.add(claim)


def classes(shape):
    shape.add(
        device_class("gpu", f'device.driver == "{GPU}"'),
        device_class(
            "big-gpu", f'device.driver == "{GPU}"',
            f'device.capacity["{GPU}"].memory.compareTo(quantity("32Gi")) >= 0',
            config=[{"opaque": {"driver": GPU, "parameters": {"mode": "fast"}}}],
        ),
        device_class("nic", f'device.driver == "{NIC}"'),
        device_class("any"),
    )


def gpu(shape, name, numa, **more):
    attributes = {
        "model": shape.choice(MODELS), f"{GPU}/index": shape.random.randrange(8),
        "ecc": shape.chance(0.5), "numa.example.com/node": numa,
        "driverVersion": shape.choice(["v1.2.3", "v1.10.0", "v2.0.0-rc.1"]),
    }
    if shape.chance(0.2):
        del attributes["numa.example.com/node"]
    memory = shape.choice(["16Gi", "32Gi", "80Gi"])
    return device(name, attributes, {"memory": memory}, **more)


def nic(shape, name, numa):
    attributes = {"numa.example.com/node": numa, "rdma": shape.chance(0.6), "index": numa}
    return device(name, attributes, {"bandwidth": shape.choice(["10G", "100G"])})


def local_pools(shape, count, gpus=(0, 2, 4, 6), nics=(0, 1, 2, 3)):
    """Pools of single nodes: GPUs, and NICs."""
    for number in range(count):
        name = f"n{number:03}"
        all = [gpu(shape, f"gpu-{n}", n % 2) for n in range(shape.choice(gpus))]
        if all:
            half = len(all) // 2
            shape.add(
                resource_slice(f"{name}-gpu-1", GPU, name, all[:half], count=2, nodeName=name),
                resource_slice(f"{name}-gpu-0", GPU, name, all[half:], count=2, nodeName=name),
            )
        all = [nic(shape, f"nic-{n}", n % 2) for n in range(shape.choice(nics))]
        if all:
            shape.add(resource_slice(f"{name}-nic", NIC, name, all, nodeName=name))


def selectors(shape):
    attribute = f'device.attributes["{GPU}"]'
    return shape.random.sample([
        f'{attribute}.model == "{shape.choice(MODELS)}"',
        f'{attribute}.model in ["a", "b"] && {attribute}.ecc',
        f"{attribute}.index < {shape.random.randrange(8)}",
        f'{attribute}.driverVersion.isGreaterThan(semver("1.3.0"))',
        f'device.capacity["{GPU}"].memory.isGreaterThan(quantity("20Gi"))',
        'device.attributes["numa.example.com"].?node.orValue(-1) == 1',
        f'"memory" in device.capacity["{GPU}"]',
    ], shape.choice([0, 0, 1, 1, 2]))


def some_request(shape, name):
    kind = shape.random.random()
    if kind < 0.55:
        return request(name, "gpu", shape.choice([1, 1, 1, 2, 3]), *selectors(shape))
    if kind < 0.7:
        return request(name, "big-gpu", shape.choice([1, 1, 2]))
    if kind < 0.85:
        rdma = f'device.attributes["{NIC}"].rdma'
        return request(name, "nic", 1, *([rdma] if shape.chance(0.4) else []))
    if kind < 0.9:
        return request(name, "any", shape.choice([1, 2]))
    if kind < 0.95:
        return request(name, shape.choice(["gpu", "nic"]), "All")
    # Too many devices: after a request for all, the number in the error differs by node.
    many = shape.choice([1, 40]) if name == "r0" else 1
    return request(name, shape.choice(["missing", "gpu"]), many)


def constraints(shape, names):
    if shape.chance(0.6):
        return []
    attribute = shape.choice([
        "numa.example.com/node", f"{GPU}/model", f"{GPU}/driverVersion", f"{GPU}/ecc",
        f"{GPU}/none",
    ])
    out = {shape.choice(["matchAttribute", "distinctAttribute"]): attribute}
    if shape.chance(0.4):
        out["requests"] = shape.random.sample(names, 1)
    return [out]


def some_claim(shape, name):
    requests = [some_request(shape, f"r{n}") for n in range(shape.choice([1, 1, 1, 2, 3]))]
    # A claim for all devices with a constraint is an error on the first node that violates it.
    every = any(r["exactly"]["allocationMode"] == "All" for r in requests)
    rules = [] if every else constraints(shape, [r["name"] for r in requests])
    more = {"deletionTimestamp": time(0), "finalizers": ["x"]} if shape.chance(0.03) else {}
    return device_claim(name, requests, rules, metadata=more)


def devices(shape, pods):
    """Claims of single pods for the devices of single nodes."""
    count = node_count(pods, 8)
    shape.nodes(count, cpu="16", memory="64Gi", zone=zone_of)
    classes(shape)
    local_pools(shape, count)
    for number in range(pods):
        spec = {"priority": shape.choice([0, 0, 10])}
        if shape.chance(0.3):
            generated(shape, lambda name: some_claim(shape, name), **spec)
            continue
        names = [f"c{number}-{n}" for n in range(shape.choice([1, 1, 2]))]
        shape.add(*(some_claim(shape, name) for name in names))
        if shape.chance(0.05):
            names.append("missing")
        uses(shape, *names, **spec)


def shared_claims(shape, pods):
    """Claims of several pods: some have devices already, of a node, of a zone, or of no node that
    exists."""
    nodes = node_count(pods, 10)
    shape.nodes(nodes, cpu="16", memory="64Gi", zone=zone_of)
    classes(shape)
    local_pools(shape, nodes)
    shape.add(resource_slice("net", "net.example.com", "net", [device("d")], allNodes=True))
    count, taken = max(pods // 4, 4), set()
    for number in range(count):
        name, kind = f"c{number}", shape.choice(range(6))
        pool, more = some_node(shape, nodes), {}
        if shape.chance(0.3):
            more["reserved"] = shape.random.sample(["x", "y", "p00003", "p00009"], 2)
        requests = [request("r0", "gpu")]
        if kind == 0 and (pool, number % 4) not in taken:
            # Upstream frees a device of two claims when the first one leaves it.
            taken.add((pool, number % 4))
            allocation = allocated(GPU, pool, f"gpu-{number % 4}", named(pool))
        elif kind == 1:
            allocation = allocated(GPU, pool, f"other-{number}", zones(shape.choice("ab")))
        elif kind == 2:
            allocation = allocated("net.example.com", "net", f"other-{number}")
        elif kind == 3:
            allocation = allocated(GPU, "gone", f"gpu-{number}", named("gone"))
        else:
            allocation = None
            requests = [some_request(shape, "r0")]
            more.pop("reserved", None)
        shape.add(device_claim(name, requests, allocation=allocation, **more))
    for number in range(pods):
        names = [f"c{shape.random.randrange(count)}"]
        if shape.chance(0.3):
            names.append(f"own-{number}")
            shape.add(some_claim(shape, names[1]))
        uses(shape, *names)


def prioritized_lists(shape, pods):
    """Requests with alternatives, of which earlier ones have more points."""
    count = node_count(pods, 6)
    shape.nodes(count, cpu="64", memory="256Gi", zone=zone_of)
    classes(shape)
    local_pools(shape, count, gpus=(2, 4, 6, 8))
    choice = lambda: exactly(
        shape.choice(["big-gpu", "gpu", "gpu", "nic", "any"]), shape.choice([1, 1, 2, 3])
    )
    filtered = lambda: exactly("gpu", shape.choice([1, 2]), *selectors(shape))
    for number in range(pods):
        names, rules, requests = [], [], []
        for at in range(shape.choice([1, 1, 2])):
            all = [shape.choice([choice, filtered])() for _ in range(shape.choice([1, 2, 3, 4]))]
            if shape.chance(0.05):
                all[-1] = exactly("missing")
            requests.append(alternatives(f"r{at}", *all))
            names += [f"r{at}", f"r{at}/s0"]
        if shape.chance(0.3):
            requests.append(request("r9", "nic"))
            names.append("r9")
        rules = constraints(shape, names)
        shape.add(device_claim(f"c{number}", requests, rules))
        claims = [f"c{number}"]
        if shape.chance(0.3):
            list = [exactly("gpu", count) for count in (2, 1)]
            shape.add(device_claim(f"d{number}", [alternatives("r", *list)]))
            claims.append(f"d{number}")
        uses(shape, *claims, containers=[container()])


def shared_pools(shape, pods):
    """Pools of several nodes: of all, of those that a selector matches, or of each device; slices
    of several generations; incomplete and invalid pools."""
    shape.nodes(20, cpu="32", memory="128Gi", zone=zone_of)
    net, driver = "net.example.com", "disk.example.com"
    shape.add(
        device_class("net", f'device.driver == "{net}"'),
        device_class("disk", f'device.driver == "{driver}"'),
        device_class("gpu", f'device.driver == "{GPU}"'),
        device_class("nic", f'device.driver == "{NIC}"'),
    )
    of = lambda prefix, count, **more: [
        device(f"{prefix}-{n}", {"odd": n % 2 == 1, "rack": f"r{n % 3}"}, **more)
        for n in range(count)
    ]
    share = max(pods // 12, 2)
    shape.add(
        resource_slice("net-all", net, "all", of("a", share), allNodes=True),
        resource_slice("net-a-1", net, "zone-a", of("a", share), count=2, nodeSelector=zones("a")),
        resource_slice("net-a-0", net, "zone-a", of("b", share), count=2, nodeSelector=zones("a")),
        resource_slice("net-ab", net, "two", of("c", share), nodeSelector=zones("a", "b")),
    )
    local = [device(f"d-{n}", {"fast": n % 3 == 0}, nodeName=f"n{n % 20:03}") for n in range(60)]
    local += [device(f"z-{n}", {"fast": True}, nodeSelector=zones("c")) for n in range(share)]
    local += [device(f"any-{n}", {"fast": False}, allNodes=True) for n in range(share)]
    half = len(local) // 2
    shape.add(
        resource_slice("disk-0", driver, "disks", local[:half], count=2,
                       perDeviceNodeSelection=True),
        resource_slice("disk-1", driver, "disks", local[half:], count=2,
                       perDeviceNodeSelection=True),
    )
    for number in range(20):
        name = f"n{number:03}"
        new = resource_slice(f"{name}-new", GPU, name, of("new", 3), 2, nodeName=name)
        old = resource_slice(f"{name}-old", GPU, name, of("old", 4), 1, nodeName=name)
        shape.add(old, *([new] if number % 3 else []))
        kind = number % 10
        twice = of("x", 2) + of("x", 1) if kind == 3 else of("x", 2)
        count = 2 if kind == 7 else 1
        shape.add(resource_slice(f"{name}-nic", NIC, name, twice, count=count, nodeName=name))
    for number in range(pods):
        kind = shape.random.random()
        odd = f'device.attributes["{net}"].odd'
        fast = f'device.attributes["{driver}"].fast'
        requests = [request("r0", "net", shape.choice([1, 2]), *([odd] if kind > 0.5 else []))]
        if kind < 0.25:
            only = [fast] if kind < 0.1 else []
            requests = [request("r0", "disk", shape.choice([1, 2]), *only)]
        elif kind < 0.45:
            requests = [request("r0", "gpu", shape.choice([1, 2]))]
        elif kind < 0.6:
            requests = [request("r0", "nic", shape.choice([1, 2]))]
        elif kind < 0.63:
            # An error that all nodes find at the same device, or pool.
            requests = [request("r0", "net", 1, f'device.attributes["{net}"].none == "x"')]
        elif kind < 0.66:
            rack = f'device.attributes["{net}"].?rack.orValue(1) == 1'
            requests = [request("r0", "net", 1, rack)]
        elif kind < 0.72:
            requests.append(request("r1", "disk", 1, fast))
        rules = []
        if shape.chance(0.3):
            rule = shape.choice(["matchAttribute", "distinctAttribute"])
            rules = [{rule: f"{net}/rack"}] if kind > 0.72 else []
        shape.add(device_claim(f"c{number}", requests, rules))
        spec = {"nodeSelector": {"topology.kubernetes.io/zone": "b"}} if shape.chance(0.2) else {}
        uses(shape, f"c{number}", containers=[container()], **spec)


def unavailable_pools(shape, pods):
    """Requests for all devices while one pool is incomplete or invalid."""
    count = node_count(pods, 4)
    shape.nodes(count, zone=zone_of)
    classes(shape)
    local_pools(shape, count, gpus=(2, 4), nics=(0,))
    part = [gpu(shape, f"gpu-{n}", 0) for n in range(3)]
    shape.add(
        resource_slice("part", GPU, "part", part, count=2, nodeSelector=named("n003")),
        device_class("net", 'device.driver == "net.example.com"'),
    )
    twice = [device("x"), device("x")]
    shape.add(
        resource_slice("twice", "net.example.com", "twice", twice, nodeSelector=named("n005"))
    )
    for number in range(pods):
        wanted, many = shape.choice(["gpu", "big-gpu", "net"]), shape.choice(["All", "All", 1, 2])
        shape.add(device_claim(f"c{number}", [request("r0", wanted, many)]))
        hosts = shape.choice([["n003"], ["n005"], *[[some_node(shape, count) for _ in "ab"]] * 4])
        requirement = {"key": "kubernetes.io/hostname", "operator": "In", "values": hosts}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
        uses(shape, f"c{number}", affinity=affinity, containers=[container()])


def device_taint(shape):
    return {
        "key": shape.choice(["k", "l"]), "value": shape.choice(["x", "y"]),
        "effect": shape.choice(["NoSchedule", "NoExecute", "None"]), "timeAdded": time(1),
    }


def device_toleration(shape):
    out = {"operator": shape.choice(["Exists", "Equal", "Equal"])}
    if out["operator"] == "Equal" or shape.chance(0.8):
        out["key"] = shape.choice(["k", "l"])
    if out["operator"] == "Equal":
        out["value"] = shape.choice(["x", "y"])
    if shape.chance(0.5):
        out["effect"] = shape.choice(["NoSchedule", "NoExecute"])
    return out


def device_taints(shape, pods):
    """Taints of drivers and of rules, and devices that are prepared after their allocation."""
    nodes = node_count(pods, 12)
    shape.nodes(nodes, cpu="32", memory="128Gi", zone=zone_of)
    classes(shape)
    for number in range(nodes):
        name, all = f"n{number:03}", []
        for n in range(6):
            taints = [device_taint(shape) for _ in range(shape.choice([0, 0, 1, 2]))]
            distinct = {(t["key"], t["effect"]): t for t in taints}
            more = {"taints": list(distinct.values())} if taints else {}
            all.append(gpu(shape, f"gpu-{n}", n % 2, **more))
        shape.add(resource_slice(f"{name}-gpu", GPU, name, all, nodeName=name))
        waits = {"bindingConditions": ["Ready"], "bindingFailureConditions": ["Failed"]}
        all = [device(f"f-{n}", **waits, bindsToNode=n % 2 == 0) for n in range(2)]
        shape.add(resource_slice(f"{name}-a", "fabric.example.com", name, all, nodeName=name))
        all = [device(f"g-{n}") for n in range(2)]
        shape.add(resource_slice(f"{name}-b", "late.example.com", name, all, nodeName=name))
    shape.add(
        resource_slice("fabric", "fabric.example.com", "fabric", [
            device(f"far-{n}", bindingConditions=["Ready"], bindingFailureConditions=["Failed"],
                   bindsToNode=True) for n in range(max(pods // 10, 2))
        ], allNodes=True),
        device_class("fabric", 'device.driver in ["fabric.example.com", "late.example.com"]'),
    )
    for number, selector in enumerate([
        {"driver": GPU, "pool": "n001"}, {"driver": GPU, "device": "gpu-5"}, {"pool": "n002"},
        {"driver": "fabric.example.com", "pool": "n003", "device": "f-1"}, None,
    ]):
        spec = {"taint": device_taint(shape)}
        if selector is not None:
            spec["deviceSelector"] = selector
        shape.add(resource("DeviceTaintRule", f"rule-{number}", spec))
    for number in range(pods):
        tolerations = [device_toleration(shape) for _ in range(shape.choice([0, 1, 1, 2]))]
        more = {"tolerations": tolerations} if tolerations else {}
        name = shape.choice(["gpu", "gpu", "big-gpu", "fabric"])
        one = request("r0", name, shape.choice([1, 1, 2]), **more)
        if shape.chance(0.2):
            one = alternatives("r0", exactly(name, 2), exactly(name, 1, **more))
        elif shape.chance(0.05):
            one = request("r0", name, "All", **more)
        shape.add(device_claim(f"c{number}", [one]))
        uses(shape, f"c{number}", containers=[container()])


def admin_access(shape, pods):
    """Claims with access to devices that others use."""
    count = node_count(pods, 10)
    shape.nodes(count, cpu="32", memory="128Gi", zone=zone_of)
    classes(shape)
    local_pools(shape, count, gpus=(2, 4), nics=(0, 2))
    for number in range(pods):
        admin = {"adminAccess": shape.chance(0.5)}
        requests = [request("r0", "gpu", shape.choice([1, 2, "All"]), **admin)]
        if shape.chance(0.3):
            requests.append(request("r1", shape.choice(["gpu", "nic"]), 1, adminAccess=True))
        shape.add(device_claim(f"c{number}", requests))
        uses(shape, f"c{number}", containers=[container()])


SERVED = ["example.com/gpu", "example.com/card", "deviceclass.resource.kubernetes.io/gpu"]


def served_containers(shape):
    """Containers, of which some request resources that classes serve."""
    def one(name):
        requests = shape.requests()
        if shape.chance(0.6):
            requests[shape.choice(SERVED)] = str(shape.choice([1, 1, 2, 3]))
        if shape.chance(0.03):
            requests["example.com/none"] = "1"
        return container(name, requests)

    out = {"containers": [one(f"c{n}") for n in range(shape.choice([1, 1, 2]))]}
    if shape.chance(0.3):
        out["initContainers"] = [one(f"i{n}") for n in range(shape.choice([1, 2]))]
        if shape.chance(0.4):
            out["initContainers"][0]["restartPolicy"] = "Always"
    return out


def with_extended_resources(shape, pods):
    count = node_count(pods, 10)
    for number in range(count):
        resources = {}
        if number % 4 == 0:
            resources["example.com/gpu"] = shape.choice(["0", "2", "4"])
        if number % 6 == 1:
            resources["example.com/card"] = "3"
        shape.add(node(f"n{number:03}", "32", "128Gi", zone=zone_of(number), resources=resources))
    shape.add(
        device_class("gpu", f'device.driver == "{GPU}"', second=5,
                     extendedResourceName="example.com/gpu"),
        device_class("old", f'device.driver == "{NIC}"', second=1,
                     extendedResourceName="example.com/gpu"),
        device_class("card", f'device.driver == "{NIC}"', second=2,
                     extendedResourceName="example.com/card"),
        device_class("big-gpu", f'device.capacity["{GPU}"].memory.isGreaterThan(quantity("20Gi"))'),
        device_class("nic", f'device.driver == "{NIC}"'),
    )
    local_pools(shape, count)
    for _ in range(count):
        shape.pod(on=some_node(shape, count))


def extended_resources(shape, pods):
    """Extended resources that classes serve, on nodes with and without device plugins."""
    with_extended_resources(shape, pods)
    for _ in range(pods):
        shape.pod(priority=shape.choice([0, 10]), **served_containers(shape))


def scored_devices(shape, pods):
    """Profiles that score nodes by extended resources that classes serve. Upstream's
    NodeResourcesBalancedAllocation panics for classes with selectors."""
    weights = [{"name": "cpu"}, *({"name": name, "weight": 3} for name in SERVED)]
    strategy = lambda type: args(
        "NodeResourcesFit", scoringStrategy={"type": type, "resources": weights}
    )
    shape.config = configuration(
        {"schedulerName": "most", "pluginConfig": [strategy("MostAllocated")]},
        {"schedulerName": "least", "pluginConfig": [strategy("LeastAllocated")]},
    )
    with_extended_resources(shape, pods)
    for number in range(pods):
        spec = served_containers(shape) | {"schedulerName": shape.choice(["most", "least"])}
        shape.pod(**spec)


SHAPES = [
    devices, shared_claims, prioritized_lists, shared_pools, unavailable_pools, partitions,
    device_taints, admin_access, extended_resources, scored_devices,
]
