#!/usr/bin/env python3
"""fill_cluster.py KUBECONFIG HOST NODES PODS: creates nodes, and pods that are bound to them in
turns, through the API at HOST."""

import json, pathlib, sys, threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests/lib"))
from api_objects import node, pod
from writer import connect

CONNECTIONS = 8


def create(connection, path, bodies):
    for body in bodies:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", path, json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != 201:
            raise SystemExit(f"fill_cluster.py: POST {path}: {answer.status} {text[:300]!r}")


def create_all(kubeconfig, host, path, bodies):
    shares = [bodies[n::CONNECTIONS] for n in range(CONNECTIONS)]
    failed = []

    def share(bodies):
        try:
            create(connect(kubeconfig, host), path, bodies)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=share, args=(bodies,)) for bodies in shares]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        sys.exit(str(failed[0]))


def main(kubeconfig, host, nodes, pods):
    nodes, pods = int(nodes), int(pods)
    create_all(kubeconfig, host, "/api/v1/nodes", [node(n) for n in range(nodes)])
    bound = [pod(f"pod-{n}", nodeName=f"node-{n % nodes}") for n in range(pods)]
    create_all(kubeconfig, host, "/api/v1/namespaces/default/pods", bound)


main(*sys.argv[1:])
