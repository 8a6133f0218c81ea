"""`torchx run --secret`: what it takes, what of it is shown, and what is not."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from torchx.cli.cmd_run import torchx_run_args_from_json
from torchx.util.redaction import MASK, forget

from .conftest import Call, runs

CANARY = "canary-7f3a9b2c"


def test_the_job_has_the_value_and_nobody_else(torchx: Call, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every role gets the value; output and record have only the reference."""
    monkeypatch.setenv("MY_KEY", CANARY)
    (project / "key").write_text(CANARY + "\n")
    secrets = ("MY_KEY", "A=env:MY_KEY", f"B=cmd:cat {project}/key", "C=file:key")
    options = [f"--secret={secret}" for secret in secrets]
    check = f'for v in "$MY_KEY" "$A" "$B" "$C"; do test "$(printf %s "$v" | rev)" = {CANARY[::-1]} || exit 9; done'
    page = torchx("run", "--dryrun", *options, "utils.sh", check)
    ran = torchx("run", "--wait", *options, "utils.sh", check)
    assert ran.code == 0, ran.err
    described = torchx("describe", "@last")
    as_json = torchx("describe", "@last", "--json")
    for outcome in (page, described, as_json, torchx("list", "--json"), torchx("status", "@last", "--json")):
        assert outcome.code == 0
        assert CANARY not in outcome.out + outcome.err
    for outcome in (page, described):
        assert "MY_KEY=env:MY_KEY" in outcome.out
        assert f"B=cmd:cat {project}/key" in outcome.out
    assert json.loads(as_json.out)["app"]["roles"][0]["env"]["A"] == {"secret": "env:MY_KEY"}
    found = subprocess.run(
        ["grep", "-rl", CANARY, os.environ["TORCHX_HOME"]], capture_output=True, text=True, check=False
    )
    assert found.stdout == ""


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("HF_TOKEN", "secret `HF_TOKEN`: the variable `HF_TOKEN` is not set here"),
        ("HF_TOKEN=hunter2", "`--secret` takes no value of `HF_TOKEN`: other users see command lines"),
        ("HF_TOKEN=", "`--secret` takes no value of `HF_TOKEN`"),
        ("HF_TOKEN=hunter2:x", "`--secret` of `HF_TOKEN`: the reference of a Secret has an unknown kind"),
        ("9A=env:X", "`--secret`: the text before `=` is not a valid variable name"),
        ("K=k8s:hf/token", "`local_cwd` cannot take secret `K` from `k8s:hf/token`"),
        ("K=cmd:echo hunter2x; exit 4", "failed with exit code 4"),
    ],
)
def test_what_it_does_not_take(torchx: Call, project: Path, option: str, said: str) -> None:
    """One error line and a hint; a value on the command line is not repeated, and nothing is launched."""
    outcome = torchx("run", "--secret", option, "utils.echo")
    assert outcome.code in (2, 5)
    (line,) = [line for line in outcome.error_lines() if "torchx: error: " in line]
    assert said in line
    assert outcome.hint()
    if not option.startswith("K=cmd"):  # a command is shown; what it prints is not
        assert "hunter2" not in outcome.err
    assert runs(torchx) == []


def test_the_config_file_asks_for_them(torchx: Call, project: Path) -> None:
    """`[cli:run] secret` has a secret per line; `[secrets]` has the references."""
    (project / ".torchxconfig").write_text("[cli:run]\nsecret = A\n  B=cmd:echo b\n[secrets]\nA = cmd:echo a\n")
    assert torchx("configure", "--trust").code == 0
    assert torchx("run", "--wait", "--secret", "C=cmd:echo c", "utils.sh", 'test "$A$B$C" = abc').code == 0


def test_from_json(torchx: Call) -> None:
    """The JSON of `--stdin` has a key for secrets."""
    args = torchx_run_args_from_json({"component_name": "c", "scheduler": "s", "secrets": ["A=cmd:x"]})
    assert args.secrets == ["A=cmd:x"]


@pytest.mark.parametrize("elsewhere", [False, True], ids=["same process", "another shell"])
def test_what_the_program_prints_of_it_is_masked(
    torchx: Call, project: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    """Values are masked in logs, causes and JSON; another shell runs no commands for that."""
    monkeypatch.setenv("MY_KEY", CANARY)
    monkeypatch.setenv("HF_TOKEN", f"{CANARY}-by-name")
    (project / "key").write_text(f"{CANARY}-in-file\n")
    options = ["--secret", "A=env:MY_KEY", "--secret", f"B=file:{project}/key"]
    script = 'echo "out $A $B $HF_TOKEN"; echo "RuntimeError: bad key $A, $B or $HF_TOKEN" >&2; exit 3'
    env = ["--env", f"HF_TOKEN={CANARY}-by-name"]
    ran = torchx("run", "--wait", "--log", *options, "utils.sh", *env, "--", script)
    assert ran.code == 1
    assert "bad key" in ran.err
    outcomes = [ran]
    for argv in (
        ["log", "@last"],
        ["log", "--json", "@last"],
        ["log", "--no-prefix", "--raw", "--streams=stderr", "@last"],
        ["log", "--tail", "1", "@last"],
        ["status", "@last"],
        ["status", "--json", "@last"],
        ["list"],
        ["list", "--json"],
        ["describe", "--json", "@last"],
    ):
        if elsewhere:
            forget()
        outcomes.append(torchx(*argv))
        assert outcomes[-1].code in (0, 1), argv
        assert CANARY not in outcomes[-1].out + outcomes[-1].err, argv
    assert f"sh/0 out {MASK} {MASK} {MASK}" in outcomes[1].out
    assert f"bad key {MASK}, {MASK} or {MASK}" in outcomes[5].out
    assert CANARY not in ran.out + ran.err
    database = b"".join(path.read_bytes() for path in Path(os.environ["TORCHX_HOME"]).glob("runs.db*"))
    assert CANARY.encode() not in database
