#!/usr/bin/env python3
"""controller_actions.py KUBECONFIG HOST: deletes the service account `default` as soon as its
controller has created it again. Prints the time of each of these creations, as a watch at HOST
reports them, and `failed` with the answer for each deletion that is not accepted.
"""

import http.client, json, pathlib, sys, time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests/lib"))
from writer import connect

ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"


def delete(connection):
    """Deletes the account; tries again until the API accepts it."""
    while True:
        try:
            connection.request("DELETE", f"{ACCOUNTS}/default")
            answer = connection.getresponse()
            body = answer.read()
            # After an answer that got lost the account is already deleted.
            if answer.status in (200, 404):
                return
            print(f"failed {answer.status} {body[:200]!r}", flush=True)
        except (OSError, http.client.HTTPException) as error:
            print(f"failed {error}", flush=True)
            connection.close()


def main(kubeconfig, host):
    watch, writer = connect(kubeconfig, host), connect(kubeconfig, host)
    watch.request("GET", f"{ACCOUNTS}?watch=1&fieldSelector=metadata.name%3Ddefault")
    events = watch.getresponse()
    while line := events.readline():
        if json.loads(line)["type"] == "ADDED":
            print(f"{time.monotonic():.4f}", flush=True)
            delete(writer)


main(*sys.argv[1:])
