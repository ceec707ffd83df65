"""A receiver of audit events: audit.py PORT-PIPE LOG. Writes every received list as a line of LOG;
/fail rejects its first two."""

import json, sys
from listener import Handler, serve

port_file, log = sys.argv[1:]
refused = 0


class Receiver(Handler):
    def do_POST(self):
        global refused
        body = json.loads(self.body())
        if self.path.startswith("/fail") and refused < 2:
            refused += 1
            self.answer(503)
            return
        line = {
            "path": self.path, "authorization": self.headers.get("Authorization"),
            "type": self.headers.get("Content-Type"), "list": body,
        }
        with open(log, "a") as out:
            out.write(json.dumps(line) + "\n")
        self.answer(200)


serve(Receiver, port_file)
