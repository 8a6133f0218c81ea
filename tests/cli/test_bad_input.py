"""Bad input: one line that names the value, a hint, an exit code; never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchx.component_reader.finder import ComponentNotFoundException

from .conftest import Call, Outcome

NO_COMPONENT = ComponentNotFoundException.exit_code

COMPONENTS = '''
import torchx.specs as specs

def raises(x: int = 1) -> specs.AppDef:
    """boom"""
    raise RuntimeError("boom from the component")

def wrong(x: int = 1) -> specs.AppDef:
    """wrong"""
    return {"a": 1}

def no_roles() -> specs.AppDef:
    """empty"""
    return specs.AppDef("x", [])

def untyped(x) -> specs.AppDef:
    """untyped"""
    return specs.AppDef("x", [])

def ends(how: str) -> specs.AppDef:
    """ends the program"""
    raise {"exit": SystemExit("bye"), "generator": GeneratorExit(), "base": BaseException("base")}[how]
'''


@pytest.fixture
def here(project: Path) -> Path:
    """The current directory, with components that are broken in several ways."""
    (project / "mine.py").write_text(COMPONENTS)
    (project / "syntax.py").write_text("def f(:\n")
    (project / "imports.py").write_text("import no_such_module\n")
    (project / "leaves.py").write_text("raise SystemExit('bye')\n")
    return project


def assert_one_line(outcome: Outcome, code: int, *parts: str, hint: str = "") -> None:
    """Checks for one error line with all parts, one hint, empty stdout, and the exit code."""
    assert outcome.code == code, outcome.err
    assert outcome.out == ""
    assert len(outcome.error_lines()) == 1, outcome.err
    assert outcome.error_lines()[0].startswith("torchx: error: ")
    for part in parts:
        assert part in outcome.error_lines()[0]
    assert outcome.hint(), "there is a hint"
    assert hint in outcome.hint()
    assert "Traceback" not in outcome.err


Case = tuple[list[str], int, str, str]

UNKNOWN: dict[str, Case] = {
    "scheduler": (["run", "-s", "local_cdw", "utils.echo"], 3, "`local_cdw`", "`local_cwd`"),
    "scheduler of runopts": (["runopts", "local_cdw"], 3, "`local_cdw`", "`local_cwd`"),
    "scheduler of list": (["list", "-s", "local_cdw"], 3, "`local_cdw`", "`local_cwd`"),
    "scheduler of configure": (["configure", "-s", "local_cdw"], 3, "`local_cdw`", "`local_cwd`"),
    "scheduler of a handle": (["status", "local_cdw://torchx/x"], 3, "`local_cdw`", "`local_cwd`"),
    "component": (["run", "utils.ecko"], NO_COMPONENT, "`utils.ecko`", "`utils.echo`"),
    "component file": (["run", "mien.py:wrong"], NO_COMPONENT, "`mien.py`", "`mine.py`"),
    "component function": (["run", "mine.py:wrnog"], NO_COMPONENT, "`wrnog`", "`wrong`"),
    "component to print": (["builtins", "--print", "utils.ecko"], NO_COMPONENT, "`utils.ecko`", "`utils.echo`"),
    "argument": (["run", "utils.echo", "--mgs", "hi"], 2, "`--mgs`", "`--msg`"),
    "positional argument": (["run", "utils.echo", "hi"], 2, "`hi`", "--msg"),
    "cfg key": (["run", "-cfg", "prepend_cdw=1", "utils.echo"], 2, "`prepend_cdw`", "`prepend_cwd`"),
    "profile": (["run", "--profile", "nope", "utils.echo"], 2, "`nope`", "@nope"),
    "handle": (["status", "local_cwd://torchx/nope"], 3, "`local_cwd://torchx/nope`", "torchx list"),
    "handle of log": (["log", "local_cwd://torchx/nope"], 3, "`local_cwd://torchx/nope`", "torchx list"),
    "handle of cancel": (["cancel", "local_cwd://torchx/nope"], 3, "`local_cwd://torchx/nope`", "torchx list"),
    "handle of delete": (["delete", "local_cwd://torchx/nope"], 3, "`local_cwd://torchx/nope`", "torchx list"),
    "handle of describe": (["describe", "local_cwd://torchx/nope"], 3, "`local_cwd://torchx/nope`", "torchx list"),
    "short reference": (["status", "nope"], 3, "`nope`", "torchx list"),
    "newest of none": (["status", "@last"], 3, "no run on record", "torchx list"),
    "state": (["list", "--state", "runing"], 2, "`runing`", "`RUNNING`"),
}

MALFORMED: dict[str, Case] = {
    "handle without session": (["status", "local_cwd://nope"], 2, "`local_cwd://nope`", "local_cwd://SESSION/nope"),
    "handle with one slash": (["cancel", "local_cwd:/x"], 2, "`local_cwd:/x`", "SCHEDULER://"),
    "empty handle": (["status", ""], 2, "empty", "@last"),
    "handle with blanks": (["describe", "local_cwd://torchx/a b"], 2, "`local_cwd://torchx/a b`", "scheduler://"),
    "replicas": (["log", "local_cwd://torchx/x/y/1-"], 2, "`1-`", "REPLICA_IDS"),
    "replica range": (["log", "local_cwd://torchx/x/y/3-1"], 2, "`3-1`", "REPLICA_IDS"),
    "too many parts": (["log", "local_cwd://torchx/x/y/1/2"], 2, "local_cwd://torchx/x/y/1/2", "REPLICA_IDS"),
    "log without scheduler": (["log", "://torchx/x"], 2, "`://torchx/x`", "scheduler://session/app_id"),
    "-j": (["run", "dist.ddp", "-j", "2y2", "--script", "mine.py"], 2, "2y2", "-j 2x8"),
    "-j of none": (["run", "dist.ddp", "-j", "0x2", "--script", "mine.py"], 2, "0x2", "1 or more"),
    "mount": (["run", "utils.sh", "--mounts", "type=bnd,src=/a,dst=/b", "--", "ls"], 2, "`bnd`", "`bind`"),
    "cfg literal": (["run", "-cfg", "garbage", "utils.echo"], 2, "`garbage`", "a=1"),
    "cfg value": (["run", "-cfg", "prepend_cwd=maybe", "utils.echo"], 2, "`maybe`", "true"),
    "cfg number": (["run", "-cfg", "cancel_grace_s=x", "utils.echo"], 2, "`x`", ""),
    "int argument": (["run", "utils.echo", "--num_replicas", "x"], 2, "`x`", "int"),
    "regex": (["log", "@last", "--regex", "("], 2, "`--regex`: `(` is not", "backslash"),
    "rank": (["log", "@last", "--rank", "x"], 2, "`--rank`: `x` is not the number of a rank", "torchx log --help"),
    "since": (["log", "@last", "--since", "yesterday"], 2, "`yesterday`", "10m"),
    "since of list": (["list", "--since", "soon"], 2, "`soon`", "10m"),
    "limit": (["list", "--limit", "-1x"], 2, "--limit", ""),
    "long limit": (["list", "--limit", "1" * 5000], 2, "is not a number of runs", "0 shows all"),
    "long port": (["ui", "--port", "1" * 5000], 2, "is not a valid port: 0 to 65535", ""),
    "tail": (["log", "@last", "--tail", "x"], 2, "`x`", "follows"),
    "no component": (["run"], 2, "missing component name", "torchx builtins"),
    "cfg without scheduler": (["list", "-cfg", "a=b"], 2, "`-cfg` needs `-s`", "-s"),
}

BROKEN: dict[str, Case] = {
    "raises": (["run", "mine.py:raises"], 2, "RuntimeError: boom from the component", "DEBUG"),
    "ends the program": (["run", "mine.py:ends", "--how", "exit"], 2, "raised SystemExit: bye", ""),
    "ends a generator": (["run", "mine.py:ends", "--how", "generator"], 2, "raised GeneratorExit", ""),
    "raises what is no Exception": (["run", "mine.py:ends", "--how", "base"], 2, "raised BaseException: base", ""),
    "ends the import": (["run", "leaves.py:f"], 2, "SystemExit: bye", ""),
    "wrong type": (["run", "mine.py:wrong"], 2, "`dict`, not an AppDef", "AppDef"),
    "no roles": (["run", "mine.py:no_roles"], 2, "no roles", ""),
    "no type": (["run", "mine.py:untyped"], 2, "mine.py:16", ""),
    "syntax error": (["run", "syntax.py:f"], 2, "syntax.py", ""),
    "import error": (["run", "imports.py:f"], 2, "no_such_module", ""),
    "missing script": (["run", "dist.ddp", "--script", "gone.py"], 2, "`gone.py` does not exist", "torchx looked in"),
    "missing script of utils": (["run", "utils.python", "--script", "gone.py"], 2, "`gone.py`", "torchx looked in"),
    "missing program": (["run", "utils.binary", "--entrypoint", "no-such-program"], 2, "`no-such-program`", ""),
}


@pytest.mark.parametrize(
    ("argv", "code", "part", "hint"),
    [pytest.param(*case, id=name) for cases in (UNKNOWN, MALFORMED, BROKEN) for name, case in cases.items()],
)
def test_refused(torchx: Call, here: Path, argv: list[str], code: int, part: str, hint: str) -> None:
    """The error names the value, and the hint the nearest valid one or the syntax. No job is launched."""
    assert_one_line(torchx(*argv), code, part, hint=hint)
    assert torchx("list").out.count("\n") == 1


@pytest.mark.parametrize(
    ("target", "part", "hint"),
    [
        ("{}/trianer", "`trianer`", "`trainer`"),
        ("{}/trainer/2", "`2`", "0 to 1"),
        ("{}/trainer/0,7-9", "`7`", "0 to 1"),
        ("{}/reader/1", "`1`", "only replica 0"),
    ],
    ids=["role", "replica", "range", "single replica"],
)
def test_unknown_role_or_replica(torchx: Call, paper: Any, target: str, part: str, hint: str) -> None:
    """For a role the hint suggests the nearest name, for a replica the valid numbers; exit code 3."""
    from torchx.specs import AppDef, AppState, Role

    paper.JOBS["job"] = AppDef("job", [Role("trainer", "img", num_replicas=2), Role("reader", "img")])
    paper.STATES["job"] = AppState.RUNNING
    assert_one_line(torchx("log", target.format("paper://torchx/job")), 3, part, hint=hint)


def test_unknown_role_of_status(torchx: Call, paper: Any) -> None:
    """`status --roles` rejects a role that the job does not have."""
    from torchx.specs import AppDef, AppState, Role

    paper.JOBS["job"] = AppDef("job", [Role("trainer", "img")])
    paper.STATES["job"] = AppState.RUNNING
    assert_one_line(torchx("status", "--roles", "trianer", "paper://torchx/job"), 3, "`trianer`", hint="`trainer`")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (b"garbage\n", [".torchxconfig:1", "`garbage`"]),
        (b"[local_cwd]\nprepend_cwd = perhaps\n", [".torchxconfig:2", "`perhaps`"]),
        (b"[cli:run]\nwait = perhaps\n", ["`wait`", "`perhaps`"]),
        (b"\xff\xfe[local_cwd]\n", [".torchxconfig"]),
        (b"[local_cwd]\nlog_dir = /tmp/a\0b\n", [".torchxconfig:2", "NUL"]),
    ],
    ids=["no section", "wrong value", "wrong flag", "no text", "nul"],
)
def test_unreadable_config(torchx: Call, here: Path, text: bytes, parts: list[str]) -> None:
    """The error for a malformed config file names the line."""
    (here / ".torchxconfig").write_bytes(text)
    assert_one_line(torchx("run", "utils.echo"), 2, *parts)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_config_without_permission(torchx: Call, here: Path) -> None:
    """The error for a config file without read permission names the file."""
    (here / ".torchxconfig").write_text("[local_cwd]\n")
    (here / ".torchxconfig").chmod(0)
    assert_one_line(torchx("run", "utils.echo"), 2, ".torchxconfig")


def test_named_config_that_is_missing(torchx: Call, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing file in `TORCHXCONFIG` is an error."""
    monkeypatch.setenv("TORCHXCONFIG", "/no/such/file")
    assert_one_line(torchx("run", "utils.echo"), 2, "`/no/such/file`", hint="TORCHXCONFIG")


def test_unknown_key_of_cli_run(torchx: Call, here: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A typo in `[cli:run]` causes a warning with the line and the nearest key; the command continues."""
    (here / ".torchxconfig").write_text("[cli:run]\nschedulr = local_cwd\n")
    outcome = torchx("run", "--dryrun", "utils.echo")
    assert outcome.code == 0
    assert ".torchxconfig:2: `[cli:run]` has no key `schedulr`, did you mean `scheduler`?" in caplog.text


def test_configure_leaves_a_file_alone(torchx: Call, here: Path) -> None:
    """`configure` replaces a file only with `--force`."""
    (here / ".torchxconfig").write_text("mine\n")
    assert_one_line(torchx("configure"), 2, "exists", hint="--force")
    assert (here / ".torchxconfig").read_text() == "mine\n"


@pytest.mark.parametrize(
    ("text", "part", "hint"),
    [
        ("", "the input is empty", "for example"),
        ("{", "not valid JSON", "for example"),
        ("[1]", "not a JSON object", "for example"),
        ('{"scheduler": "local_cwd"}', "`component_name` is missing", "for example"),
        ('{"scheduler": "local_cwd", "component_name": "utils.echo", "dry_run": true}', "`dry_run`", "`dryrun`"),
        ('{"scheduler": "local_cwd", "component_name": "utils.echo", "wait": "yes"}', "`wait` must be true", ""),
        ('{"scheduler": "local_cdw", "component_name": "utils.echo"}', "`local_cdw`", "`local_cwd`"),
        (
            '{"scheduler": "local_cwd", "component_name": "utils.echo", "scheduler_args": {"prepend_cdw": true}}',
            "`prepend_cdw`",
            "`prepend_cwd`",
        ),
        ('{"scheduler": "local_cwd", "component_name": "utils.echo", "component_args": {"mgs": 1}}', "`mgs`", "`msg`"),
        (
            '{"scheduler": "local_cwd", "component_name": "utils.echo", "component_args_str": [1]}',
            "`component_args_s",
            "",
        ),
        ('{"scheduler": "local_cwd", "component_name": "utils.echo", "after": [null]}', "`after`", ""),
    ],
    ids=[
        *("nothing", "no JSON", "a list", "no component", "unknown key", "wrong type", "scheduler", "cfg", "argument"),
        *("a number as a word", "null as a job"),
    ],
)
def test_stdin(torchx: Call, here: Path, monkeypatch: pytest.MonkeyPatch, text: str, part: str, hint: str) -> None:
    """The JSON of `--stdin` is checked key by key."""
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    outcome = torchx("run", "--stdin")
    assert outcome.code in (2, 3)
    assert_one_line(outcome, outcome.code, part, hint=hint)


HOSTILE = {
    "command substitution": "$(touch hacked)",
    "backticks": "`touch hacked`",
    "semicolon": "; touch hacked",
    "quotes": "'\"",
    "newline": "a\ntouch hacked",
    "escape": "\x1b[31mred\x07",
    "format": "%s%n{0}{x!r}",
    "macro": "${app_id}$$",
    "dots": "../../../../etc/passwd",
    "option": "--help=x",
    "unicode": "é漢\u202e\U0001f600",
    "not utf-8": "\udcff\udcfe",
    "null-like": "\x01\x7f",
    "long": "x" * 5000,
    "glob": "*?[a]",
}
PLACES: dict[str, Callable[[str], list[str]]] = {
    "verb": lambda s: [s],
    "status": lambda s: ["status", s],
    "status of a handle": lambda s: ["status", f"local_cwd://torchx/{s}"],
    "status of a session": lambda s: ["status", f"local_cwd://{s}/x"],
    "log": lambda s: ["log", s],
    "log of a role": lambda s: ["log", f"local_cwd://torchx/x/{s}/0"],
    "log of a replica": lambda s: ["log", f"local_cwd://torchx/x/r/{s}"],
    "log --regex": lambda s: ["log", "@last", "--regex", s],
    "log --since": lambda s: ["log", "@last", "--since", s],
    "cancel": lambda s: ["cancel", s],
    "delete": lambda s: ["delete", f"local_cwd://torchx/{s}"],
    "describe": lambda s: ["describe", f"{s}://torchx/x"],
    "list --name": lambda s: ["list", "--name", s],
    "list --state": lambda s: ["list", "--state", s],
    "list -s": lambda s: ["list", "-s", s],
    "runopts": lambda s: ["runopts", s],
    "builtins": lambda s: ["builtins", "--print", s],
    "configure": lambda s: ["configure", "-p", "-s", s],
    "run -s": lambda s: ["run", "-s", s, "utils.echo"],
    "run -cfg": lambda s: ["run", "--dryrun", "-cfg", s, "utils.echo"],
    "run -cfg value": lambda s: ["run", "--dryrun", "-cfg", f"log_dir={s}", "utils.echo"],
    "run --profile": lambda s: ["run", "--profile", s, "utils.echo"],
    "run --parent_run_id": lambda s: ["run", "--dryrun", "--parent_run_id", s, "utils.echo"],
    "run --workspace": lambda s: ["run", "--dryrun", "--workspace", s, "utils.echo"],
    "component": lambda s: ["run", s],
    "component file": lambda s: ["run", f"{s}.py:f"],
    "component argument": lambda s: ["run", "--dryrun", "utils.echo", "--msg", s],
    "component image": lambda s: ["run", "--dryrun", "utils.echo", "--image", s],
    "component env": lambda s: ["run", "--dryrun", "utils.sh", "--env", f"A={s}", "--", "ls"],
    "component mount": lambda s: ["run", "--dryrun", "utils.sh", "--mounts", s, "--", "ls"],
    "-j": lambda s: ["run", "--dryrun", "dist.ddp", "-j", s, "-m", "x"],
    "completion": lambda s: ["__complete", "fish", "--", "run", "-s", s, s],
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_hostile_strings(torchx: Call, here: Path, place: Callable[[str], list[str]]) -> None:
    """Any text in any argument is used literally or rejected in one line; it is never executed."""
    for name, text in HOSTILE.items():
        outcome = torchx(*place(text))
        assert outcome.code in range(7), f"{name}: {outcome.err}"
        assert "Traceback" not in outcome.err, name
        assert not (here / "hacked").exists(), name
        assert "\x1b" not in outcome.out + outcome.err, name
        if outcome.code:
            assert len(outcome.error_lines()) == 1, f"{name}: {outcome.err}"


@pytest.mark.parametrize("name", [name for name in HOSTILE if name not in ("macro", "not utf-8")])
def test_hostile_argument_reaches_the_job_as_it_is(torchx: Call, here: Path, name: str) -> None:
    """Arguments reach the job without a shell, byte for byte. (Macros are meant to be replaced.)"""
    text = HOSTILE[name]
    assert torchx("run", "--wait", "utils.python", "-c", "import sys; print(sys.argv[1])", "--", text).code == 0
    assert torchx("log", "--no-prefix", "@last").out == text + "\n"
    assert not (here / "hacked").exists()


# -- odd surroundings ----------------------------------------------------------------------------


def test_a_deleted_current_directory(torchx: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says that the current directory was deleted."""
    gone = tmp_path / "gone"
    for argv in (["run", "--dryrun", "-s", "local_cwd", "utils.echo"], ["configure"]):
        gone.mkdir()
        monkeypatch.chdir(gone)
        gone.rmdir()
        assert_one_line(torchx(*argv), 74, "the current directory was deleted", hint="cd ~")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("home", ["relative", "h\udcff"], ids=["relative", "not UTF-8"])
def test_an_odd_home(torchx: Call, here: Path, monkeypatch: pytest.MonkeyPatch, home: str) -> None:
    """With a relative home, or one that is not UTF-8, a job runs and each verb finds it."""
    monkeypatch.setenv("TORCHX_HOME", home if home == "relative" else str(here / home))
    assert torchx("run", "--wait", "-s", "local_cwd", "utils.echo", "--msg", "hi").code == 0
    for verb in ("status", "describe", "log", "delete"):
        outcome = torchx(verb, "@last")
        assert (outcome.code, outcome.err) == (0, ""), verb
    assert (here / home / "runs.db").exists()


@pytest.mark.parametrize(
    "surroundings", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}]
)
def test_an_output_that_knows_ascii_alone(here: Path, surroundings: dict[str, str]) -> None:
    """On an ASCII stdout, pages show `?` for other characters, and JSON escapes them."""
    (here / "odd.py").write_text(
        "import torchx.specs as specs\n\ndef odd() -> specs.AppDef:\n"
        "    return specs.AppDef('x', [specs.Role('r', '', entrypoint='echo', args=['gr\\xfc\\u2603'])])\n"
    )

    def call(*argv: str) -> bytes:
        command = [sys.executable, "-m", "torchx.cli.main", "run", "-s", "local_cwd", "--dryrun", *argv, "odd.py:odd"]
        return subprocess.run(command, env={**os.environ, **surroundings}, capture_output=True, check=True).stdout

    assert b"gr??" in call()
    assert json.loads(call("--json"))["app"]["roles"][0]["args"] == ["gr\xfc\u2603"]


@pytest.mark.parametrize("verb", ["status", "log", "cancel", "metrics"])
@pytest.mark.parametrize(
    "handle",
    [
        *("local_docker://torchx/a", "local_docker://foreign/a", "kubernetes://torchx/ns:a"),
        *("kubernetes://foreign/ns:pod:a", "kubernetes_mcad://foreign/ns:a", "aws_sagemaker://torchx/eu-west-1:a"),
        "aws_batch://torchx/q:12345678-1234-1234-1234-123456789012",
    ],
)
def test_a_backend_without_its_packages(torchx: Call, monkeypatch: pytest.MonkeyPatch, handle: str, verb: str) -> None:
    """None of the optional packages is installed: the error names the one to install, also where another is imported first."""
    for name in ("docker", "requests", "urllib3", "kubernetes", "boto3", "botocore", "yaml"):
        monkeypatch.setitem(sys.modules, name, None)
    outcome = torchx(verb, handle)
    (line,) = outcome.error_lines()
    assert (outcome.code, "which is not installed" in line) == (6, True)
    assert outcome.hint().startswith("pip install ")
