"""A store beside etcd 3.7.3, for the scripts that ask both the same by etcdctl.

Upstream's programs lie in KUBE_LITE_UPSTREAM or ~/.cache/kube-lite-upstream/bin; ours is `serve` of src/etcd/examples, which is
built unless KUBE_LITE_SERVE names one that is there.
"""
import os, pathlib, socket, subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
UPSTREAM = pathlib.Path(os.environ.get("KUBE_LITE_UPSTREAM", pathlib.Path.home() / ".cache/kube-lite-upstream/bin"))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def serve():
    """The path of ours."""
    if named := os.environ.get("KUBE_LITE_SERVE"):
        return named
    target = os.environ.get("CARGO_TARGET_DIR", os.environ.get("XDG_CACHE_HOME", str(pathlib.Path.home() / ".cache")) + "/kube-lite/target")
    subprocess.run(["cargo", "build", "-q", "--locked", "-p", "etcd", "--example", "serve"], cwd=ROOT, env=os.environ | {"CARGO_TARGET_DIR": target}, check=True)
    return f"{target}/debug/examples/serve"


class Running:
    """A process of its own, with a log."""

    def begin(self, words, log):
        with open(log, "ab") as said:
            self.process = subprocess.Popen(words, stdout=said, stderr=said)

    def stop(self):
        self.process.terminate()
        self.process.wait()


class Store(Running):
    """One that is healthy: `etcd`, or ours by its path. Its data and its log lie in `folder` under its name."""

    def __init__(self, name, folder, program):
        self.name, self.end = name, f"http://127.0.0.1:{free_port()}"
        if program == "etcd":
            peer = f"http://127.0.0.1:{free_port()}"
            words = [UPSTREAM / "etcd", f"--data-dir={folder / name}", f"--listen-client-urls={self.end}", f"--advertise-client-urls={self.end}"]
            words += [f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}"]
        else:
            words = [program, self.end.removeprefix("http://"), folder / name]
        self.begin(words, folder / f"{name}.log")
        try:
            subprocess.run(self.command("endpoint", "health", "--dial-timeout=20s", "--command-timeout=20s"), check=True, capture_output=True)
        except BaseException:
            self.stop()
            raise

    def command(self, *words):
        """What asks it by etcdctl."""
        return [UPSTREAM / "etcdctl", f"--endpoints={self.end}", *words]


class Judge:
    """Counts checks, and says each."""

    def __init__(self):
        self.passed = self.failed = 0

    def __call__(self, name, holds, said=""):
        print(f"{'ok  ' if holds else 'FAIL'} {name}" + ("" if holds else f"\n{said}"), flush=True)
        self.passed, self.failed = self.passed + bool(holds), self.failed + (not holds)

    def finish(self):
        """The last line and the status of the script."""
        print(f"{self.passed} passed, {self.failed} failed")
        return self.failed > 0
