"""An HTTP proxy for CONNECT requests that carry the right credentials.

usage: http-proxy.py ADDRESS PORT USER:PASSWORD     prints the targets of requests
"""
import base64
import socket
import socketserver
import sys
import threading

address, port, credentials = sys.argv[1:]
wanted = "Basic " + base64.b64encode(credentials.encode()).decode()


class Proxy(socketserver.StreamRequestHandler):
    def handle(self):
        method, target, _ = self.rfile.readline().decode().split(" ", 2)
        headers = {}
        while line := self.rfile.readline().decode().strip():
            name, value = line.split(": ", 1)
            headers[name.lower()] = value
        print(method, target, flush=True)
        if headers.get("proxy-authorization") != wanted:
            self.wfile.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            return
        host, number = target.rsplit(":", 1)
        with socket.create_connection((host, int(number))) as peer:
            self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=copy, args=(peer, self.connection), daemon=True)
            back.start()
            copy(self.connection, peer)
            back.join(10)


def copy(source, target):
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


Server((address, int(port)), Proxy).serve_forever()
