"""An authorization webhook: authorizer.py PORT-PIPE LOG. The user's name selects the answer; writes
every review as a line of LOG."""

import json, sys
from listener import Handler, serve

port_file, log = sys.argv[1:]
ANSWERS = {
    "allowed": {"allowed": True, "reason": "the webhook says yes"},
    "denied": {"allowed": False, "denied": True, "reason": "the webhook says no"},
    "both": {"allowed": True, "denied": True},
}


class Hook(Handler):
    def do_POST(self):
        review = json.loads(self.body())
        line = {
            "path": self.path, "authorization": self.headers.get("Authorization"), "review": review,
        }
        with open(log, "a") as out:
            out.write(json.dumps(line) + "\n")
        user = review["spec"].get("user", "")
        review["status"] = ANSWERS.get(user, {"allowed": False, "reason": "not mine"})
        self.answer(200, b"nonsense" if user == "broken" else json.dumps(review).encode())


serve(Hook, port_file)
