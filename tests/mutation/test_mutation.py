"""The mutation runner: small changes, the same ones for a seed, in a copy, and the survivors named."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation import shell
from tests.mutation.__main__ import ISOLATED, choose
from tests.mutation.changes import Change, changes, is_another_program
from tests.mutation.choice import BUDGET_S, SLOW_S, batches
from tests.mutation.house import candidates, room_folder, sources

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def _made(source: str) -> set[str]:
    return {change.made(source) for change in changes(source) if is_another_program(source, change)}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a < b", {"a <= b", "a >= b"}),
        ("a is not b", {"a is b"}),
        ("a in b", {"a not in b"}),
        ("a == b == c", {"a != b == c", "a == b != c"}),
        ("a and b and c", {"a or b and c", "a and b or c"}),
        ("not a", {"a"}),
        ("-a", {"a"}),
        ("-1", {"1"}),
        ("7", {"8", "6"}),
        ("0", {"1"}),
        ("0.5", {"1.5"}),
        ("True", {"False"}),
        ("a + b", {"a - b"}),
        ("a // b", {"a * b"}),
        ("a if b else c", {"a if not b else c"}),
        ("(a) < (  # a < b\n b)", {"(a) <= (  # a < b\n b)", "(a) >= (  # a < b\n b)"}),
        ("'é' < b", {"'é' <= b", "'é' >= b"}),
    ],
)
def test_changes_of_an_expression(source: str, expected: set[str]) -> None:
    """Each operator and constant has its changes, made in the text and nowhere else in it."""
    assert _made(f"x = {source}") == {f"x = {e}" for e in expected}


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("f()", {"pass"}),
        ("self.a = b", {"pass"}),
        ("a += b", {"pass"}),
        ("del a[b]", {"pass"}),
        ("raise ValueError(1)", {"pass"}),
        ("return f()", {"return None"}),
        ("return True", {"return False"}),
        ("if f(): return", {"if not f(): return"}),
    ],
)
def test_changes_of_a_statement(statement: str, expected: set[str]) -> None:
    """Statements with an effect are dropped, values that are returned become None, conditions are turned round."""
    assert _made(f"def g():\n    {statement}\n") == {f"def g():\n    {e}\n" for e in expected}


@pytest.mark.parametrize(
    "source",
    [
        '"""Says 1 < 2."""',
        "if TYPE_CHECKING:\n    X = 1",
        "if __name__ == '__main__':\n    main()",
        "log.debug('x', 1)",
        "raise NotImplementedError",
        "x = f'{a + 1}'",
        "x: Literal[1]",
        "__slots__ = (1,)",
        "x = y.read(100)",
        "x = f(hint=1)",
        "@f(1)\ndef g() -> x[1]: ...",
        "import a",
    ],
)
def test_what_cannot_matter_is_left_alone(source: str) -> None:
    """No change is made to what only people or type checkers read."""
    assert _made(source) - {"pass"} == set()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('[ "$a" -gt "$b" ]', {'[ "$a" -ge "$b" ]', '[ "$a" -le "$b" ]'}),
        ('[[ "$a" == b* ]]', {'[[ "$a" != b* ]]'}),
        ("[ $a = b ]", {"[ $a != b ]"}),
        ("[ $a != b ]", {"[ $a = b ]"}),
        ('[ -z "$a" ]', {'[ -n "$a" ]'}),
        ("[[ -e a ]]", {"[[ ! -e a ]]"}),
        ("[ ! -e a ]", {"[  -e a ]".replace("  ", " ")}),
        ("((a < b))", {"((a <= b))", "((a >= b))"}),
        ("x=$((a + 1))", {"x=$((a - 1))", "x=$((a + 2))", "x=$((a + 0))"}),
        ("f && g", {": && g", "f && :", "f || g"}),
        ("x=$(f a; g)", {"x=$(:; g)", "x=$(f a; :)"}),
        ("if f; then return; fi", {"if ! f; then return; fi"}),
        ("until f; do continue; done", {"while f; do continue; done", "until f; do :; done"}),
        ("exit 1", {":", "exit 2", "exit 0"}),
        ('f "$(g "a && b")" # 1 && 2', {'f "$(:)" # 1 && 2'}),
    ],
)
def test_changes_of_a_script(source: str, expected: set[str]) -> None:
    """In scripts of bash the same kinds of changes are made, and none to what is quoted or a comment."""
    assert {change.made(source) for change in shell.changes(source)} == expected


@pytest.mark.parametrize(
    "source",
    [
        "",
        "# f && exit 1",
        "'f && exit 1'",
        '"f && [ 1 = 2 ]"',
        "echo 'torchx: not 1 of 2' >&2",
        "sleep 1",
        "case $a in\n  RUN) x= ;;\n  b*) ;;\nesac",
        "a=b c=(d e)",
        "x=$1 y=${1:-2}",
        "local a",
    ],
)
def test_what_cannot_matter_in_a_script_is_left_alone(source: str) -> None:
    """Texts, messages, pauses, patterns and plain assignments."""
    assert not shell.changes(source)


def test_scripts_are_among_what_is_planted() -> None:
    """A room's scripts of bash are sources like its modules; what bash cannot read is not planted."""
    found = sources(TOP, "torchx/schedulers/lsf", (".py", ".sh"))
    assert {"torchx/schedulers/lsf/replica.sh", "torchx/schedulers/lsf/parse.py"} <= set(found)
    texts = {"a.sh": "if f\nthen\n  g && h\nfi\n"}
    planted = choose(texts, 100, 1)
    assert len(planted) == 4
    assert all(shell.is_script(change.made(texts["a.sh"])) for change in planted)
    assert not shell.is_script("if f; then")


def test_the_tests_of_a_script(tmp_path: Path) -> None:
    """Those that start programs, as nobody knows what they run of it: beside it, or of what renders it."""
    (tmp_path / "torchx" / "r").mkdir(parents=True)
    (tmp_path / "torchx" / "r" / "m.py").write_text('read_script("m.sh")\n')
    (tmp_path / "torchx" / "r" / "other.py").write_text("")
    tests = {
        "tests/r/test_m.py::starts": {"cpu": 0.2, "lines": {}, "starts": True},
        "tests/r/test_m.py::none": {"cpu": 0.1, "lines": {}, "starts": False},
        "tests/x/test_x.py::starts": {"cpu": 0.1, "lines": {"torchx/r/other.py": [1]}, "starts": True},
        "tests/x/test_x.py::renders": {"cpu": 0.1, "lines": {"torchx/r/m.py": [1]}, "starts": True},
        "tests/x/test_x.py::none": {"cpu": 0.1, "lines": {"torchx/r/m.py": [1]}, "starts": False},
    }
    change = Change("torchx/r/m.sh", 1, "dropped", 0, 1, ":", range(1, 2), range(0), ())
    assert batches(change, tests, str(tmp_path)) == [["tests/r/test_m.py::starts"], ["tests/x/test_x.py::renders"]]


def test_what_lies_around_a_change() -> None:
    """A change knows its line, the lines of its statement without the body, its function, and the constant that it is in."""
    source = "LIMIT = 7\n\n\ndef f(a):\n    if (\n        a < g\n    ):\n        return 1\n"
    by_line = {change.line: change for change in changes(source)}
    assert by_line[1].names == ("LIMIT",) and not by_line[1].function
    assert by_line[6].lines == range(5, 8)
    assert by_line[8].function == range(4, 9)
    assert by_line[6].diff(source) in {"-        a < g\n+        a <= g", "-        a < g\n+        a >= g"}


def test_a_seed_chooses_the_same_changes() -> None:
    """Twice the same, other ones for another seed, and never more than there are."""
    texts = {"a.py": "x = 1\n" * 50, "b.py": "y = 2 < z\n"}
    assert [change.new for change in shell.changes("exit 5; [ 1 -gt 2 ]")][1:3] == ["4", "6"]  # in whichever process
    assert choose(texts, 20, 3) == choose(texts, 20, 3)
    assert choose(texts, 20, 3) != choose(texts, 20, 4)
    assert len(choose(texts, 20, 3)) == 20
    assert len(choose(texts, 1000, 3)) == len(set(choose(texts, 1000, 3))) == 50 * 2 + 4


def _change(path: str, line: int, function: range, names: tuple[str, ...] = ()) -> Change:
    return Change(path, line, "constant", 0, 1, "2", range(line, line + 1), function, names)


def test_the_tests_of_a_change(tmp_path: Path) -> None:
    """Those that run its line; else its function; else its file; and its own tests, whatever they run. The mirror first, quick ones first, slow ones not."""
    (tmp_path / "torchx" / "r").mkdir(parents=True)
    (tmp_path / "torchx" / "r" / "m.py").write_text("LIMIT = 1\n\ndef f():\n    g()\n    return LIMIT\n")
    file = "torchx/r/m.py"
    for name in ("r/test_m.py", "r/test_own.py", "x/test_x.py", "x/test_y.py"):
        (tmp_path / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tests" / name).write_text(
            "from torchx.r.m import LIMIT\n" if name in ("r/test_own.py", "x/test_y.py") else ""
        )
    tests = {
        "tests/x/test_y.py::looks": {"cpu": 0.2, "lines": {}},
        "tests/r/test_own.py::forks": {"cpu": 3.0, "lines": {}},
        "tests/r/test_m.py::long": {"cpu": 2.0, "lines": {file: [3, 4]}},
        "tests/r/test_m.py::short": {"cpu": 1.0, "lines": {file: [4]}},
        "tests/x/test_x.py::a": {"cpu": 0.1, "lines": {file: [4, 5]}},
        "tests/x/test_x.py::slow": {"cpu": SLOW_S, "lines": {file: [4, 5]}},
        "tests/x/test_x.py::other": {"cpu": 0.1, "lines": {file: [99]}},
    }
    own = "tests/r/test_own.py::forks"
    mirror = ["tests/r/test_m.py::short", "tests/r/test_m.py::long", own]
    function = range(3, 6)
    assert batches(_change(file, 4, function), tests, str(tmp_path)) == [mirror, ["tests/x/test_x.py::a"]]
    assert batches(_change(file, 3, function), tests, str(tmp_path)) == [["tests/r/test_m.py::long", own]]
    assert batches(_change(file, 50, range(49, 60)), tests, str(tmp_path)) == [
        mirror,
        ["tests/x/test_x.py::a", "tests/x/test_x.py::other"],
    ]
    constant = batches(_change(file, 1, range(0), ("LIMIT",)), tests, str(tmp_path))
    assert constant == [[own], ["tests/x/test_x.py::a", "tests/x/test_y.py::looks"]]
    tests["tests/r/test_m.py::long"]["cpu"] = SLOW_S - 0.1
    many = {f"tests/r/test_m.py::{i}": {"cpu": 5.0, "lines": {file: [4]}} for i in range(20)}
    assert len(batches(_change(file, 4, function), many, str(tmp_path))[0]) == BUDGET_S // 5 - 1


def test_rooms_and_their_tests() -> None:
    """A room is found by its name; its tests are those beside it, those that import it or a user of it, and its examples."""
    folder = room_folder(TOP, "runs")
    assert folder == "torchx/runs" and "torchx/runs/store.py" in sources(TOP, folder)
    found = candidates(TOP, folder)
    assert {"tests/runs/test_run_registry.py", "tests/runner/watching/test_jobs.py", "torchx/runs/store.py"} <= set(
        found
    )
    assert not [path for path in found if "backends" in path or "mutation" in path]
    assert "tests/schedulers/lsf/test_replica_functions.py" in candidates(TOP, "torchx/schedulers/lsf/replica.sh")
    with pytest.raises(LookupError, match="nowhere"):
        room_folder(TOP, "nowhere")


def _can_isolate() -> bool:
    try:
        return subprocess.run([*ISOLATED, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not _can_isolate(), reason="no namespaces here")
def test_survivors_are_printed_and_the_checkout_is_not_touched(tmp_path: Path) -> None:
    """Of a toy whose test looks at one of two limits, exactly the changes of the other survive."""
    top = tmp_path / "top"
    for folder in ("torchx/toy", "tests/toy"):
        (top / folder).mkdir(parents=True)
        (top / folder / "__init__.py").touch()
    (top / "torchx/__init__.py").touch()
    source = "def seen(n):\n    return n < 3\n\n\ndef unseen(n):\n    return n < 3\n"
    (top / "torchx/toy/example.py").write_text(
        'def shown(n):\n    """\n    >>> shown(3)\n    False\n    """\n    return n < 3\n'
    )
    (top / "torchx/toy/limits.py").write_text(source)
    (top / "tests/toy/test_limits.py").write_text(
        "import os\nfrom torchx.toy.limits import seen, unseen\n\n\ndef test_seen():\n"
        "    assert seen(2) and not seen(3)\n    unseen(0)\n    assert not os.access('/', os.W_OK)\n"
        "    open(f'/tmp/torchx-ssh-{os.getuid()}/socket', 'x').close()\n"
        "    os.unlink(f'/tmp/torchx-ssh-{os.getuid()}/socket')\n"
    )
    subprocess.run(["git", "init", "-q"], cwd=top, check=True)
    shutil.copytree(os.path.join(TOP, "tests/mutation"), top / "tests/mutation")
    shutil.copy(os.path.join(TOP, "tests/trees.py"), top / "tests")
    (top / "tests/__init__.py").touch()
    command = [sys.executable, "-m", "tests.mutation", "toy", "--n", "100", "--jobs", "1"]
    done = subprocess.run(command, cwd=top, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "9 of 15 noticed" in done.stdout
    report = done.stdout.partition("\n\n")[2]
    assert report.count("torchx/toy/limits.py:6: ") == 5 and "limits.py:2:" not in report
    assert "-    return n < 3\n+    return n <= 3\n" in report
    assert (top / "torchx/toy/limits.py").read_text() == source
