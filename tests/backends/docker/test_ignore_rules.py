"""What Docker leaves out by a rule file, we leave out: compared with an engine's builds, and with what its client sends.

The rules are applied by the client, `docker build`, so a socket that takes in what it sends is as good as an engine, and
quick enough for hundreds of generated rule files. A table of telling ones goes through a real engine besides.
"""

from __future__ import annotations

import http.server
import io
import os
import shutil
import socketserver
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from tests.backends.docker import engine
from torchx.errors import SpecError
from torchx.workspace.content import entries
from torchx.workspace.ignore import IgnoreRules

TREE = [
    *("a", "b", "ab", "a.b", "b.py", "x y", "é", "-a", "!a", "#a", "^a", "[a]", "*", "a*b", "a\\b", ".h", "9", "a\nb"),
    *("d/a", "d/b", "d/ab", "d/b.py", "d/.h", "d/d/a", "d/d/b.py", "d/e/a", "d/e/f/a", "d/e/f/b.py"),
    *("e/a", "e/d/a", "e/d/b", ".h.d/a", "a.d/b", "d.a/a", "dd/a", "dd/d/b"),
]
BUILT = {"Dockerfile", ".dockerignore"}  # sent whatever the rules say

TABLE = {
    "star": "*",
    "star and exception": "*\n!a",
    "exception deep inside": "d\n!d/e/f/a",
    "the last one decides": "*\n!d\nd/e\n!d/e/f",
    "exception before its rule": "!d\nd",
    "two stars in front": "**/a",
    "two stars behind": "d/**",
    "two stars between": "d/**/a",
    "two stars and text": "**b.py",
    "slashes around": "/d/",
    "cleaned": "./d/../e",
    "comment and blanks": "# a\n\n  \n  d  \n #a",
    "comment is only at the start": " #a\n\\#a",
    "class": "[a-c]*",
    "negated class": "[^a-d]*",
    "negated class spans directories": "d[^x]a",
    "escapes": "\\*\n\\!a\n\\[a\\]\n\\a*\\b",
    "escape that is a set": "\\d",
    "question mark": "d?a",
    "dot is a dot": "a.b",
    "caret": "^a\n^b*",
    "hidden": ".*",
    "windows line ends": "a\r\nd\r\n",
    "byte order mark": "\ufeffa",
    "seen before an exception": "d\n!d/a\nd",
}


@pytest.fixture(scope="session")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("context")
    for name in TREE:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    (folder / "Dockerfile").write_text("FROM scratch\nCOPY . /\n")
    return folder


@pytest.fixture(scope="session")
def client() -> str:
    """The path of `docker`."""
    try:
        engine.install("docker", "docker.io")
    except engine.Unavailable as e:
        pytest.skip(str(e))
    return shutil.which("docker") or pytest.skip("there is no docker command")


class _Listener(http.server.BaseHTTPRequestHandler):
    """As much of an engine as `docker build` asks for: it takes the context, and has built it."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(b"")

    def do_GET(self) -> None:
        self._answer(b"OK")

    def do_POST(self) -> None:
        self.server.received = self._body()  # type: ignore[attr-defined]  # put there for the test
        self._answer(b'{"stream":"Successfully built 0123456789ab\\n"}')

    def _body(self) -> bytes:
        data = io.BytesIO()
        while size := int(self.rfile.readline(), 16):
            data.write(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return data.getvalue()

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        for name, value in (("Api-Version", "1.41"), ("Ostype", "linux"), ("Content-Type", "application/json")):
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass

    def address_string(self) -> str:
        return "socket"


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    received = b""


@pytest.fixture(scope="session")
def listener(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[_Server, str]]:
    path = str(tmp_path_factory.mktemp("l") / "s")
    with _Server(path, _Listener) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server, f"unix://{path}"
        server.shutdown()
        thread.join()


def write_rules(context: Path, rules: str) -> None:
    with open(context / ".dockerignore", "w", newline="") as f:
        f.write(rules)


def ours(context: Path) -> set[str]:
    return {entry.path for entry in entries(str(context)) if entry.kind == "file"} - BUILT


def build(client: str, context: Path, host: str, *options: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "DOCKER_BUILDKIT": "0", "DOCKER_CONFIG": str(context.parent / "no-config")}
    argv = [client, *(("-H", host) if host else ()), "build", "-q", *options, str(context)]
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=500)


def sent(client: str, context: Path, listener: tuple[_Server, str]) -> set[str] | None:
    """The files that the client sends; None when it refuses the rules."""
    server, host = listener
    server.received = b""
    done = build(client, context, host)
    if done.returncode:
        assert "ERROR" in done.stderr.upper(), done.stderr
        return None
    with tarfile.open(fileobj=io.BytesIO(server.received)) as tar:
        return {member.name for member in tar if member.isfile()} - BUILT


def not_looked_into(rules: IgnoreRules, path: str) -> bool:
    """Whether the classic client, unlike BuildKit, skips an ignored directory above: it takes an exception for literal."""
    parents = [path[:i] for i, char in enumerate(path) if char == "/"]
    literal = [f"{rule.pattern}/" for rule in rules._exceptions]
    return any(rules.ignores(p) and not any(text.startswith(f"{p}/") for text in literal) for p in parents)


def compare(context: Path, rules: str, theirs: set[str]) -> None:
    kept = ours(context)
    parsed = IgnoreRules.parse(rules)
    assert theirs - kept == set(), "Docker keeps these"
    assert {path for path in kept - theirs if not not_looked_into(parsed, path)} == set(), "Docker leaves these out"


def refused(rules: str) -> str:
    """The first line that we refuse; empty when there is none."""
    for line in rules.split("\n"):
        try:
            IgnoreRules.parse(line)
        except SpecError:
            return line.strip()
    return ""


@pytest.mark.parametrize("rules", TABLE.values(), ids=TABLE)
def test_an_engine_has_the_same_files(client: str, context: Path, tmp_path: Path, rules: str) -> None:
    """The image of `COPY . /` holds just the files that we would bring along."""
    try:
        engine.up()
    except engine.Unavailable as e:
        pytest.skip(str(e))
    write_rules(context, rules)
    kept = ours(context)
    (tmp_path / "id").touch()
    # Without a file the classic builder says that there is nothing to copy.
    write_rules(context, f"{rules}\n!.dockerignore\n!Dockerfile\n")
    done = build(client, context, "", "--iidfile", str(tmp_path / "id"), "--label", "torchx-test=ignore")
    write_rules(context, rules)
    if "no such file" in done.stderr or "no source files" in done.stderr:
        assert kept == set()
        return
    assert done.returncode == 0, done.stderr
    image = (tmp_path / "id").read_text().strip()
    try:
        assert files_in(client, image) - BUILT == kept
    finally:
        subprocess.run([client, "rmi", "-f", image], capture_output=True, check=False)


def files_in(client: str, image: str) -> set[str]:
    saved = subprocess.run([client, "save", image], capture_output=True, check=True).stdout
    found: set[str] = set()
    with tarfile.open(fileobj=io.BytesIO(saved)) as outer:
        for member in outer:
            data = outer.extractfile(member)
            if data is None or not tarfile.is_tarfile(data):
                continue
            data.seek(0)
            with tarfile.open(fileobj=data) as layer:
                found |= {m.name for m in layer if m.isfile()}
    return found


pieces = st.sampled_from(
    [
        *"abdehx.*?/!#^-[]\\9 ",
        "**",
        "**/",
        "/**",
        "a",
        "d",
        "d/",
        "e/",
        "!d/",
        "[a-d]",
        "[^a]",
        ".py",
        "../",
        "./",
        "\\d",
        "dd",
    ]
)
patterns = st.builds("".join, st.lists(pieces, min_size=1, max_size=5))
plain = st.sampled_from(
    ["*", "d", "e", "d/e", "**/a", "!d", "!d/e", "!d/d/a", "!e/d", "d/*", "!**/b.py", "!a", "**", "d/e/f"]
)
rule_files = st.lists(plain | patterns, min_size=1, max_size=5).map("\n".join)


@settings(
    max_examples=int(os.environ.get("TORCHX_EXAMPLES", "300")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(rules=rule_files)
def test_the_client_sends_the_same_files(client: str, context: Path, listener: tuple[_Server, str], rules: str) -> None:
    """Whatever the rules: what `docker build` sends is what we would bring along; what we refuse, it refuses, too."""
    bad = refused(rules)
    if os.path.normpath(bad).endswith("\\"):
        return  # Docker takes it for a dollar sign
    # Docker looks at a pattern only when it has to: an exception after something was left out.
    write_rules(context, rules if not bad else f"*\n{bad}" if bad.startswith("!") else bad)
    theirs = sent(client, context, listener)
    note(f"docker: {sorted(theirs) if theirs is not None else 'refused'}")
    if bad:
        assert theirs is None
    elif theirs is not None:
        compare(context, rules, theirs)
