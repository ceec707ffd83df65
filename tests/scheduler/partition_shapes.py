"""Clusters with devices that share counters."""

from cluster import container, zone_of
from device_objects import (
    device, device_claim, device_class, node_count, request, resource_slice, uses,
)

def partitions(shape, pods):
    """Devices that share counters of their pool, and devices of which claims share capacity."""
    nodes = node_count(pods, 12)
    shape.nodes(nodes, cpu="64", memory="256Gi", zone=zone_of)
    part, shared = "part.example.com", "shared.example.com"
    shape.add(
        device_class("part", f'device.driver == "{part}"'),
        device_class("shared", f'device.driver == "{shared}"'),
        device_class("multiple", "device.allowMultipleAllocations == true"),
    )
    counters = lambda **all: {
        name.replace("_", "-"): {"value": amount} for name, amount in all.items()
    }
    for number in range(nodes):
        name = f"n{number:03}"
        card = counters(memory="40Gi", slices="7")
        sets = [{"name": f"gpu-{n}", "counters": card} for n in (0, 1)]
        all = []
        for card in range(2):
            for size, memory, slices, copies in (
                ("whole", "40Gi", "7", 1), ("half", "20Gi", "3", 2), ("small", "5Gi", "1", 5),
            ):
                consumed = {"counterSet": f"gpu-{card}", "counters": counters(
                    memory=memory, slices=slices,
                )}
                all += [
                    device(f"{card}-{size}-{n}", {"size": size, "card": card}, {"memory": memory},
                           consumesCounters=[consumed])
                    for n in range(copies)
                ]
        if number == 3:
            all[-1]["consumesCounters"][0]["counterSet"] = "unknown"
        shape.add(
            resource_slice(f"{name}-part", part, name, all, count=2, nodeName=name),
            resource_slice(f"{name}-sets", part, name, [], count=2, nodeName=name,
                           sharedCounters=sets),
        )
        step = {"default": "1Gi", "validRange": {"min": "1Gi", "max": "8Gi", "step": "512Mi"}}
        values = {"default": "1", "validValues": ["1", "2", "5"]}
        memory = {"value": "16Gi", "requestPolicy": step}
        ports = {"value": "8", "requestPolicy": values}
        consumed = {"counterSet": "lanes", "counters": counters(lanes="4")}
        all = [
            device("m-0", {"kind": "memory"}, {"memory": memory}, allowMultipleAllocations=True),
            device("m-1", {"kind": "both"}, {"memory": memory, "ports": ports},
                   allowMultipleAllocations=True, consumesCounters=[consumed]),
            device("m-2", {"kind": "free"}, {"memory": "4Gi"}, allowMultipleAllocations=True),
            device("m-3", {"kind": "single"}, {"memory": memory}, consumesCounters=[consumed]),
            device("m-4", {"kind": "none"}, allowMultipleAllocations=True),
        ]
        lanes = [{"name": "lanes", "counters": counters(lanes=shape.choice(["4", "8"]))}]
        shape.add(
            resource_slice(f"{name}-shared", shared, name, all, count=2, nodeName=name),
            resource_slice(f"{name}-lanes", shared, name, [], count=2, nodeName=name,
                           sharedCounters=lanes),
        )
    amounts = ["512Mi", "1Gi", "1280Mi", "3Gi", "1500M", "8Gi", "9Gi", "2500m"]
    for number in range(pods):
        requests = []
        for at in range(shape.choice([1, 1, 2, 3])):
            kind = shape.random.random()
            if kind < 0.45:
                size = shape.choice(["whole", "half", "small", "small"])
                expression = f'device.attributes["{part}"].size == "{size}"'
                requests.append(request(f"r{at}", "part", shape.choice([1, 1, 2]), expression))
                continue
            wanted = {}
            if shape.chance(0.7):
                wanted["memory"] = shape.choice(amounts)
            if shape.chance(0.3):
                wanted["ports"] = shape.choice(["1", "3", "5", "6"])
            more = {"capacity": {"requests": wanted}} if wanted else {}
            name = shape.choice(["shared", "multiple"])
            count = "All" if shape.chance(0.03) else shape.choice([1, 1, 2])
            requests.append(request(f"r{at}", name, count, **more))
        rules = []
        if shape.chance(0.2):
            rules = [{shape.choice(["matchAttribute", "distinctAttribute"]): f"{part}/card"}]
            names = [r["name"] for r in requests if r["exactly"]["deviceClassName"] == "part"]
            rules = [rules[0] | {"requests": names}] if names else []
        shape.add(device_claim(f"c{number}", requests, rules))
        uses(shape, f"c{number}", containers=[container()])
