"""A bucket of an S3 service over TLS, as far as snapshots need it: objects are files.

usage: s3-bucket.py ADDRESS PORT CERTIFICATE KEY DIRECTORY ACCESS_KEY
"""
import http.server
import os
import ssl
import sys
import urllib.parse
from xml.sax.saxutils import escape

address, port, certificate, key, directory, access_key = sys.argv[1:]


class Bucket(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status, body=b""):
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def error(self, status, code):
        self.answer(status, f"<Error><Code>{code}</Code></Error>".encode())

    def target(self):
        """The path of the object and the query; none after a rejection."""
        length = int(self.headers.get("content-length", 0))
        self.body = self.rfile.read(length)
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        if not query.get("X-Amz-Credential", "").startswith(access_key + "/"):
            self.error(403, "InvalidAccessKeyId")
            return None, query
        return os.path.join(directory, urllib.parse.unquote(url.path).lstrip("/")), query

    def do_PUT(self):
        path, _ = self.target()
        if path:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as out:
                out.write(self.body)
            self.answer(200)

    def do_GET(self):
        path, query = self.target()
        if not path:
            return
        if "list-type" in query:
            prefix = query.get("prefix", "")
            folder = os.path.join(path, prefix)
            names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
            rows = "".join(
                f"<Contents><Key>{escape(prefix + name)}</Key>"
                f"<Size>{os.path.getsize(os.path.join(folder, name))}</Size></Contents>"
                for name in names if os.path.isfile(os.path.join(folder, name)))
            text = ('<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
                    f"<IsTruncated>false</IsTruncated>{rows}</ListBucketResult>")
            self.answer(200, text.encode())
        elif os.path.isfile(path):
            with open(path, "rb") as source:
                self.answer(200, source.read())
        else:
            self.error(404, "NoSuchKey")

    def do_DELETE(self):
        path, _ = self.target()
        if path:
            if os.path.exists(path):
                os.remove(path)
            self.answer(204)


server = http.server.ThreadingHTTPServer((address, int(port)), Bucket)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(certificate, key)
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
