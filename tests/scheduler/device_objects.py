"""Objects of dynamic resource allocation: ResourceClaims, ResourceSlices and DeviceClasses."""

from cluster import time


def resource(kind, name, spec, namespace=None, **more):
    """An object of the group resource.k8s.io."""
    metadata = {"name": name, "uid": f"uid-{kind}-{name}", "resourceVersion": "1"}
    if namespace:
        metadata["namespace"] = namespace
    metadata |= more.pop("metadata", {})
    out = {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec}
    return out | more


def cel(*expressions):
    return [{"cel": {"expression": expression}} for expression in expressions]


def device_class(name, *expressions, second=0, **more):
    spec = {"selectors": cel(*expressions)} if expressions else {}
    return resource(
        "DeviceClass", name, spec | more, metadata={"creationTimestamp": time(second)}
    )


def value(of):
    """An attribute of the type of this value; versions have the form v1.2.3."""
    if isinstance(of, bool):
        return {"bool": of}
    if isinstance(of, int):
        return {"int": of}
    return {"version": of[1:]} if of[:1] == "v" and "." in of else {"string": of}


def device(name, attributes=None, capacity=None, **more):
    out = {"name": name} | more
    if attributes:
        out["attributes"] = {key: value(of) for key, of in attributes.items()}
    if capacity:
        out["capacity"] = {
            key: of if isinstance(of, dict) else {"value": of} for key, of in capacity.items()
        }
    return out


def resource_slice(name, driver, pool, devices, generation=1, count=1, **more):
    spec = {
        "driver": driver,
        "pool": {"name": pool, "generation": generation, "resourceSliceCount": count},
    }
    if devices:
        spec["devices"] = devices
    return resource("ResourceSlice", name, spec | more)


def zones(*names):
    """A node selector for these zones."""
    key = "topology.kubernetes.io/zone"
    expression = {"key": key, "operator": "In", "values": list(names)}
    return {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}


def named(name):
    field = {"key": "metadata.name", "operator": "In", "values": [name]}
    return {"nodeSelectorTerms": [{"matchFields": [field]}]}


def exactly(of, count=1, *expressions, **more):
    """What a request without alternatives, or a subrequest, has besides its name."""
    out = {"deviceClassName": of, "allocationMode": "ExactCount", "count": count}
    if count == "All":
        out = {"deviceClassName": of, "allocationMode": "All"}
    if expressions:
        out["selectors"] = cel(*expressions)
    return out | more


def request(name, *of, **more):
    return {"name": name, "exactly": exactly(*of, **more)}


def alternatives(name, *all):
    list = [{"name": f"s{at}"} | alternative for at, alternative in enumerate(all)]
    return {"name": name, "firstAvailable": list}


def device_claim(name, requests, constraints=(), allocation=None, reserved=(), **more):
    devices = {"requests": requests}
    if constraints:
        devices["constraints"] = list(constraints)
    status = {}
    if allocation is not None:
        status["allocation"] = allocation
    if reserved:
        status["reservedFor"] = [
            {"resource": "pods", "name": pod, "uid": f"uid-default-{pod}"} for pod in reserved
        ]
    return resource(
        "ResourceClaim", name, {"devices": devices}, "default", status=status, **more
    )


def allocated(driver, pool, name, selector=None, request="r0", **more):
    """The allocation of one device."""
    result = {"request": request, "driver": driver, "pool": pool, "device": name} | more
    out = {"devices": {"results": [result]}}
    return out | {"nodeSelector": selector} if selector else out


def uses(shape, *claims, **spec):
    """A pod with these claims."""
    entries = [{"name": f"e{n}", "resourceClaimName": name} for n, name in enumerate(claims)]
    return shape.pod(resourceClaims=entries, **spec)


def node_count(pods, each):
    """Number of nodes so that about half of the pods find devices."""
    return max(6, pods // each)
