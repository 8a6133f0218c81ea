"""The server behind the page: who may ask, what it answers, and that nothing of it is left."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import torchx.ui
from tests.ui.conftest import PATIENCE_S, Page
from torchx.supervisor import proctree
from torchx.tracker.backend.fsspec import create

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

STATIC = Path(torchx.ui.__file__).parent / "static"
Pages = Callable[..., Page]
Run = Callable[..., str]


def test_a_stranger_is_refused(pages: Pages) -> None:
    """A request without the token, with another host name, or from another site gets no data."""
    page = pages()
    assert page.ask("/api/settings").json()["allowed"] == []
    assert page.ask("/api/settings", Authorization="").status == 401
    assert page.ask("/api/settings", Authorization="Bearer x").status == 401
    assert page.ask("/api/settings", Authorization="Bearer \xe9").status == 401
    for host in ("evil.example", f"evil.example:{page.port}", "127.0.0.1.evil.example", "[::1", ""):
        assert page.ask("/api/settings", Host=host or "x").status == 403, host
        assert page.ask("/", Host=host or "x").status == 403, host
    assert page.ask("/api/settings", Host=f"localhost:{page.port}").status == 200
    assert page.ask("/api/settings", Host="localhost:8080").status == 200  # a port that ssh forwards
    assert page.ask("/api/settings", Origin="http://evil.example").status == 403
    assert page.ask("/api/settings", Origin="null").status == 403
    assert page.ask("/api/settings", Origin=f"http://127.0.0.1:{page.port}").status == 200


@pytest.fixture
def opened(pages: Pages, tmp_path: Path) -> Callable[[], tuple[Page, str]]:
    """Starts a page that opens a browser; returns it and the address that the browser was started with."""
    browser, told = tmp_path / "browser", tmp_path / "told"
    browser.write_text(f'#!/bin/sh\necho "$@" >> {told}\n')
    browser.chmod(0o755)

    def start() -> tuple[Page, str]:
        os.mkfifo(told)
        page = pages(BROWSER=str(browser), DISPLAY=":0")
        return page, told.read_text().strip()

    return start


def test_a_browser_is_started_without_the_token(opened: Callable[[], tuple[Page, str]]) -> None:
    """Its arguments, which other users can read, have a code, which is exchanged for the token once."""
    page, address = opened()
    assert page.token not in address
    before, _, code = address.partition("#code=")
    assert (before, len(code)) == (f"http://127.0.0.1:{page.port}/", 32)
    right = f"Code {code}"
    for wrong in ("", "Code ", "Code x", f"Bearer {code}", f"Code {page.token}"):
        assert page.ask("/api/token", Authorization=wrong).status == 401, wrong
    assert page.ask("/api/token", Authorization=right, Origin="http://evil.example").status == 403
    assert page.ask("/api/token", Authorization=right, Host="evil.example").status == 403
    assert page.ask("/api/settings", Authorization=right).status == 401
    answer = page.ask("/api/token", Authorization=right)
    assert (answer.status, answer.body.decode()) == (200, page.token)
    for used in (right, "", "Code "):
        assert page.ask("/api/token", Authorization=used).status == 401, used


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a socket to another user")
@pytest.mark.parametrize("header", [{}, {"X-Forwarded-For": "127.0.0.1"}])
def test_the_code_is_good_for_this_user_alone(opened: Callable[[], tuple[Page, str]], header: dict[str, str]) -> None:
    """Somebody else who reads the browser's arguments first gets nothing, and the browser is still signed in."""
    page, address = opened()
    code = f"Code {address.partition('#code=')[2]}"
    stranger = http.client.HTTPConnection("127.0.0.1", page.port, timeout=PATIENCE_S)
    with contextlib.closing(stranger):
        stranger.connect()
        os.fchown(stranger.sock.fileno(), 65534, 65534)
        stranger.request("GET", "/api/token", headers={"Authorization": code, **header})
        assert stranger.getresponse().status == 401
    assert page.ask("/api/token", Authorization=code).body.decode() == page.token


def test_who_sent_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel says which user's process has the other end of a connection; one that is gone is nobody's."""
    from torchx.ui.guard import _is_ours

    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        scope = {"client": client.getsockname(), "server": server.getsockname()}
        assert _is_ours(scope)
        assert not _is_ours({**scope, "client": ("127.0.0.1", 1)})
        if os.geteuid():
            monkeypatch.setattr(os, "geteuid", lambda: 4_000_000_000)
        else:
            os.fchown(client.fileno(), 65534, 65534)
        assert not _is_ours(scope)


def test_it_listens_on_loopback_alone(pages: Pages) -> None:
    """The port is not reachable from the network."""
    page = pages()
    port = f"{page.port:04X}"
    with open("/proc/net/tcp", encoding="ascii") as f:
        listening = [line.split()[1] for line in f if line.split()[3] == "0A" and line.split()[1].endswith(f":{port}")]
    assert listening == [f"0100007F:{port}"]


def test_what_the_page_may_do_is_said_in_each_answer(pages: Pages) -> None:
    """Each response, also a refusal, has a policy that allows only our own files."""
    page = pages()
    answers = [
        page.ask("/"),
        page.ask("/run?handle=x"),
        page.ask("/app.js"),
        page.ask("/api/settings", Authorization=""),
    ]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert "server" not in answer.headers
    assert [a.headers["content-type"].partition(";")[0] for a in answers[:3]] == [
        "text/html",
        "text/html",
        "text/javascript",
    ]
    for path in ("/../server.py", "/%2e%2e/server.py", "/static/", "/nothing", "/__init__.py"):
        assert page.ask(path).status == 404, path


def test_no_text_is_read_as_html() -> None:
    """The scripts make elements and text nodes; nothing is written as HTML, nothing is inline, nothing comes from elsewhere.

    The name of SVG is an address that nobody fetches.
    """
    html = (STATIC / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|\sstyle=|https?://", html)
    for script in STATIC.glob("*.js"):
        found = re.search(
            r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(|new Function|https?://(?!www\.w3\.org/2000/svg\")|setAttribute\(\"style",
            script.read_text(),
        )
        assert not found, (script.name, found)


def test_a_change_reaches_the_page(pages: Pages, run: Run) -> None:
    """First come all runs, then each change, including deleted runs."""
    first = run("exit 3", "--wait")
    page = pages()
    documents = page.stream("/api/events")
    rows = next(documents)["rows"]
    assert [(row["handle"], row["state"]) for row in rows] == [(first, "FAILED")]
    assert "exit code 3" in rows[0]["msg"]
    second = run("true", "--wait")
    seen: dict[str, Any] = {}
    while seen.get(second) != "SUCCEEDED":
        seen.update({row["handle"]: row["state"] for row in next(documents)["rows"]})
    assert first not in seen
    subprocess.run([sys.executable, "-m", "torchx", "delete", first], env=page.env, check=True, capture_output=True)
    _until(lambda: {"handle": first, "gone": True} in next(documents)["rows"])
    documents.close()


def test_a_run(pages: Pages, run: Run) -> None:
    """The document has status, cause and definition; an unknown job is 404 with a sentence."""
    handle = run("echo no data in /data >&2; exit 3", "--wait")
    page = pages()
    found = page.ask(f"/api/run?handle={quote(handle)}").json()
    assert found["status"]["state"] == "FAILED"
    assert "no data in /data" in found["status"]["cause"]["error"]["summary"]
    [replica] = found["status"]["roles"][0]["replicas"]
    assert replica["started_at"] <= replica["ended_at"]
    assert found["app"]["roles"][0]["entrypoint"] == "sh"
    assert found["argv"][1:4] == ["run", "-s", "local_cwd"]
    missing = page.ask("/api/run?handle=local_cwd://torchx/none")
    assert (missing.status, "none" in missing.json()["error"]) == (404, True)
    assert page.ask("/api/run").status == 400


def test_a_chain_of_pieces(pages: Pages, run: Run) -> None:
    """The document has what it used of its total, in the words of `torchx status`."""
    chain = run('touch "$TORCHX_PROGRESS"; sleep 60', "--wait", "--total", "4s", "--piece", "2s")
    ask = pages().ask
    assert re.fullmatch(
        r"[4-9]\.\d s of 4\.0 s used by [2-9] pieces", ask(f"/api/run?handle={quote(chain)}").json()["total"]
    )
    assert ask(f"/api/run?handle={quote(run('true', '--wait'))}").json()["total"] == ""


def test_what_a_run_uses(pages: Pages, run: Run, home: dict[str, str]) -> None:
    """The samples are those of `torchx metrics --json`; an unknown run is 404."""
    handle = run("true", "--wait")
    folder = Path(home["TORCHX_HOME"], "local", "torchx", handle.rpartition("/")[2], "sh", "0")
    sample = '{"t":1000.0,"a":0,"cpu":1.5,"mem":4096,"gpu":[]}'
    (folder / "metrics.jsonl").write_text(f'{{"memory_limit":8192,"cpus":2}}\n{sample}\n')
    page = pages()
    [replica] = page.ask(f"/api/metrics?handle={quote(handle)}").json()["replicas"]
    assert (replica["memory_peak"], replica["memory_limit"], replica["samples"][0]["cpu"]) == (4096, 8192, 1.5)
    assert page.ask("/api/metrics?handle=nobody").status == 404


def test_what_runs_have_used(pages: Pages, run: Run) -> None:
    """The sums are those of `torchx usage --json`; a group that does not exist is 400, the page itself is there."""
    run("true", "--wait")
    page = pages()
    for by in ("day", "user"):
        found = page.ask(f"/api/usage?by={by}&days=30").json()
        assert [(group["runs"], group["unseen"]) for group in found["groups"]] == [(1, 0)]
        assert found["total"]["cpu_hours"] > 0
    assert page.ask("/api/usage?by=moon&days=30").status == 400
    assert page.ask("/api/usage?by=day&days=1e9").status == 400
    assert page.ask("/usage.js").status == page.ask("/usage").status == 200


def test_a_sweep(pages: Pages, home: dict[str, str], tmp_path: Path) -> None:
    """The document has a letter for the state of each task, and the causes; a task is a run with a log."""
    argv = [sys.executable, "-m", "torchx", "sweep", "-s", "local_cwd", "--grid", "seed=0..2", "utils.sh", "--"]
    script = "echo seed {seed}; [ {seed} != 1 ] || { echo bad seed >&2; exit 4; }"
    subprocess.run([*argv, script], env=home, cwd=tmp_path, check=True, capture_output=True)
    page = pages()
    documents = page.stream("/api/events")
    rows: list[dict[str, Any]] = []
    _until(lambda: any(row["state"] == "FAILED" for row in rows) or rows.extend(next(documents)["rows"]))
    documents.close()
    handle = rows[0]["handle"]
    tasks = page.ask(f"/api/run?handle={quote(handle)}").json()["tasks"]
    assert tasks == {"states": "SFS", "failures": [{"class": "error", "cause": "exit code 4: bad seed", "tasks": [1]}]}
    assert page.ask(f"/api/run?handle={quote(handle)}/1").json()["status"]["state"] == "FAILED"
    lines = [line["line"] for batch in page.stream(f"/api/log?handle={quote(handle)}/2") for line in batch["lines"]]
    assert lines == ["seed 2"]


def test_what_came_out_of_a_sweep(pages: Pages, home: dict[str, str], tmp_path: Path) -> None:
    """Returns values of tasks, and their results if there is a tracker, or why not; empty for other jobs."""
    write = "from torchx.tracker import app_run_from_env as a; import sys; a().add_metadata(loss=float(sys.argv[1]))"
    (tmp_path / "train.py").write_text(write)
    argv = [sys.executable, "-m", "torchx", "sweep", "-s", "local_cwd", "--grid", "lr=0.1,0.2", "utils.python"]
    (tmp_path / ".torchxconfig").write_text(f"[torchx:tracker]\nfsspec = {tmp_path}/tracked\n")
    words = ["--script", "train.py", "--", "{lr}"]
    done = subprocess.run([*argv, *words], env=home, cwd=tmp_path, check=True, capture_output=True, text=True)
    handle = done.stdout.strip()
    subprocess.run([sys.executable, "-m", "torchx", "wait", handle], env=home, check=True, capture_output=True)
    page = pages()
    tasks = page.ask(f"/api/results?handle={quote(handle)}").json()["tasks"]
    assert tasks[1] == {"task": 1, "values": {"lr": "0.2"}, "metadata": {"loss": 0.2}}
    assert page.ask(f"/api/results?handle={quote(handle)}/1").json()["tasks"] == []
    (tmp_path / ".torchxconfig").write_text(f"[torchx:tracker]\nfsspec = nowhere://{tmp_path}\n")
    answer = page.ask(f"/api/results?handle={quote(handle)}").json()
    assert (answer["tasks"][1]["values"], answer["tasks"][1]["metadata"]) == ({"lr": "0.2"}, {})
    assert "the tracker cannot be read: " in answer["error"] and "nowhere" in answer["error"]
    (tmp_path / ".torchxconfig").unlink()
    answer = page.ask(f"/api/results?handle={quote(handle)}").json()
    assert (answer["tasks"][1]["values"], answer["error"]) == ({"lr": "0.2"}, None)


def test_a_number_that_json_lacks(pages: Pages, home: dict[str, str], tmp_path: Path) -> None:
    """NaN and infinity, which no browser can parse, are null."""
    (tmp_path / ".torchxconfig").write_text(f"[torchx:tracker]\nfsspec = {tmp_path}/tracked\n")
    argv = [sys.executable, "-m", "torchx", "sweep", "-s", "local_cwd", "--grid", "lr=0.1", "utils.sh", "true {lr}"]
    done = subprocess.run(argv, env=home, cwd=tmp_path, check=True, capture_output=True, text=True)
    handle = done.stdout.strip()
    values: dict[str, object] = {"loss": float("nan"), "worst": [float("-inf")], "n": 1}
    create(f"{tmp_path}/tracked").add_metadata(f"{handle}/0", **values)
    answer = pages().ask(f"/api/results?handle={quote(handle)}").json()
    assert answer["tasks"][0]["metadata"] == {"loss": None, "worst": [None], "n": 1}


def test_secrets_are_masked(pages: Pages, home: dict[str, str], tmp_path: Path) -> None:
    """The document of a run has no secret."""
    words = ["run", "-s", "local_cwd", "--wait", "utils.sh", "--env", "HF_TOKEN=hf_canary", "true"]
    subprocess.run([sys.executable, "-m", "torchx", *words], env=home, cwd=tmp_path, check=True, capture_output=True)
    page = pages()
    [row] = next(page.stream("/api/events"))["rows"]
    body = page.ask(f"/api/run?handle={quote(row['handle'])}").body
    assert b"HF_TOKEN" in body and b"hf_canary" not in body


@pytest.mark.parametrize("part", ["", "/sh", "/sh/0"])
def test_a_log_that_prints_a_secret(pages: Pages, run: Run, home: dict[str, str], part: str) -> None:
    """The value of a `--secret` is masked, whatever its variable is called here and in the job."""
    home["FOO_X"] = "canary-of-a-licence"
    handle = run("echo it is $LICENCE.; echo $LICENCE >&2; echo end", "--wait", "--secret", "LICENCE=env:FOO_X")
    page = pages()
    batches = list(page.stream(f"/api/log?handle={quote(handle + part)}"))
    assert sorted(line["line"] for batch in batches for line in batch["lines"]) == [
        "********",
        "end",
        "it is ********.",
    ]
    assert b"canary" not in page.ask(f"/api/run?handle={quote(handle)}").body


def test_what_the_server_knows_is_masked_in_every_answer() -> None:
    """A second line of defence, whoever forgot to mask it: in documents, and in streams of them."""
    from torchx.ui.pages import _json, _stream
    from torchx.util.redaction import learn

    learn('canary "sesame"')
    document = {"line": 'it is canary "sesame".'}

    async def documents() -> AsyncIterator[dict[str, Any]]:
        yield document
        yield document

    async def sent() -> list[Any]:
        return [chunk async for chunk in _stream(documents()).body_iterator]  # type: ignore[attr-defined]  # it has

    masked = b'{"line":"it is ********."}'
    assert [chunk.replace(b": ", b":") for chunk in asyncio.run(sent())] == [masked + b"\n"] * 2
    assert bytes(_json(document).body).replace(b": ", b":") == masked


def test_a_log_is_followed(pages: Pages, run: Run, tmp_path: Path) -> None:
    """Existing lines come at once, new lines follow, and the stream ends with the job."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    handle = run(f"echo one; read -r line < {gate}; echo $line")
    page = pages()
    batches = page.stream(f"/api/log?handle={quote(handle)}")
    assert next(batches)["lines"] == [{"role": "sh", "replica": 0, "line": "one"}]
    gate.write_text("<script>alert(1)</script>\n")
    rest = [line for batch in batches for line in batch["lines"]]
    assert [line["line"] for line in rest] == ["<script>alert(1)</script>"]


def test_a_log_that_cannot_be_had_says_why(pages: Pages) -> None:
    """The last document is the error of `torchx log`."""
    page = pages()
    [batch] = page.stream("/api/log?handle=local_cwd://torchx/none")
    assert "none" in batch["lines"][0]["error"]
    assert page.ask("/api/log").status == 400


def test_a_handle_is_no_option(pages: Pages) -> None:
    """Whatever a handle looks like, it is the name of a job."""
    page = pages()
    for handle in ("--help", "-f", "--json"):
        [batch] = page.stream(f"/api/log?handle={handle}")
        assert f"no run on record is called `{handle}`" in batch["lines"][0]["error"]
        assert page.ask(f"/api/run?handle={handle}").status == 404
    assert "is not an app handle" in page.ask("/api/log?handle=a%00b").json()["error"]


def test_who_stops_listening_leaves_no_process(pages: Pages, run: Run) -> None:
    """`torchx log` ends when the page closes the stream."""
    handle = run("echo one; sleep 1000")
    page = pages()
    batches = page.stream(f"/api/log?handle={quote(handle)}")
    next(batches)
    below = proctree.descendants(proctree.snapshot(), {page.process.pid})[1:]
    assert below
    batches.close()
    _until(lambda: not any(proctree.start_ticks(p.pid) == p.ticks for p in below))
    subprocess.run([sys.executable, "-m", "torchx", "cancel", handle], env=page.env, check=True, capture_output=True)


def test_only_what_was_allowed_is_done(pages: Pages, run: Run) -> None:
    """By default the page only reads; `--allow cancel` permits cancelling, by POST only."""
    handle = run("sleep 1000")
    path = f"/api/do/cancel?handle={quote(handle)}"
    refused = pages().ask(path, method="POST")
    assert (refused.status, "--allow cancel" in refused.json()["error"]) == (403, True)
    page = pages("--allow", "cancel")
    assert page.ask("/api/settings").json()["allowed"] == ["cancel"]
    assert page.ask(path).status == 405
    assert page.ask(path, method="POST", Authorization="").status == 401
    assert page.ask(path, method="POST", Origin="http://evil.example").status == 403
    assert page.ask(path, method="POST").status == 200
    assert page.ask(path.replace("cancel", "rerun"), method="POST").status == 403
    documents = page.stream("/api/events")
    _until(lambda: next(documents)["rows"][0]["state"] == "CANCELLED")
    documents.close()


def test_a_run_is_launched_again(pages: Pages, run: Run) -> None:
    """The response is the handle of the new job, which is on record."""
    handle = run("exit 3", "--wait")
    page = pages("--allow", "rerun")
    again = page.ask(f"/api/do/rerun?handle={quote(handle)}", method="POST").json()["handle"]
    assert again != handle
    documents = page.stream("/api/events")
    seen: dict[str, Any] = {}
    while seen.get(again) != "FAILED":
        seen.update({row["handle"]: row["state"] for row in next(documents)["rows"]})
    documents.close()
    missing = page.ask("/api/do/rerun?handle=local_cwd://torchx/none", method="POST")
    assert (missing.status, "not on record" in missing.json()["error"]) == (404, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_of_it(pages: Pages, run: Run, number: int) -> None:
    """Ctrl-C with an open page exits without error, closes the port, and leaves no process; the job continues."""
    handle = run("echo one; sleep 1000")
    page = pages()
    batches = page.stream(f"/api/log?handle={quote(handle)}")
    next(batches)
    below = proctree.descendants(proctree.snapshot(), {page.process.pid})
    page.process.send_signal(number)
    _, stderr = page.process.communicate(timeout=PATIENCE_S)
    assert (page.process.returncode, stderr) == (0 if number == signal.SIGINT else 128 + number, "")
    _until(lambda: not any(proctree.start_ticks(p.pid) == p.ticks for p in below))
    batches.close()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", page.port)) == errno.ECONNREFUSED
    status = [sys.executable, "-m", "torchx", "status", "--json", handle]
    shown = subprocess.run(status, env=page.env, check=False, capture_output=True, text=True).stdout
    assert '"RUNNING"' in shown
    subprocess.run([sys.executable, "-m", "torchx", "cancel", handle], env=page.env, check=True, capture_output=True)


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (["--port", "99999"], 2, "`99999` is not a valid port"),
        (["--port", "http"], 2, "`http` is not a valid port"),
        (["--allow", "cancel,fly"], 2, "`fly` is not an action"),
    ],
)
def test_bad_arguments(home: dict[str, str], args: list[str], code: int, text: str) -> None:
    """The error is one line, with a documented exit code."""
    done = subprocess.run(
        [sys.executable, "-m", "torchx", "ui", *args], env=home, capture_output=True, text=True, check=False
    )
    assert done.returncode == code
    assert text in done.stderr and "Traceback" not in done.stderr


def test_a_port_in_use(home: dict[str, str]) -> None:
    """The error names the port, and the hint what to do."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        argv = [sys.executable, "-m", "torchx", "ui", "--no-open", "--port", str(port)]
        done = subprocess.run(argv, env=home, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"port {port} of 127.0.0.1" in done.stderr and "Traceback" not in done.stderr


def test_without_its_packages(home: dict[str, str], tmp_path: Path) -> None:
    """The error names the missing package, and the command that installs it."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['uvicorn'] = None\n")
    env = {**home, "PYTHONPATH": f"{tmp_path}{os.pathsep}{home.get('PYTHONPATH', '')}"}
    done = subprocess.run(
        [sys.executable, "-m", "torchx", "ui", "--no-open"], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 6
    assert "`uvicorn`" in done.stderr and "Traceback" not in done.stderr


def test_a_backend_without_its_packages(pages: Pages, tmp_path: Path) -> None:
    """The answer names the package to install."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nfor name in ('docker', 'requests', 'urllib3', 'kubernetes'): sys.modules[name] = None\n"
    )
    page = pages(PYTHONPATH=f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    for handle, name in (("local_docker://foreign/a", "docker"), ("kubernetes://torchx/ns:a", "kubernetes")):
        answer = page.ask(f"/api/metrics?handle={handle}")
        assert (answer.status, f"`{name}`" in answer.json()["error"]) == (502, True)
        assert page.ask(f"/api/run?handle={handle}").status == 404


def _until(condition: Callable[[], Any]) -> None:
    import time

    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
