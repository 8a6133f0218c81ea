"""Code in an object store: when it is uploaded, and how a container downloads it."""

from __future__ import annotations

import functools
import io
import json
import os
import subprocess
import sys
import tarfile
import threading
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.schedulers.kubernetes.fake_cluster import Cluster
from tests.schedulers.kubernetes.test_inline_code import GROUPS, KINDS, app, code, run, templates
from tests.schedulers.kubernetes.test_kubernetes_golden import built_in
from torchx.errors import BackendError, ConfigError, MissingDependencyError
from torchx.runner import Runner
from torchx.schedulers.kubernetes import shipped_code
from torchx.schedulers.kubernetes_scheduler import create_scheduler
from torchx.util.redaction import redact

__all__ = ["code"]
BUCKET: dict[str, Any] = {"code": "bucket", "bucket": "tstore://mine/code", "kind": "job"}


class Store(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
    """An object store that signs URLs."""

    protocol = "tstore"
    store: ClassVar[dict] = {}
    pseudo_dirs: ClassVar[list] = [""]
    sent: ClassVar[list] = []
    query = "X-Amz-Signature=0123456789"
    port = 0
    refusal = None

    @classmethod
    def _strip_protocol(cls, path):
        return "/" + path.removeprefix("tstore://").strip("/")

    def put_file(self, lpath, rpath, callback=None, **_):
        if self.refusal:
            raise self.refusal
        data = Path(lpath).read_bytes()
        self.sent.append(rpath)
        self.pipe_file(rpath, data)
        callback.set_size(len(data))
        callback.relative_update(len(data))

    def sign(self, path, expiration=100, **_):
        assert expiration == 7 * 86400
        return f"http://127.0.0.1:{self.port}/{path.lstrip('/')}?{self.query}"


@pytest.fixture
def store():
    """An empty bucket."""
    fsspec.register_implementation("tstore", Store, clobber=True)
    Store.store.clear()
    Store.sent.clear()
    Store.refusal, Store.query = None, "X-Amz-Signature=0123456789"
    return Store


class Handler(BaseHTTPRequestHandler):
    """Serves the bucket; a test can make responses break or fail."""

    faults: ClassVar[list] = []

    def do_GET(self):
        path = self.path.partition("?")[0]
        data = Store.store[path].getvalue() if path in Store.store else b""
        fault = self.faults.pop(0) if self.faults else (200 if data else 404)
        self.send_response(fault or 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[:-10] if fault == 0 else data if fault == 200 else b"")

    def log_message(self, *_):
        pass


@pytest.fixture
def served(store):
    """The bucket over HTTP."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=functools.partial(server.serve_forever, poll_interval=0.01))
    thread.start()
    store.port = server.server_address[1]
    Handler.faults.clear()
    yield store
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("kind", KINDS)
def test_each_container_finds_a_signed_address(code, store, kind):
    """The signed URL is in a Secret that the job owns; the archive is complete, and named after its content."""
    cluster = Cluster(groups=GROUPS)
    scheduler, app_id = run(cluster, code, **{**BUCKET, "kind": kind})
    (path,) = store.sent
    with tarfile.open(fileobj=io.BytesIO(store.store[path].getvalue())) as archive:
        assert {one.name for one in archive.getmembers()} >= {"train.py", "lib/run.sh", "link"}
    (secret,) = cluster.of("secrets")
    assert secret["stringData"]["url"].endswith(f"{path}?{store.query}")
    assert secret["metadata"]["ownerReferences"] and not cluster.of("configmaps")
    for template in templates(cluster, kind):
        (main,) = template["spec"]["containers"]
        assert main["command"] == ["sh", "/torchx-code/start.sh", "python", "train.py", "$$(HOME)"]
        (volume,) = [v for v in template["spec"]["volumes"] if "secret" in v]
        assert volume["secret"]["secretName"] == secret["metadata"]["name"]
        assert {"name": volume["name"], "mountPath": "/torchx-code", "readOnly": True} in main["volumeMounts"]
    scheduler.delete(app_id)
    assert cluster.objects == {}


@pytest.mark.parametrize("kind", KINDS)
def test_the_schemas_agree(code, store, kind):
    """All built-in objects are valid."""
    validate = pytest.importorskip("kubernetes_validate")
    cluster = Cluster(groups=GROUPS)
    run(cluster, code, **{**BUCKET, "kind": kind})
    parts = [part for item in cluster.objects.values() for part in built_in(item)]
    assert {part["kind"] for part in parts} & {"Pod", "Job", "Service", "Secret", "ConfigMap"}
    for part in parts:
        validate.validate(part, "1.37", strict=True)


def test_what_has_not_changed_is_not_sent_again(code, store):
    """An archive is uploaded again if it has changed, or is older than the validity of a signature."""
    run(Cluster(), code, **BUCKET)
    run(Cluster(), code, **BUCKET)
    assert len(store.sent) == 1
    (code / "train.py").write_text("print('ho')\n")
    run(Cluster(), code, **BUCKET)
    assert len(set(store.sent)) == 2
    for file in store.store.values():
        file.modified = datetime.now(timezone.utc) - timedelta(days=8)
    run(Cluster(), code, **BUCKET)
    assert len(store.sent) == 3 and store.sent[2] == store.sent[1]


def test_who_may_write_alone_needs_no_right_to_look(code, store, monkeypatch):
    """Without the right to list, missing objects are forbidden: upload. Times without zone are UTC."""

    def refused(*_):
        raise PermissionError("Forbidden")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "modified", refused)
        run(Cluster(), code, **BUCKET)
    assert len(store.sent) == 1
    (file,) = store.store.values()
    file.modified = file.modified.replace(tzinfo=None)
    run(Cluster(), code, **BUCKET)
    assert len(store.sent) == 1


def test_a_dry_run_sends_nothing(code, store, capsys):
    """It shows the location of the code, without a signature."""
    scheduler = create_scheduler("me")
    with Runner("me", {"kubernetes": lambda *_, **__: scheduler}) as runner:
        info = runner.dryrun(app(), "kubernetes", BUCKET, workspace=str(code))
        assert store.sent == [] and "(signed at the submission) tstore://mine/code/sha256-" in str(info)
        assert "urllib" not in str(info)
        (code / "train.py").write_text("print('later')\n")
        scheduler._given_client = cluster = Cluster()
        with pytest.raises(BackendError, match="has changed since the dry run"):
            runner.schedule(info)
    assert store.sent == [] and cluster.objects == {}


def test_the_same_files_in_another_folder(code, store):
    """They are uploaded from the folder of the last dry run: that of an earlier one may be gone."""
    scheduler = create_scheduler("me", client=Cluster())
    with Runner("me", {"kubernetes": lambda *_, **__: scheduler}) as runner:
        runner.dryrun(app(), "kubernetes", BUCKET, workspace=str(code))
        other = code.rename(code.parent / "other")
        runner.schedule(runner.dryrun(app(), "kubernetes", BUCKET, workspace=str(other)))
    assert len(store.sent) == 1


def test_auto_takes_the_bucket_for_what_is_too_large_for_a_config_map(code, store):
    """Code that fits into a ConfigMap is shipped inline."""
    cluster = Cluster()
    run(cluster, code, **{**BUCKET, "code": "auto"})
    assert store.sent == [] and cluster.of("configmaps")
    (code / "noise").write_bytes(os.urandom(1_100_000))
    cluster = Cluster()
    run(cluster, code, **{**BUCKET, "code": "auto"})
    assert len(store.sent) == 1 and not cluster.of("configmaps")


def test_what_is_said_of_an_upload(code, store, capsys):
    """The size of the upload is shown, except with the option `quiet`."""
    run(Cluster(), code, **BUCKET)
    assert "Uploaded the code to /mine/code/sha256-" in capsys.readouterr().err
    run(Cluster(), code, **BUCKET)
    assert capsys.readouterr().err == ""
    (code / "train.py").write_text("print('ho')\n")
    run(Cluster(), code, **BUCKET, quiet=True)
    assert capsys.readouterr().err == "" and len(store.sent) == 2


def test_what_is_signed_is_shown_nowhere(code, store):
    """Whoever has the address has the code: an answer of the API that quotes it is masked, like all other output."""
    cluster = Cluster()
    run(cluster, code, **BUCKET)
    (secret,) = cluster.of("secrets")
    url = secret["stringData"]["url"]
    assert store.query in url
    for text in (f"refused: {url}", json.dumps({"url": url})):
        assert store.query not in redact(text)


def test_temporary_credentials_are_warned_of(code, store, caplog):
    """URLs that they sign expire with them."""
    store.query = "X-Amz-Security-Token=abc&X-Amz-Signature=def"
    run(Cluster(), code, **BUCKET)
    assert "signed with temporary credentials" in caplog.text


@pytest.mark.parametrize(
    ("cfg", "said"),
    [
        ({"code": "bucket"}, "`code=bucket` needs `bucket`"),
        ({"bucket": "my-bucket"}, "`my-bucket` is not the URL of a location"),
        ({"bucket": "s3://"}, "`s3://` is not the URL"),
        ({"bucket": "file:///tmp/x"}, "is not the URL of a location in an object store"),
        ({"bucket": "s3://key:secret@bucket/x"}, "is not the URL"),
    ],
)
def test_what_cannot_be_a_bucket_is_refused(code, store, cfg, said):
    """The dry run rejects it, with an example in the hint."""
    with pytest.raises(ConfigError, match=said) as e:
        run(Cluster(), code, **cfg)
    assert "s3://my-bucket/code" in e.value.hint


def test_a_bucket_that_refuses(code, store):
    """The error has the message of the bucket, and nothing is created in the cluster."""
    store.refusal = PermissionError("Access Denied")
    cluster = Cluster()
    with pytest.raises(BackendError, match=r"cannot be uploaded to `tstore://mine/code/.*`: Access Denied") as e:
        run(cluster, code, **BUCKET)
    assert "`AWS_ENDPOINT_URL`" in e.value.hint
    assert cluster.objects == {}


def test_a_store_that_signs_nothing(code, store, monkeypatch):
    """A store that cannot sign URLs is an error with a hint."""
    monkeypatch.setattr(Store, "sign", MemoryFileSystem.sign)
    with pytest.raises(BackendError, match="object stores of this kind cannot sign URLs"):
        run(Cluster(), code, **BUCKET)


def test_what_is_not_installed_is_named(code, monkeypatch):
    """The hint has the command that installs it."""
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(MissingDependencyError, match="bucket `s3://b/sha256") as e:
        run(Cluster(), code, code="bucket", bucket="s3://b")
    assert "s3" in e.value.hint


@pytest.mark.parametrize(
    "tools",
    [
        {"python3": sys.executable},
        {"curl": "/usr/bin/curl"},
        {"wget": "/usr/bin/wget"},
        {"curl": "/usr/bin/curl", "python3": "/bin/false"},
    ],
    ids=list,
)
def test_what_a_container_does(code, served, tmp_path, tools):
    """A real shell downloads over HTTP, unpacks over existing files, cleans up and executes the program."""
    if not all(os.access(target, os.X_OK) for target in tools.values()):
        pytest.skip("the machine has no such program")
    cluster = Cluster()
    run(cluster, code, **BUCKET)
    (secret,) = cluster.of("secrets")
    folder, place, path = tmp_path / "torchx-code", tmp_path / "workdir", tmp_path / "bin"
    for new in (folder, place, path):
        new.mkdir()
    for name, text in secret["stringData"].items():
        (folder / name).write_text(text)
    (place / "urllib.py").write_text("raise SystemExit('not that of Python')\n")
    for name in ("cat", "mktemp", "rm", "tar", "gzip"):
        (path / name).symlink_to(f"/bin/{name}")
    for name, target in tools.items():
        (path / name).symlink_to(target)
    argv = ["/bin/sh", f"{folder}/start.sh", "/bin/sh", "-c", 'printf "%s|" "$@"', "sh", "a b", "$HOME", ""]

    def start() -> subprocess.CompletedProcess[str]:
        env = {"PATH": str(path), "PYTHONHOME": sys.base_prefix}
        return subprocess.run(argv, cwd=place, env=env, capture_output=True, text=True, check=False)

    if "curl" not in tools and "python3" in tools:
        Handler.faults[:] = [0]  # broken off
    done = start()
    assert (done.returncode, done.stdout) == (0, "a b|$HOME||"), done.stderr
    assert Handler.faults == [] and os.access(place / "lib" / "run.sh", os.X_OK)
    assert {p.name for p in place.iterdir()} == {".torchxignore", "lib", "link", "train.py", "urllib.py"}
    (served.store[served.sent[0]]).truncate(100)
    done = start()
    assert done.returncode == 1 and f"the code cannot be unpacked into {place}" in done.stderr
    served.store.clear()
    done = start()
    assert done.returncode == 1 and f"the code cannot be fetched from its bucket into {place}" in done.stderr
    assert "wget" in tools or "404" in done.stderr  # GNU's would name the address, too
    assert served.query not in done.stderr
    assert not list(place.glob(".torchx-code*"))


def test_progress_is_shown_on_a_terminal(code, store, monkeypatch):
    """The progress is one line that is updated."""
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stderr", stream)
    plan = shipped_code.plan(app_workspace(code), "tstore://mine/code")
    shipped_code.upload(plan)
    assert "\rPacking the code: " in stream.getvalue() and "Uploaded the code to" in stream.getvalue()


def app_workspace(folder: Path):
    from torchx.specs import Workspace

    return Workspace({str(folder): ""})
