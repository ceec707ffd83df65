"""Clusters with affinity of pods and nodes, and spread constraints."""

from cluster import ZONES, some_node, zone_of


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
