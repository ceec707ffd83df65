#!/usr/bin/env python3
"""writer.py KUBECONFIG HOST NAME: creates ConfigMaps one after another over one connection to the
API at HOST. Prints the time of each accepted one, and `failed` with the answer for each other one.
"""

import base64, http.client, json, re, ssl, sys, tempfile, time



def connect(kubeconfig, host):
    """A connection to the API at the host as the user of the kubeconfig."""
    text = open(kubeconfig).read()
    field = lambda key: base64.b64decode(re.search(key + r": *(\S+)", text).group(1))
    context = ssl.create_default_context(cadata=field("certificate-authority-data").decode())
    with tempfile.NamedTemporaryFile() as pem:
        pem.write(field("client-certificate-data") + b"\n" + field("client-key-data"))
        pem.flush()
        context.load_cert_chain(pem.name)
    return http.client.HTTPSConnection(host, 6443, context=context, timeout=30)


def main(kubeconfig, host, name):
    connection = connect(kubeconfig, host)
    count = 0
    while True:
        count += 1
        body = json.dumps({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": f"{name.lower()}-{count}"},
        })
        try:
            connection.request(
                "POST", "/api/v1/namespaces/default/configmaps", body,
                {"content-type": "application/json"},
            )
            answer = connection.getresponse()
            body = answer.read()
            print(
                (
                    f"{time.monotonic():.4f}"
                    if answer.status == 201
                    else f"failed {answer.status} {body[:200]!r}"
                ),
                flush=True,
            )
        except (OSError, http.client.HTTPException) as error:
            print(f"failed {error}", flush=True)
            connection.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
