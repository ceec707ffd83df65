"""Requests that occupy a seat as long as the caller wants: the server sends 100 Continue, which
requests the body, once a request has a seat.

usage: flows.py hold PORT TOKEN [QUERY]
           prints the first status (100 with a seat), waits for the end of its input, prints the
           last status
       flows.py share PORT SECONDS TOKEN=N...
           N clients of each token send requests of 10 ms without pause; prints TOKEN=ANSWERED
           for each
"""

import socket, ssl, sys, threading, time

BODY = b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"held"}}'


class Client:
    def __init__(self, port, token):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        raw = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.socket = context.wrap_socket(raw)
        self.file = self.socket.makefile("rb")
        self.token = token

    def status(self):
        """Reads one head and its body."""
        line = self.file.readline().split()
        code, length = int(line[1]) if len(line) > 1 else 0, 0
        while header := self.file.readline().strip():
            name, _, value = header.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        self.file.read(length)
        return code

    def begin(self, query=""):
        head = (
            f"POST /api/v1/namespaces/default/configmaps?dryRun=All{query} HTTP/1.1\r\n"
            f"Host: localhost\r\nAuthorization: Bearer {self.token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(BODY)}\r\n"
            "Expect: 100-continue\r\n\r\n"
        )
        self.socket.sendall(head.encode())
        return self.status()

    def end(self):
        self.socket.sendall(BODY)
        return self.status()


def hold(port, token, query=""):
    client = Client(int(port), token)
    first = client.begin(query)
    print(first, flush=True)
    if first == 100:
        sys.stdin.read()
        print(client.end(), flush=True)


def share(port, seconds, *shares):
    end, counts, lock = time.monotonic() + float(seconds), {}, threading.Lock()

    def ask(token):
        client = Client(int(port), token)
        while time.monotonic() < end:
            if client.begin() != 100:
                return
            time.sleep(0.01)  # the work of the request
            if client.end() == 201 and time.monotonic() < end:
                with lock:
                    counts[token] = counts.get(token, 0) + 1

    threads = []
    for share in shares:
        token, _, number = share.partition("=")
        counts[token] = 0
        threads += [threading.Thread(target=ask, args=(token,)) for _ in range(int(number))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(*(f"{token}={count}" for token, count in counts.items()))


{"hold": hold, "share": share}[sys.argv[1]](*sys.argv[2:])
