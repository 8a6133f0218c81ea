"""Sentences of SECURITY.md that concern the product as a whole; those about one part are tested beside it."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from pathlib import Path

import pytest

import torchx
from tests.cli.conftest import Call, project
from tests.cli.conftest import torchx as _torchx
from torchx.runner import get_runner
from torchx.runner.inside import ssh
from torchx.supervisor.statefile import ForeignJobError, check_owner

SOURCE = Path(torchx.__file__).parent
CREDENTIALS = {
    "a name": ("HF_TOKEN=c4n4ryname", "c4n4ryname"),
    "the end of a name": ("PGPASSWORD=c4n4ryend", "c4n4ryend"),
    "an option": ("train --db-password c4n4ryoption", "c4n4ryoption"),
    "a URL": ("DSN=postgres://me:c4n4ryurl@host/db", "c4n4ryurl"),
    "a shape": ("X=ghp_c4n4ryc4n4ryc4n4ryc4n4ryc4n4ryc4n4", "ghp_c4n4ry"),
    "a key of AWS": ("X=AKIAC4N4RYC4N4RYC4N4", "AKIAC4N4RY"),
    "a private key": ("X=-----BEGIN RSA PRIVATE KEY-----c4n4ryprivate-----END RSA PRIVATE KEY-----", "c4n4ryprivate"),
}
__all__ = ["project"]
call_torchx = _torchx


@pytest.mark.parametrize(("text", "canary"), CREDENTIALS.values(), ids=CREDENTIALS)
def test_credentials_are_masked(call_torchx: Call, project: Path, text: str, canary: str) -> None:
    """In the environment and in arguments; in all that verbs print, and in all files below the home."""
    name = text.partition("=")[0]
    env = ["--env", f"{text},PLAIN=shown"] if name.isupper() else []
    words = ["utils.sh", *env, "--", f": {text}; exit 3"]
    outcomes = [call_torchx("run", "-s", "local_cwd", *how, *words) for how in (["--dryrun"], ["--wait"])]
    for verb in ("status", "describe", "list", "why"):
        outcomes += [call_torchx(verb, *([] if verb == "list" else ["@last"]), *how) for how in ([], ["--json"])]
    outcomes.append(call_torchx("run", "-s", "local_cwd", "utils.sh", "--no-such-option", text))
    outcomes.append(call_torchx("run", "-s", f"no {text}", "utils.sh"))
    assert (outcomes[0].code, outcomes[1].code) == (0, 1)
    for outcome in outcomes:
        assert canary not in outcome.out + outcome.err
    assert any("********" in outcome.out for outcome in outcomes)
    found = subprocess.run(
        ["grep", "-rl", canary, os.environ["TORCHX_HOME"]], capture_output=True, text=True, check=False
    )
    assert found.stdout == ""


def test_what_runs_in_a_replica_is_shown_as_it_is(call_torchx: Call, project: Path) -> None:
    """`torchx exec` passes on values of secrets and escape sequences, and `Runner.log_lines` returns them."""
    (project / "key").write_text("c4n4ry-of-a-file\n")
    script = "printf '%s\\033[2J\\n' \"$LICENCE\"; read -r _ < gate"
    os.mkfifo(project / "gate")
    started = call_torchx("run", "-s", "local_cwd", "--secret", "LICENCE=file:key", "utils.sh", script)
    handle = started.out.strip()
    done = call_torchx("exec", "-n", handle, "--", "sh", "-c", "printf '%s\\033[2J' $LICENCE")
    assert (done.out, done.err) == ("c4n4ry-of-a-file\033[2J", "")
    (project / "gate").write_text("\n")
    assert call_torchx("wait", handle).code == 0
    assert call_torchx("log", handle).out == "sh/0 ********\033[2J\n"
    with get_runner() as runner:
        assert list(runner.log_lines(handle, "sh")) == ["c4n4ry-of-a-file\033[2J\n"]


def test_a_folder_of_somebody_else_is_no_job(call_torchx: Call, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check that precedes all reading of a local job refuses it."""
    handle = call_torchx("run", "-s", "local_cwd", "--wait", "utils.sh", "true").out.split()[0]
    folder = Path(os.environ["TORCHX_HOME"], "local", "torchx", handle.rpartition("/")[2])
    check_owner(str(folder))
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    with pytest.raises(ForeignJobError, match=f"belongs to user {me}, and you are user {me + 1}"):
        check_owner(str(folder))


def test_verification_follows_the_users_settings_alone() -> None:
    """These are all places that connect without verification, each because a setting of another program says so.

    ``ssh`` does not verify the hosts of ``torchx ssh-config``: their key is new for each connection.
    """
    allowed = {
        "runner/inside/ssh.py": ["StrictHostKeyChecking no"],
        "schedulers/docker/plain_http.py": ["check_hostname = False", "CERT_NONE"],  # no DOCKER_TLS_VERIFY
        "schedulers/kubernetes/api/credentials.py": [
            "CERT_NONE",
            "CERT_NONE",
        ],  # insecure-skip-tls-verify in kubeconfig
    }
    off = re.compile(
        r"StrictHostKeyChecking[ =](?:no|off|accept-new)\b|check_hostname *= *False|CERT_NONE|CERT_OPTIONAL"
        r"|verify *= *False|_create_unverified_context|(?:curl|wget) [^|\n]*(?: -k\b|--insecure|--no-check-certificate)"
    )
    found = {}
    for path in sorted(SOURCE.rglob("*")):
        if path.suffix in (".py", ".sh", ".js"):
            lines = (line.partition("#")[0] for line in path.read_text().splitlines())
            if places := [place for line in lines for place in off.findall(line)]:
                found[str(path.relative_to(SOURCE))] = places
    assert found == allowed


def test_a_login_to_a_replica_opens_no_port(tmp_path: Path) -> None:
    """sshd speaks over its stdin; it accepts the user's public keys alone, and its files are removed with it."""
    programs = tmp_path / "bin"
    programs.mkdir()
    told = tmp_path / "told"
    (programs / "ssh-keygen").write_text("#!/bin/sh\nexit 0\n")
    look = f'echo "$1 $2" >{told}; stat -c %a "$(dirname "$4")" >>{told}; cat "$4" >>{told}; echo "$4" >>{told}'
    (programs / "sshd").write_text(f"#!/bin/sh\n{look}\n")
    for program in programs.iterdir():
        program.chmod(0o755)
    script = Path(ssh.__file__).with_name("sshd.sh")
    env = {"PATH": f"{programs}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    subprocess.run(["sh", script, "ssh-ed25519 AAAA me"], env=env, check=True, stdin=subprocess.DEVNULL)
    how, mode, *config, path = told.read_text().splitlines()
    folder = Path(path).parent
    assert (how, mode) == ("-i -e", "700")
    assert {f"AuthorizedKeysFile {folder}/keys", "PasswordAuthentication no", "KbdInteractiveAuthentication no"} <= {
        *config
    }
    assert not [line for line in config if re.match(r"(?i)(listen|port|include|authorizedkeyscommand)", line)]
    assert not folder.exists()


def test_nobody_else_reaches_a_file_below_the_home(call_torchx: Call, project: Path) -> None:
    """With `umask 000` too, each file or a folder on the way to it is open to its owner alone."""
    home = Path(os.environ["TORCHX_HOME"])
    before = os.umask(0)
    try:
        for words in (
            ["run", "--wait", "-s", "local_cwd", "utils.sh"],
            ["sweep", "-s", "local_cwd", "--grid", "n=0,1", "utils.sh"],
        ):
            assert call_torchx(*words, "echo {n}" if "sweep" in words else "echo").code == 0
        assert call_torchx("wait", "@last").code == 0
    finally:
        os.umask(before)
    files = [path for path in home.rglob("*") if path.is_file()]
    assert len(files) > 5
    for path in files:
        way = [path, *(parent for parent in path.parents if parent.is_relative_to(home))]
        assert any(not stat.S_IMODE(place.stat().st_mode) & 0o077 for place in way), path
