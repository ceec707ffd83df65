"""Clusters with volumes, and with limits of drivers."""

from cluster import ZONES, container, some_node, zone_of


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
