"""What backends share, at its limits: names that just fit, files that just grew, commands that just failed."""

from __future__ import annotations

import copy
import os
import re
import stat
import sys
from collections.abc import Hashable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from torchx.errors import BackendError, CommandError, ConfigError, NotSupportedError, SpecError, TransientError
from torchx.schedulers.kit import files as files_module
from torchx.schedulers.kit.caps import COMMON
from torchx.schedulers.kit.commands import Completed, LocalCommandRunner
from torchx.schedulers.kit.export import bases_of
from torchx.schedulers.kit.files import MAX_GROWN, LocalFiles
from torchx.schedulers.kit.follow import Cursor, Follower, Lines
from torchx.schedulers.kit.logs import LogQuery, Stream, compile_regex, refuse_streams
from torchx.schedulers.kit.manifests import masked, shown_yaml, to_yaml
from torchx.schedulers.kit.names import DNS_LABEL, FILE_NAME, NameRule
from torchx.schedulers.kit.replicas import replicas
from torchx.schedulers.kit.shell import env_words, exports, is_name, quote, read_script
from torchx.schedulers.kit.tasks import only_role
from torchx.specs.api import AppDef, AppDryRunInfo, Role
from torchx.specs.wishes.timeouts import TIMEOUT
from torchx.testing import FakeClock

# -- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "text", "room", "name"),
    [
        (DNS_LABEL, "a" * 63, 0, "a" * 63),
        (DNS_LABEL, "a" * 64, 0, "a" * 63),
        (DNS_LABEL, "a" * 64, 60, "aaa"),
        (DNS_LABEL, "a" * 62 + "-b", 0, "a" * 62),
        (DNS_LABEL, "9-lives", 0, "lives"),
        (DNS_LABEL, "-._a_b.-_", 0, "a-b"),
        (DNS_LABEL, "ÄÖ", 0, "app"),
        (DNS_LABEL, "", 61, "ap"),
        (FILE_NAME, "a" * 181, 0, "a" * 180),
        (FILE_NAME, "9 A/b.c_d-", 0, "9-A-b.c_d"),
        (NameRule(5, "a-z"), "ABC", 0, "app"),
    ],
)
def test_names(rule: NameRule, text: str, room: int, name: str) -> None:
    """Cut where they are too long, and nowhere else; without what may not stand at their ends."""
    assert rule.make(text, room=room) == name


def test_which_names_are_taken_as_they_are() -> None:
    """None that would be changed, and not the empty one, which would become another."""
    assert DNS_LABEL.obeys("app") and DNS_LABEL.obeys("a" * 63)
    assert not any(DNS_LABEL.obeys(name) for name in ("", "a" * 64, "A", "1a", "a-", "a.b"))


# -- files -----------------------------------------------------------------------------------------


def test_reading_a_part(tmp_path: Path) -> None:
    """From the beginning, from an offset, from the end; more than there is: what there is."""
    path = str(tmp_path / "f")
    (tmp_path / "f").write_bytes(b"0123456789")
    read = LocalFiles().read
    assert (read(path), read(path, 4), read(path, 4, 2), read(path, 10), read(path, 99)) == (
        b"0123456789",
        b"456789",
        b"45",
        b"",
        b"",
    )
    assert (read(path, -3), read(path, -10), read(path, -99), read(path, -3, 2)) == (
        b"789",
        b"0123456789",
        b"0123456789",
        b"78",
    )
    assert read(path, 0, 0) == b""
    assert read(str(tmp_path / "none")) is None and read(f"{path}/x") is None
    with pytest.raises(BackendError, match="cannot be read: Is a directory"):
        read(str(tmp_path))


def test_writing_a_file(tmp_path: Path) -> None:
    """Whole, for the user alone, in the place of an older one, and with no draft left; a folder is needed."""
    path = str(tmp_path / "f")
    files = LocalFiles()
    files.write(path, b"old")
    files.write(path, b"x" * 3_000_000)
    assert os.path.getsize(path) == 3_000_000 and stat.S_IMODE(os.stat(path).st_mode) == 0o600
    files.write(path, b"", mode=0o700)
    assert os.path.getsize(path) == 0 and stat.S_IMODE(os.stat(path).st_mode) == 0o700
    assert os.listdir(tmp_path) == ["f"]
    with pytest.raises(BackendError, match="cannot be written: No such file"):
        files.write(str(tmp_path / "none" / "f"), b"")


def test_folders(tmp_path: Path) -> None:
    """Made with those above, for the user alone, quiet when there; removed with all in it, links not followed."""
    files = LocalFiles()
    folder = str(tmp_path / "a" / "b")
    files.make_folder(folder)
    files.make_folder(folder)
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert files.names(str(tmp_path / "a")) == ["b"] and files.names(str(tmp_path / "none")) == []
    files.write(f"{folder}/f", b"x")
    assert files.names(f"{folder}/f") == []
    (tmp_path / "link").symlink_to(folder)
    files.remove(str(tmp_path / "link"))
    assert os.path.exists(f"{folder}/f")
    files.remove(f"{folder}/f")
    files.write(f"{folder}/f", b"x")
    files.remove(str(tmp_path / "a"))
    files.remove(str(tmp_path / "a"))
    assert os.listdir(tmp_path) == []
    (tmp_path / "f").touch()
    with pytest.raises(BackendError, match="cannot be removed: Not a directory"):
        files.remove(str(tmp_path / "f" / "x"))
    with pytest.raises(BackendError, match="cannot be made"):
        files.make_folder(str(tmp_path / "f" / "x"))


def test_what_a_process_of_the_same_number_left_behind_is_written_over(tmp_path: Path) -> None:
    """A file that was cut short by its death is no part of the new one."""
    path = str(tmp_path / "f")
    (tmp_path / f"f.{os.getpid()}.new").write_bytes(b"longer than what comes")
    LocalFiles().write(path, b"new")
    assert LocalFiles().read(path) == b"new"
    assert os.listdir(tmp_path) == ["f"]


def test_sizes(tmp_path: Path) -> None:
    """In bytes; None of what is not there."""
    (tmp_path / "f").write_bytes(b"12")
    found = LocalFiles().sizes([f"{tmp_path}/f", f"{tmp_path}/none", f"{tmp_path}/f/x"])
    assert list(found.values()) == [2, None, None]


def test_a_pipe_in_the_place_of_a_file(tmp_path: Path) -> None:
    """It is no file to read, and nobody waits for its writer, whom a job may never start."""
    os.mkfifo(tmp_path / "pipe")
    assert LocalFiles().read(str(tmp_path / "pipe")) is None
    assert LocalFiles().grown({str(tmp_path / "pipe"): 0}) == {}


def test_where_things_are_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The home folder of the user, the one of torchx, which is not made, and where commands run."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TORCHX_HOME", str(tmp_path / "torchx"))
    monkeypatch.chdir(tmp_path)
    files = LocalFiles()
    assert (files.home(), files.cwd()) == (str(tmp_path), str(tmp_path))
    assert files.torchx_home("a", "b") == str(tmp_path / "torchx" / "a" / "b")
    assert os.listdir(tmp_path) == []


def test_reading_what_another_one_writes_is_cheap_here(tmp_path: Path, clock: FakeClock) -> None:
    """So a reader of many logs never waits for one of them."""
    files = LocalFiles()
    assert files.grown({str(tmp_path / "f"): 0}, files.wait_s) == {}
    assert clock.slept == []


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock(0.0)
    monkeypatch.setattr(files_module, "time", clock)
    return clock


def test_what_grew(tmp_path: Path, clock: FakeClock) -> None:
    """Only files with news; of each no more than a MiB, the rest with the next call; without a wait no time passes."""
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    files = LocalFiles()
    assert files.grown({a: 0}) == {}
    files.write(a, b"x" * (MAX_GROWN + 1))
    files.write(b, b"12")
    assert {path: len(data) for path, data in files.grown({a: 0, b: 2}).items()} == {a: MAX_GROWN}
    assert files.grown({a: MAX_GROWN, b: 1}) == {a: b"x", b: b"2"}
    assert files.grown({b: -1}) == {b: b"2"}
    assert clock.slept == []


def test_waiting_for_what_grows(tmp_path: Path, clock: FakeClock) -> None:
    """Pauses from 20 ms to a quarter of a second, the last of them what is left; none after news."""
    path = str(tmp_path / "f")
    assert LocalFiles().grown({path: 0}, 1.0) == {}
    assert clock.slept[:3] == pytest.approx([0.02, 0.03, 0.045])
    assert max(clock.slept) == 0.25 and clock.now == pytest.approx(1.0)
    clock.slept.clear()
    real = clock.sleep

    def sleep(seconds: float) -> None:
        real(seconds)
        (tmp_path / "f").write_bytes(b"x")

    clock.sleep = sleep  # type: ignore[method-assign]  # as something is written meanwhile
    assert LocalFiles().grown({path: 0}, 1.0) == {path: b"x"}
    assert clock.slept == [0.02]


# -- commands --------------------------------------------------------------------------------------


def test_a_command_that_failed_says_why() -> None:
    """The lines of stderr, else of stdout, else that it said nothing; with all of it for who wants to look."""
    for stderr, stdout, said in [("a\nb\n", "c", "a; b"), (" \n", "c\nd\n", "c; d"), ("", "", "it said nothing")]:
        with pytest.raises(CommandError, match=f"^`x` failed with exit code 3: {said}$") as e:
            Completed(["x", "y"], 3, stdout, stderr).check()
        assert (e.value.argv, e.value.returncode, e.value.stderr) == (["x", "y"], 3, stderr)
    done = Completed(["x"], 0, "", "a warning")
    assert done.check() is done


def test_commands_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the C locale with our environment; exit code, stdin and odd bytes come through; without a shell."""
    monkeypatch.setenv("MINE", "yes")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    run = LocalCommandRunner().run
    done = run(["sh", "-c", 'cat; echo "$LC_ALL $MINE" >&2; printf "\\377"; exit 5'], stdin="in")
    assert (done.returncode, done.stdout, done.stderr) == (5, "in\ufffd", "C yes\n")
    assert run(["echo", "$MINE;x"]).stdout == "$MINE;x\n"
    with pytest.raises(CommandError, match="not installed") as e:
        run([str(tmp_path / "none")])
    assert e.value.returncode == 127
    (tmp_path / "plain").write_text("")
    with pytest.raises(CommandError, match="cannot be started") as e:
        run([str(tmp_path / "plain")])
    assert e.value.returncode == 126
    with pytest.raises(CommandError, match="cannot be started"):
        run(["echo", "\0"])
    with pytest.raises(TransientError, match=r"`sleep` did not answer within 0\.01 s"):
        run(["sleep", "100"], timeout=0.01)


# -- the shell -------------------------------------------------------------------------------------


def test_words_and_names() -> None:
    """What needs no quotes has none; an empty word has; NUL is refused; names as the shell takes them."""
    assert [quote(text) for text in ("a/b:c", "", "a b", "'")] == ["a/b:c", "''", "'a b'", "''\\'''"]
    with pytest.raises(SpecError, match="NUL"):
        quote("a\0b")
    assert quote("@A@@B@", {"@A@": "X", "@B@": "Y"}) == '"${X}""${Y}"'
    assert [is_name(text) for text in ("A", "_1", "", "1", "A B")] == [True, True, False, False, False]
    env = {"A": "@J@", "x.y": "b c"}
    assert exports(env, {"@J@": "ID"}) == ['export A="${ID}"']
    assert env_words(env, {"@J@": "ID"}) == ["env", "--", "x.y='b c'"]
    for name in ("", "a=b", "a\0"):
        with pytest.raises(SpecError, match="cannot be the name"):
            env_words({name: "x"})


def test_a_script_beside_a_module(tmp_path: Path) -> None:
    """Without the comment that it opens with; other comments stay, and a script of comments alone is empty."""
    (tmp_path / "a.sh").write_text("#!/bin/sh\n# why\necho 1\n# stays\n")
    (tmp_path / "b.sh").write_text("# only\n")
    module = str(tmp_path / "module.py")
    assert read_script(module, "a.sh") == "echo 1\n# stays\n"
    assert read_script(module, "b.sh") == ""


# -- queries, replicas -----------------------------------------------------------------------------


def test_a_query_there_and_back() -> None:
    """What `log_iter` was asked is what a backend asks of it, to the second; nothing asked is nothing wanted."""
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=2)))
    query = LogQuery.of(regex="a+", since=at, until=at + timedelta(hours=1), should_tail=True, streams=Stream.STDERR)
    assert query.until is not None and query.since is not None and query.until - query.since == 3600
    words: Any = query.words()
    assert words == {
        "regex": "a+", "since": at, "until": at + timedelta(hours=1), "should_tail": True, "streams": Stream.STDERR
    }  # fmt: skip
    empty = LogQuery.of(regex="", since=None, until=None, should_tail=False, streams=None)
    assert empty == LogQuery() and not any(vars(empty).values())
    assert empty.words() == {"regex": None, "since": None, "until": None, "should_tail": False, "streams": None}
    assert list(query.matching(["caat\n", "b\n"])) == ["caat\n"]
    assert list(empty.matching(["caat\n", "b\n"])) == ["caat\n", "b\n"]
    with pytest.raises(ConfigError, match="is not a regular expression"):
        compile_regex("(")


@pytest.mark.parametrize(("stream", "refused"), [(None, False), (Stream.COMBINED, False), (Stream.STDERR, True)])
def test_one_log_for_both_outputs(stream: Stream | None, refused: bool) -> None:
    """One of them alone is refused, not shown with the other."""
    if not refused:
        refuse_streams(LogQuery(stream=stream), "x")
        return
    with pytest.raises(NotSupportedError, match="x has one log for stdout and stderr, and cannot show `stderr` alone"):
        refuse_streams(LogQuery(stream=stream), "x")


def test_replicas_are_counted_through_all_roles() -> None:
    """Within a role from 0, within the job through all; the root of an image is asked once for a role."""
    app = AppDef(
        "a", [Role("x", "i", args=["${img_root} ${replica_id}"], num_replicas=2), Role("y", "i", num_replicas=1)]
    )
    asked: list[str] = []
    found = list(replicas(app, "a-1", img_root=lambda role: asked.append(role.name) or "/root"))
    assert [(r.role.name, r.k, r.index) for r in found] == [("x", 0, 0), ("x", 1, 1), ("y", 0, 2)]
    assert [r.role.args for r in found[:2]] == [["/root 0"], ["/root 1"]]
    assert asked == ["x", "y"]


# -- requests ----------------------------------------------------------------------------------------


def test_texts_of_several_lines_are_shown_line_by_line_to_people() -> None:
    """A request for a program has them as one string."""
    assert to_yaml({"a": "x\ny\n", "b": "é"}, in_lines=True) == "a: |\n  x\n  y\nb: é\n"
    assert to_yaml({"a": "x\ny\n", "b": "é"}) == "a: 'x\n\n  y\n\n  '\nb: \"\\xE9\"\n"


def test_the_same_object_twice_is_written_twice() -> None:
    """Not as a reference, which not every reader knows; keys stay in their order, one a line."""
    shared = ["x"]
    assert to_yaml({"b": shared, "a": shared}) == "b:\n- x\na:\n- x\n"


def test_a_request_without_pyyaml(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is shown as JSON, which is YAML, too."""
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert to_yaml({"b": [1], "a": "é"}) == '{\n  "b": [\n    1\n  ],\n  "a": "\\u00e9"\n}\n'
    assert "hunter2" not in shown_yaml({"Environment": {"DB_PASSWORD": "hunter2"}})


@pytest.mark.parametrize(
    ("item", "shown"),
    [
        ({"tags": {"API_KEY": "v", "n": 1}}, {"tags": {"API_KEY": "********", "n": "1"}}),
        ({"ContainerArguments": ["--token", "t", 1]}, {"ContainerArguments": ["--token", "********", "1"]}),
        ({"command": "--token t"}, {"command": "--token t"}),
        ({"words": ["--token", "t", 1]}, {"words": ["--token", "t", 1]}),
        ([{"name": "API_KEY", "value": "v"}], [{"name": "API_KEY", "value": "********"}]),
        ({"name": "API_KEY", "value": 1}, {"name": "API_KEY", "value": 1}),
        ({"name": "API_KEY", "value": "v", "more": "m"}, {"name": "API_KEY", "value": "v", "more": "m"}),
        (
            {"a": {"b": [{"HyperParameters": {"API_KEY": "v"}}]}},
            {"a": {"b": [{"HyperParameters": {"API_KEY": "********"}}]}},
        ),
        ({"Environment": ["API_KEY"]}, {"Environment": ["API_KEY"]}),
    ],
)
def test_what_is_masked_in_a_request(item: Any, shown: Any) -> None:
    """Values of variables and arguments with the name of a secret, at any depth; the request itself stays as it is."""
    before = copy.deepcopy(item)
    assert masked(item) == shown
    assert item == before


def test_images_below_code() -> None:
    """Of roles whose code was built into theirs; another role's image is its own."""
    roles = [Role(name, image, entrypoint="true") for name, image in (("a", "new"), ("b", "old"), ("c", "same"))]
    info = AppDryRunInfo("", str)
    info._app = AppDef("app", roles)
    info.submission.tags.update({"image.a": "base", "image.c": "same"})
    assert bases_of(info) == {"new": "base"}


# -- what backends are assumed to do ---------------------------------------------------------------


def test_what_most_backends_do() -> None:
    """Each of these is promised by a backend that states nothing else about it."""
    promised = {name for name, value in vars(COMMON).items() if value}
    assert promised == {
        "logs",
        "log_since",
        "log_follow",
        "log_timestamps",
        "cancel",
        "delete",
        "list",
        "retries",
        "elastic",
        "setup",
        "multi_role",
        "secrets",
        "gpus",
        "durable",
    }


# -- tasks of sweeps -------------------------------------------------------------------------------


def test_a_time_limit_of_tasks() -> None:
    """It is rejected by backends that cannot keep it, and by those only."""
    app = AppDef("a", [Role("r", "img")], metadata={TIMEOUT: "60s"})
    assert only_role(app, "b", timeout=True) is only_role(AppDef("a", app.roles), "b") is app.roles[0]
    with pytest.raises(NotSupportedError, match="cannot have a time limit"):
        only_role(app, "b")


# -- logs ------------------------------------------------------------------------------------------


class _Blocks(Follower):
    """A log in memory, of which no read returns more than three bytes."""

    def __init__(self, query: LogQuery, data: bytes) -> None:
        super().__init__(query)
        self._data = data

    def _files(self) -> list[Cursor]:
        return [Cursor("log")]

    def _size(self, cursor: Cursor) -> int:
        return len(self._data)

    def _read_at(self, cursor: Cursor, offset: int, size: int) -> bytes:
        return self._data[offset : offset + min(size, 3)]

    def _ended(self, *, patient: bool) -> bool:
        return True


def test_a_line_that_is_read_in_small_parts() -> None:
    """It arrives whole."""
    assert list(_Blocks(LogQuery(), b"0123456789\nabc\nrest")) == ["0123456789\n", "abc\n", "rest"]


def test_a_search_returns_between_blocks_only_when_nothing_is_there() -> None:
    """An empty block is passed on at once, so that other logs are read meanwhile; one without a match is not."""

    class Log(Lines):
        def _read(self, *, patient: bool) -> Iterator[tuple[Hashable, bytes, int]]:
            yield from ((1, block, 0) for block in (b"a\n", b"", b"b\n", b"x\n"))

    log = Log(LogQuery(regex=re.compile("x")))
    assert list(log._wanted(log._read(patient=True))) == [b"", b"x\n"]
