"""Workspaces in an object store: run by test_s3.py in an environment of its own, with a server of its own. Prints JSON."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any


def refusal(action: Callable[[], object]) -> list[str]:
    """Class and text of what is raised; empty when nothing is."""
    try:
        action()
    except Exception as e:
        return [type(e).__name__, str(e)]
    return []


def bucket(folder: str, big: bytes) -> tuple[Any, Any]:
    """A server with a filled bucket `code`, and a client of it; the environment leads to it."""
    import boto3  # only that environment has these two, and pytest looks for doctests in this file everywhere
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    os.environ.update(
        AWS_ENDPOINT_URL=f"http://{host}:{port}",
        AWS_ACCESS_KEY_ID="test",
        AWS_SECRET_ACCESS_KEY="test",
        AWS_DEFAULT_REGION="us-east-1",
        TORCHX_HOME=tempfile.mkdtemp(dir=folder),
    )
    s3 = boto3.client("s3")
    s3.create_bucket(Bucket="code")
    for key, body in {
        "ws/.torchxignore": b"**/*.pyc\ndata\n!data/keep",
        "ws/train.py": b"train",
        "ws/lib/a.py": b"a",
        "ws/lib/a.pyc": b"junk",
        "ws/data/big": b"x",
        "ws/data/keep": b"keep",
        "ws/empty/": b"",
        "ws/odd name,='$(id)'": b"odd",
        "ws/big.bin": big,
        "wsx/neighbour": b"of a name that begins as ours",
        "bad/../../etc/passwd": b"root",
    }.items():
        s3.put_object(Bucket="code", Key=key, Body=body)
    return server, s3


def code_of_pods(folder: str, s3: Any) -> dict[str, object]:
    """A workspace goes into the bucket for the pods of a job, which fetch it as they do there: by a real shell."""
    import subprocess

    from torchx.schedulers.kubernetes.shipped_code import plan, upload
    from torchx.specs import Workspace

    def objects() -> list[tuple[str, str]]:
        found = s3.list_objects_v2(Bucket="code", Prefix="pods/").get("Contents") or ()
        return [(one["Key"], str(one["LastModified"])) for one in found]

    source, place, volume = (tempfile.mkdtemp(dir=folder) for _ in range(3))
    with open(f"{source}/train.py", "w") as f:
        f.write("print('fetched')")
    with open(f"{source}/noise", "wb") as noise:
        noise.write(os.urandom(12 << 20))
    code = plan(Workspace({source: ""}), "s3://code/pods")
    before = objects()
    upload(code)
    first = objects()
    for name, text in {**code.as_object({})["stringData"], "url": upload(code)}.items():
        with open(f"{volume}/{name}", "w") as f:
            f.write(text)
    argv = ["sh", f"{volume}/start.sh", sys.executable, "train.py"]
    done = subprocess.run(argv, cwd=place, capture_output=True, text=True, check=False)
    with open(f"{source}/noise", "rb") as a, open(f"{place}/noise", "rb") as b:
        same = a.read() == b.read()
    return {
        "before": before,
        "keys": [key for key, _ in first],
        "hash": code.hash,
        "sent once": first == objects(),
        "output": done.stdout + done.stderr,
        "same": same,
        "no such bucket": refusal(lambda: upload(plan(Workspace({source: ""}), "s3://no-such-bucket/x"))),
    }


def main() -> None:
    """Each answer under the name that the test knows."""
    big = os.urandom(12 << 20)
    server, s3 = bucket(sys.argv[1], big)

    from torchx.specs import Role, Workspace
    from torchx.workspace.content import content_hash, entries
    from torchx.workspace.dir_workspace import DirWorkspaceMixin

    target = tempfile.mkdtemp(dir=sys.argv[1])
    lib = tempfile.mkdtemp(dir=sys.argv[1])
    with open(os.path.join(lib, "l.py"), "w") as f:
        f.write("local")
    role = Role("r", "base", entrypoint="x", workspace=Workspace({"s3://code/ws": "", lib: "third"}))
    DirWorkspaceMixin().build_workspaces([role], {"job_dir": f"{target}/job"})
    with open(f"{target}/job/big.bin", "rb") as made:
        same = made.read() == big
    kinds = [(e.path, e.kind) for e in entries("s3://code/ws")]
    again = content_hash(entries("s3://code/ws/")) == content_hash(entries("s3://code/ws"))
    s3.put_object(Bucket="code", Key="ws/lib/a.py", Body=b"b")
    answers = {
        "kinds": kinds,
        "job": sorted(os.path.relpath(os.path.join(d, f), role.image) for d, _, fs in os.walk(role.image) for f in fs),
        "big file is the same": same,
        "same hash again": again,
        "a file": [e.path for e in entries("s3://code/ws/train.py")],
        "no such bucket": refusal(lambda: entries("s3://no-such-bucket/x")),
        "no such prefix": refusal(lambda: entries("s3://code/nothing")),
        "way out": refusal(lambda: entries("s3://code/bad")),
    }
    answers["code of pods"] = code_of_pods(sys.argv[1], s3)
    server.stop()
    answers["server is gone"] = refusal(lambda: entries("s3://code/other"))
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
