"""The checks of `torchx doctor` for this machine."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.runner.memory_backend import MemoryScheduler
from torchx.errors import ConfigError
from torchx.runner import Runner, get_runner
from torchx.runner.doctor import here, online
from torchx.runs.schema import VERSION
from torchx.schedulers.api import Scheduler
from torchx.schedulers.kit.findings import BAD, GOOD, TODO, UNKNOWN, WITHIN_S, Check, Finding
from torchx.settings import torchx_home


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Current and home directory, empty."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", "/bin/bash")
    return tmp_path


def doctor() -> list[Finding]:
    with get_runner() as runner:
        return runner.doctor()


def of(what: str) -> list[Finding]:
    return [f for f in doctor() if f.what == what]


def test_a_machine_with_which_nothing_is_wrong(home: Path) -> None:
    """No finding is bad, and nothing is written."""
    assert [f.what for f in doctor() if f.verdict == GOOD] == [
        "packages",
        "schedulers",
        "config",
        "disk",
        "record of runs",
    ]
    assert not Path(torchx_home("runs.db")).exists()


CONFIGS = {
    "unknown option": ("[slurm]\npartitoin = gpu\n", "did you mean `partition`?"),
    "of another scheduler": ("[local_cwd]\nqueue = gpu\n", "`torchx runopts local_cwd`"),
    "no section": ("partition = gpu\n", ""),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_config_files(home: Path, case: str) -> None:
    """An unknown key is bad, and so is a file that cannot be read."""
    text, fix = CONFIGS[case]
    (home / ".torchxconfig").write_text(text)
    bad = [f for f in doctor() if f.verdict == BAD]
    assert {f.what for f in bad} <= {"config", "packages"}
    assert any(".torchxconfig" in f.said and fix in f.fix for f in bad), bad


def test_a_config_file_that_is_good(home: Path) -> None:
    """It is named."""
    (home / ".torchxconfig").write_text(
        "[slurm]\npartition = gpu\n[cli:run]\nscheduler = slurm\n[notify]\nvia = none\n"
    )
    (found,) = of("config")
    assert (found.verdict, ".torchxconfig" in found.said) == (GOOD, True)


def test_a_package_that_the_config_needs(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fix installs it."""
    monkeypatch.setitem(here._EXTRAS, "aws", "no_such_module")
    (home / ".torchxconfig").write_text("[aws_batch]\nqueue = q\n")
    (bad,) = [f for f in of("packages") if f.verdict == BAD]
    assert bad.fix.startswith("`pip install ")
    assert "boto3" in bad.fix


def test_a_package_that_is_there(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Extras that are installed are listed, and a config file that needs one of them is no problem."""
    monkeypatch.setattr(here, "_EXTRAS", {"aws": "json", "ui": "no_such_module"})
    (home / ".torchxconfig").write_text("[aws_batch]\nqueue = q\n[slurm]\npartition = gpu\n")
    there, missing = of("packages")
    assert (there.verdict, there.said) == (GOOD, "installed: aws")
    assert (missing.verdict, missing.said) == (TODO, "not installed: ui")
    assert "pip install" in missing.fix


def test_schedulers_that_are_here(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program, a file or a variable shows that a scheduler can be reached from here."""
    monkeypatch.setattr(
        here, "_SIGNS", {"slurm": ("sh",), "lsf": ("no_such_program",), "aws_batch": ("~/.aws/config",)}
    )
    (found,) = of("schedulers")
    assert "also here: slurm; `torchx doctor -s slurm` checks them" in found.said
    (home / ".aws").mkdir()
    (home / ".aws" / "config").write_text("")
    (found,) = of("schedulers")
    assert "`torchx doctor -s slurm -s aws_batch`" in found.said


def test_a_scheduler_that_cannot_be_loaded(home: Path) -> None:
    """Its own error is the finding; the sections of the others are checked nevertheless."""

    def broken(session_name: str, **_: Any) -> Scheduler[Any]:
        raise ConfigError("there is no cluster", hint="name one")

    def memory(session_name: str, **_: Any) -> Scheduler[Any]:
        return MemoryScheduler(session_name)

    (home / ".torchxconfig").write_text("[broken]\nqueue = q\n[memory]\nqueu = q\n")
    with Runner("t", {"broken": broken, "memory": memory}) as runner:
        found = [f for f in runner.doctor() if f.what == "config"]
    (good, *bad) = found
    assert (good.verdict, len(bad)) == (GOOD, 2)
    assert {f.verdict for f in bad} == {BAD}
    assert sorted("no cluster" in f.said and f.fix == "name one" for f in bad) == [False, True]
    assert any("`queu`" in f.said and ".torchxconfig:4" in f.said for f in bad)


def test_a_disk_that_is_full(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Bad below 64 MiB, and without free inodes; unknown below 1 GiB."""
    found = [_space(monkeypatch, tmp_path, mib) for mib in (10, 500, 5000)]
    assert [f.verdict for f in found] == [BAD, UNKNOWN, GOOD]
    assert "`du -sh " in found[0].fix
    assert _space(monkeypatch, tmp_path, 5000, files=0).verdict == BAD


def _space(monkeypatch: pytest.MonkeyPatch, place: Path, mib: int, files: int = 100) -> Finding:
    from types import SimpleNamespace

    answer = SimpleNamespace(f_frsize=1 << 20, f_bavail=mib, f_files=100, f_favail=files)
    monkeypatch.setattr(os, "statvfs", lambda _: answer)
    return here._disk(str(place))


def test_a_home_that_cannot_be_written_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Bad, because no run will be on record."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    found = here._disk(str(tmp_path / "not" / "there"))
    assert (found.verdict, "TORCHX_HOME" in found.fix) == (BAD, True)


def record(path: Path) -> list[str]:
    return [f.verdict for f in here._record(str(path))]


def test_the_record(home: Path) -> None:
    """Good with its number of runs; bad if damaged or of a newer torchx; a file set aside is named."""
    with get_runner() as runner:
        runner.run_component("utils.echo", [], "local_cwd")
    path = Path(torchx_home("runs.db"))
    (found,) = here._record(str(path))
    assert (found.verdict, found.said.startswith("1 runs in ")) == (GOOD, True)

    odd = home / os.fsdecode(b"caf\xe9 50%")  # not UTF-8
    odd.write_bytes(path.read_bytes())
    assert record(odd) == [GOOD]
    other = home / "other" / "runs.db"
    other.parent.mkdir()
    for content in (b"no database" * 500, b""):
        other.write_bytes(content)
        assert record(other) == [BAD]
    other.unlink()
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE runs (a)")
        db.execute("PRAGMA user_version = 9999")
    (newer,) = here._record(str(other))
    assert (newer.verdict, newer.fix) == (BAD, "upgrade this torchx: until then, it works without runs on record")
    aside = Path(f"{other}.newer-20261123T000000-1")
    aside.write_text("")
    (doubt, _) = here._record(str(other))
    assert (doubt.verdict, doubt.fix) == (UNKNOWN, "`torchx list` takes it back")
    aside.unlink()
    aside = Path(f"{other}.damaged-20261123T000000-1")
    for suffix in ("", "-wal", "-shm", "-journal"):  # its companions go with it
        Path(f"{aside}{suffix}").write_text("")
    assert record(other) == [UNKNOWN, BAD]
    other.unlink()
    (doubt, found) = here._record(str(other))
    assert (doubt.fix, found.verdict) == (f"if its runs are not needed: `rm {aside}`", GOOD)
    assert "will be created by the first run" in found.said


def test_how_a_record_is_mended(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next command sets a damaged file aside; for a locked file, no such fix is suggested."""
    assert here._LOCKED_S < WITHIN_S, "else nobody would learn that it is locked"
    monkeypatch.setattr(here, "_LOCKED_S", 0.0)
    path = home / "other.db"
    path.write_bytes(b"no database" * 500)
    (damaged,) = here._record(str(path))
    assert (damaged.verdict, damaged.fix) == (BAD, "`torchx list` sets it aside, and begins a new one")
    path.unlink()
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE runs (a)")
        db.execute("BEGIN EXCLUSIVE")
        (locked,) = here._record(str(path))
    assert (locked.verdict, locked.fix) == (UNKNOWN, "")
    assert "cannot be read: database is locked" in locked.said


def test_a_record_without_its_tables(home: Path) -> None:
    """It is certain that the file is unusable, though SQLite reports that as it reports a lock."""
    path = home / "other.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {VERSION}")
    (found,) = here._record(str(path))
    assert (found.verdict, found.fix) == (BAD, "`torchx list` sets it aside, and begins a new one")
    assert "no such table" in found.said


@pytest.mark.parametrize(
    ("shell", "said", "fix"),
    [
        ("", "SHELL is not set", ""),
        ("/bin/tcsh", "torchx has no completion for `tcsh`", ""),
        ("/usr/bin/fish", "not set up", "`echo 'torchx completion fish | source' >> ~/.config/fish/config.fish`"),
        ("/bin/zsh", "not set up", """`echo 'eval "$(torchx completion zsh)"' >> ~/.zshrc`"""),
    ],
)
def test_completion_of_each_shell(home: Path, shell: str, said: str, fix: str) -> None:
    """The line is one that this shell understands, in its own file; for others there is no fix."""
    found = here._completion({"SHELL": shell})
    assert isinstance(found, Finding)
    assert (found.verdict, found.fix, said in found.said) == (TODO if fix else UNKNOWN, fix, True)


def test_completion(home: Path) -> None:
    """After the fix was appended to the file, the check finds it."""
    (found,) = of("completion")
    assert (found.verdict, found.fix) == (TODO, """`echo 'eval "$(torchx completion bash)"' >> ~/.bashrc`""")
    (home / ".bashrc").write_text('eval "$(torchx completion bash)"\n')
    assert [f.verdict for f in of("completion")] == [GOOD]


def test_who_does_not_answer_in_time() -> None:
    """A check that hangs, or fails with an unexpected error, has the verdict unknown."""
    import threading

    never = threading.Event()

    def hang() -> Finding:
        never.wait()
        raise AssertionError

    def fail() -> Finding:
        raise ZeroDivisionError("why")

    found = online.ask([Check("a", hang), Check("b", fail), Check("c", lambda: Finding(GOOD, "c", "x"))], 0.2)
    never.set()
    assert [f.verdict for f in found] == [UNKNOWN, UNKNOWN, GOOD]
    assert found[0].said == "no answer within 0.2 s"


def test_one_cause_is_told_once() -> None:
    """Of several findings with the same cause only the first is reported, and one that is worse; timeouts all are."""
    down = Finding(UNKNOWN, "a", "no connection", "start it")
    found = online.ask(
        [
            Check("a", lambda: down),
            Check("b", lambda: Finding(BAD, "b", "no connection", "start it")),
            Check("c", lambda: [down]),
        ]
    )
    assert [(f.what, f.verdict) for f in found] == [("a", UNKNOWN), ("b", BAD)]
    silent = [Check(what, lambda: Finding(UNKNOWN, "x", "says nothing")) for what in "ab"]
    assert len(online.ask(silent)) == 2


def test_answers_are_reported_as_they_come() -> None:
    """In the order of the checks, with the names of those without an answer; what is late comes at the end."""
    import threading

    first, never = threading.Event(), threading.Event()
    told: list[tuple[list[str], list[str]]] = []

    def progress(new: Sequence[Finding], waiting: Sequence[str]) -> None:
        told.append(([finding.said for finding in new], [*waiting]))
        if waiting == ["a", "c"]:
            first.set()

    def slow() -> str:
        first.wait()
        return "one"

    def hang() -> str:
        never.wait()
        return "three"

    checks = [Check("a", slow), Check("b", lambda: "two"), Check("c", hang, vital=True)]
    found = online.ask(checks, 1.5, progress)
    never.set()
    assert told[0] == ([], ["a", "b", "c"])
    assert [said for said, _ in told if said] == [["one", "two"], ["no answer within 1.5 s"]]
    assert [f.unreachable for f in found] == [False, False, True]


def test_the_time_limit_reaches_the_clients_of_a_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client gives up before the limit of its checks, so that the finding says what it could not reach."""
    from torchx.schedulers.kubernetes.doctor import HastyApi
    from torchx.schedulers.kubernetes_scheduler import KubernetesScheduler

    limits: list[float | None] = []
    made = HastyApi.__init__

    def make(self: HastyApi, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        limits.append(self._timeout_s)

    monkeypatch.setattr(HastyApi, "__init__", make)
    monkeypatch.setattr(KubernetesScheduler, "_given_client", None, raising=False)
    monkeypatch.setattr(online, "ask", lambda checks, within_s, progress: [])
    with get_runner() as runner:
        runner.doctor("kubernetes")
        runner.doctor("kubernetes", within_s=60)
    assert limits == [13.5, 54]
