"""Serves a directory over HTTP with ranges. Below /cut/ a request without a range ends after half of
the file, as a connection that is lost. Prints one line per request: path and range.
usage: release-host.py DIRECTORY ADDRESS PORT"""
import functools
import http.server
import os
import sys


class Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        path = self.translate_path(self.path.removeprefix("/cut"))
        wanted = self.headers.get("Range")
        print(self.path, wanted or "", flush=True)
        if not os.path.isfile(path):
            return self.send_error(404)
        size = os.path.getsize(path)
        begin = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        if begin >= size > 0:
            return self.send_error(416)
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(size - begin))
        self.send_header("Accept-Ranges", "bytes")
        if wanted:
            self.send_header("Content-Range", f"bytes {begin}-{size - 1}/{size}")
        self.end_headers()
        with open(path, "rb") as file:
            file.seek(begin)
            if self.path.startswith("/cut/") and not wanted and size > 4096:
                self.wfile.write(file.read(size // 2))
                self.close_connection = True
                return None
            self.copyfile(file, self.wfile)
        return None

    def log_message(self, *_):
        pass


server = functools.partial(Handler, directory=sys.argv[1])
http.server.ThreadingHTTPServer((sys.argv[2], int(sys.argv[3])), server).serve_forever()
