#!/usr/bin/env python3
"""fill_cluster.py KUBECONFIG HOST NODES PODS: creates nodes, and pods that are bound to them in
turns, through the API at HOST."""

import sys

from api_objects import create_all, node, pod


def main(kubeconfig, host, nodes, pods):
    address, nodes, pods = (host, ("--kubeconfig", kubeconfig)), int(nodes), int(pods)
    create_all(address, "/api/v1/nodes", [node(n) for n in range(nodes)])
    bound = [pod(f"pod-{n}", nodeName=f"node-{n % nodes}") for n in range(pods)]
    create_all(address, "/api/v1/namespaces/default/pods", bound)


main(*sys.argv[1:])
