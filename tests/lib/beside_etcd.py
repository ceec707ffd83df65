"""A store and etcd 3.7.3, for the scripts that compare their answers to etcdctl.

Upstream's programs are in KUBE_LITE_UPSTREAM or ~/.cache/kube-lite-upstream/bin. kube-lite's is
`serve` of src/etcd/examples, which is built unless KUBE_LITE_SERVE names it.
"""

import os, pathlib, socket, subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
UPSTREAM = pathlib.Path(
    os.environ.get("KUBE_LITE_UPSTREAM", pathlib.Path.home() / ".cache/kube-lite-upstream/bin")
)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def certificates(folder):
    """Makes `folder` with a CA and the certificates of a server on 127.0.0.1 and of a client, in
    the layout that `serve` of src/etcd/examples reads."""
    folder.mkdir()
    new = ["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    run = lambda words: subprocess.run(words, cwd=folder, check=True, capture_output=True)
    run([*new, "-x509", "-days=2", "-subj=/CN=ca", "-keyout=ca.key", "-out=ca.pem"])
    for name in ("server", "client"):
        (folder / "extensions").write_text(
            f"subjectAltName=IP:127.0.0.1\nextendedKeyUsage={name}Auth\n"
        )
        run([*new, f"-subj=/CN={name}", f"-keyout={name}.key", f"-out={name}.csr"])
        run([
            "openssl", "x509", "-req", f"-in={name}.csr", "-CA=ca.pem", "-CAkey=ca.key",
            "-CAcreateserial", "-days=2", "-extfile=extensions", f"-out={name}.pem",
        ])
    return folder


def serve():
    """The path of `serve`."""
    if named := os.environ.get("KUBE_LITE_SERVE"):
        return named
    target = os.environ.get(
        "CARGO_TARGET_DIR",
        os.environ.get("XDG_CACHE_HOME", str(pathlib.Path.home() / ".cache")) + "/kube-lite/target",
    )
    subprocess.run(
        ["cargo", "build", "-q", "--locked", "-p", "etcd", "--example", "serve"], cwd=ROOT,
        env=os.environ | {"CARGO_TARGET_DIR": target}, check=True,
    )
    return f"{target}/debug/examples/serve"


class Running:
    """A process with a log."""

    def begin(self, words, log):
        with open(log, "ab") as output:
            self.process = subprocess.Popen(words, stdout=output, stderr=output)

    def stop(self):
        self.process.terminate()
        self.process.wait()


class Store(Running):
    """Starts a server and waits until it is healthy: `etcd`, or `serve` by its path. Its data and
    its log are in `folder`, named after it.

    With a folder of `certificates` it serves TLS; `etcdctl` is the client program."""

    def __init__(self, name, folder, program, certificates=None, etcdctl=None):
        self.name, self.certificates, self.etcdctl = (
            name, certificates, etcdctl or UPSTREAM / "etcdctl",
        )
        self.end = f"{'https' if certificates else 'http'}://127.0.0.1:{free_port()}"
        if program == "etcd":
            peer = f"http://127.0.0.1:{free_port()}"
            words = [
                UPSTREAM / "etcd", f"--data-dir={folder / name}",
                f"--listen-client-urls={self.end}", f"--advertise-client-urls={self.end}",
            ]
            words += [
                f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=default={peer}",
            ]
            if certificates:
                words += [
                    "--client-cert-auth", f"--trusted-ca-file={certificates}/ca.pem",
                    f"--cert-file={certificates}/server.pem",
                    f"--key-file={certificates}/server.key",
                ]
        else:
            words = [program, self.end.split("//")[1], folder / name] + (
                ["0", "default", certificates] if certificates else []
            )
        self.begin(words, folder / f"{name}.log")
        try:
            subprocess.run(
                self.command("endpoint", "health", "--dial-timeout=20s", "--command-timeout=20s"),
                check=True, capture_output=True,
            )
        except BaseException:
            self.stop()
            raise

    def command(self, *words):
        """The etcdctl command for this server."""
        keys = [
            f"--cacert={self.certificates}/ca.pem", f"--cert={self.certificates}/client.pem",
            f"--key={self.certificates}/client.key",
        ]
        return [
            self.etcdctl, f"--endpoints={self.end}", *(keys if self.certificates else []), *words,
        ]


class Judge:
    """Counts checks, and prints each."""

    def __init__(self):
        self.passed = self.failed = 0

    def __call__(self, name, holds, output=""):
        print(f"ok   {name}" if holds else f"FAIL {name}\n{output}", flush=True)
        self.passed, self.failed = self.passed + bool(holds), self.failed + (not holds)

    def finish(self):
        """Prints the last line and returns the exit status of the script."""
        print(f"{self.passed} passed, {self.failed} failed")
        return self.failed > 0
