"""An issuer of tokens, with openssl for its keys.

issuer.py serve CERT KEY PORT-PIPE FOLDER LOG
    serves the files of FOLDER over TLS; writes every requested path as a line of LOG, and answers
    a posted TokenReview from FOLDER/reviews.json: users by token
issuer.py keys ID=KEY...
    prints the public keys as a JWK set
issuer.py token KEY ID ALGORITHM CLAIMS
    prints a token; exp is in an hour unless the claims set it, null omits a claim
"""

import base64, json, os, re, subprocess, sys, time
import listener


def openssl(*arguments, stdin=b""):
    return subprocess.run(
        ["openssl", *arguments], input=stdin, stdout=subprocess.PIPE, check=True
    ).stdout


def b64(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def jwk(identifier, key):
    public = openssl("pkey", "-in", key, "-pubout", "-outform", "DER")
    if (
        b"RSA" in openssl("pkey", "-in", key, "-noout", "-text_pub").split(b"\n")[0]
        or len(public) > 140
    ):
        modulus = openssl("rsa", "-in", key, "-noout", "-modulus").decode().strip().split("=")[1]
        return {"kty": "RSA", "kid": identifier, "n": b64(bytes.fromhex(modulus)), "e": "AQAB"}
    size = 32 if len(public) < 100 else 48
    point = public[-2 * size :]
    return {
        "kty": "EC", "kid": identifier, "crv": {32: "P-256", 48: "P-384"}[size],
        "x": b64(point[:size]), "y": b64(point[size:]),
    }


def sign(key, algorithm, message):
    arguments = ["dgst", "-sha" + algorithm[2:], "-sign", key]
    if algorithm.startswith("PS"):
        arguments += ["-sigopt", "rsa_padding_mode:pss", "-sigopt", "rsa_pss_saltlen:-1"]
    signature = openssl(*arguments, stdin=message)
    if algorithm.startswith("ES"):
        # Converts two DER integers to two numbers of fixed size.
        size, numbers, rest = {"256": 32, "384": 48}[algorithm[2:]], b"", signature[2:]
        for _ in range(2):
            length = rest[1]
            numbers += int.from_bytes(rest[2 : 2 + length], "big").to_bytes(size, "big")
            rest = rest[2 + length :]
        signature = numbers
    return signature


def token(key, identifier, algorithm, claims):
    claims = {"exp": int(time.time()) + 3600, **json.loads(claims)}
    claims = {name: value for name, value in claims.items() if value is not None}
    parts = [{"alg": algorithm, "kid": identifier}, claims]
    message = ".".join(b64(json.dumps(part).encode()) for part in parts)
    return message + "." + b64(sign(key, algorithm, message.encode()))


def serve(cert, key, port_file, folder, log):
    class Issuer(listener.Handler):
        def note(self, line):
            with open(log, "a") as out:
                out.write(line + "\n")

        def do_GET(self):
            self.note(self.path)
            if self.path.startswith("/moved/"):
                self.answer(302, location=self.path[len("/moved") :])
                return
            path = os.path.join(folder, re.sub(r"[^A-Za-z0-9._-]", "_", self.path.strip("/")))
            try:
                with open(path, "rb") as file:
                    self.answer(200, file.read())
            except OSError:
                self.answer(404, b"no such file")

        def do_POST(self):
            review = json.loads(self.body())
            self.note(
                "%s %s %s"
                % (self.path, review["apiVersion"], json.dumps(review["spec"], sort_keys=True))
            )
            with open(os.path.join(folder, "reviews.json")) as file:
                user = json.load(file).get(review["spec"]["token"])
            status = (
                {"authenticated": True, "user": user}
                if user
                else {"authenticated": False, "error": "who is that"}
            )
            self.answer(
                200,
                json.dumps(
                    {"apiVersion": review["apiVersion"], "kind": "TokenReview", "status": status}
                ).encode(),
            )

    listener.serve(Issuer, port_file, cert=cert, key=key)


what, *arguments = sys.argv[1:]
if what == "serve":
    serve(*arguments)
elif what == "keys":
    print(json.dumps({"keys": [jwk(*pair.split("=", 1)) for pair in arguments]}))
else:
    print(token(*arguments))
