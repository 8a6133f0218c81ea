"""The command line as a whole: which verb runs, what it costs, how it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from torchx.cli import commands, failures
from torchx.cli.cmd_base import SubCommand
from torchx.cli.main import create_parser, get_default_sub_cmds, get_sub_cmds, run_main
from torchx.version import __version__

from .conftest import HELLO, Call


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"], ["help"]], ids=["nothing", "--help", "-h", "help"])
def test_help_page_lists_every_verb(torchx: Call, argv: list[str]) -> None:
    """Every verb except hidden ones has a line; the exit code is 0."""
    outcome = torchx(*argv)
    listed = [line.split()[0] for line in outcome.out.splitlines() if line.startswith("  ")]
    assert outcome.code == 0
    assert set(commands.names()) <= set(listed)
    assert "__complete" not in outcome.out


def test_help_page_documents_the_exit_codes(torchx: Call) -> None:
    """The page lists every exit code."""
    page = torchx("--help").out
    for code in (0, 1, 2, 3, 4, 5, 6, failures.EXIT_BUG, failures.EXIT_IO, 130, failures.EXIT_BROKEN_PIPE):
        assert f" {code} " in page.partition("Exit codes")[2]


def test_version(torchx: Call) -> None:
    """``--version`` prints the name and the version."""
    assert torchx("--version").out == f"torchx {__version__}\n"


@pytest.mark.parametrize("argv", [["--help"], ["--version"], ["rnu"]], ids=["--help", "--version", "typo"])
def test_no_verb_is_imported_before_it_is_needed(argv: list[str]) -> None:
    """Help, version and a typo import no module of a verb, neither argparse nor any other heavy module."""
    code = (
        "import sys\n"
        "from torchx.cli.main import main\n"
        f"try: main({argv!r})\n"
        "except SystemExit: pass\n"
        "print([m for m in sys.modules if m.startswith('torchx.cli.cmd_')"
        " or m in ('argparse', 'logging', 'json', 'sqlite3', 'inspect', 'torchx.specs.api')], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"


def test_only_the_verb_that_was_given_is_imported() -> None:
    """``torchx list`` does not import the other verbs."""
    code = (
        "import sys\n"
        "from torchx.cli.main import main\n"
        "main(['list', '--json'])\n"
        "print(sorted(m for m in sys.modules if m.startswith('torchx.cli.cmd_')), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "['torchx.cli.cmd_base', 'torchx.cli.cmd_list']"


@pytest.mark.parametrize("verb", [name for name in commands.VERBS if not name.startswith("_")])
def test_every_verb_has_help(torchx: Call, verb: str) -> None:
    """``torchx VERB --help`` and ``torchx help VERB`` print the same page."""
    page = torchx(verb, "--help")
    assert (page.code, page.err) == (0, "")
    assert f"torchx {verb}" in page.out
    assert torchx("help", verb).out == page.out


@pytest.mark.parametrize(
    ("verb", "ours"),
    [
        ("ps", "torchx list"),
        ("top", "torchx list"),
        ("kill", "torchx cancel"),
        ("stop", "torchx cancel"),
        ("rm", "torchx delete"),
        ("submit", "torchx run"),
        ("attach", "torchx shell"),
        ("scp", "torchx cp"),
        ("tunnel", "torchx forward"),
        ("ssh", "torchx shell"),
        ("logs", "torchx log"),
        ("rnu", "`run`"),
    ],
)
def test_verbs_that_people_try(torchx: Call, verb: str, ours: str) -> None:
    """The hint names the verb to use here, and that verb exists."""
    outcome = torchx(verb)
    assert (outcome.code, ours in outcome.hint()) == (2, True)
    named = {text.split()[1] for text in outcome.hint().split("`")[1::2] if text.startswith("torchx ")}
    assert named <= {*commands.names(), "--version"}
    assert not {*commands.ELSEWHERE} & {*commands.VERBS}


def test_every_verb_is_a_sub_command() -> None:
    """The lazy table and the classes agree."""
    found = get_default_sub_cmds()
    assert list(found) == list(commands.VERBS)
    assert all(isinstance(command, SubCommand) for command in found.values())


def test_one_parser_for_all_verbs() -> None:
    """Programs can build a parser of all verbs; the namespace has the function of the verb."""
    args = create_parser(get_sub_cmds()).parse_args(["cancel", "x://y/z"])
    assert args.app_handle == ["x://y/z"]
    assert args.func.__name__ == "run"


def test_run_main_with_verbs_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    """Programs can define their own verbs."""

    class Add(SubCommand):
        """adds"""

        def add_arguments(self, subparser: object) -> None:
            subparser.add_argument("numbers", nargs="+", type=int)  # type: ignore[attr-defined]

        def run(self, args: object) -> None:
            print(sum(args.numbers))  # type: ignore[attr-defined]

    run_main({"add": Add()}, ["add", "1", "2"])
    assert capsys.readouterr().out == "3\n"
    with pytest.raises(SystemExit) as e:
        run_main({"add": Add()}, ["add", "x"])
    assert e.value.code == 2
    assert "`x` is not a valid int" in capsys.readouterr().err


def test_a_plugin_adds_a_verb(torchx: Call, install_plugin: Callable[..., None]) -> None:
    """An entry point of `torchx.cli.cmds` is a verb; the help lists it with its package."""
    install_plugin("my_tool", {"torchx.cli.cmds": ["hello = my_tool:Hello"]}, HELLO)
    assert torchx("hello", "world").out == "hello world\n"
    assert "hello       from my_tool" in torchx("--help").out


def test_a_plugin_takes_the_place_of_a_verb(torchx: Call, install_plugin: Callable[..., None]) -> None:
    """A plugin replaces the built-in verb of its name; help and `torchx plugins` say so."""
    install_plugin("my_tool", {"torchx.cli.cmds": ["cancel = my_tool:Hello"]}, HELLO)
    assert torchx("cancel", "world").out == "hello world\n"
    assert "(from my_tool)" in torchx("--help").out
    rows = json.loads(torchx("plugins", "--json").out)["plugins"]
    assert [row["replaces"] for row in rows if row["name"] == "cancel"] == ["built-in"]


def test_a_broken_plugin_breaks_nobody_else(torchx: Call, install_plugin: Callable[..., None]) -> None:
    """Its verb is an error; other verbs work, also a built-in that it would replace."""
    rows = {"torchx.cli.cmds": ["hello = bad_tool:Hello", "builtins = bad_tool:Hello"]}
    install_plugin("bad_tool", rows, "import no_such_module\n")
    broken = torchx("hello")
    assert broken.code == 6
    assert "`hello` of package `bad_tool`" in broken.err
    assert "no_such_module" in broken.err
    overridden = torchx("builtins")
    assert overridden.code == 0
    assert "utils.echo" in overridden.out
    assert "using the built-in verb" in overridden.err
    assert torchx("--help").code == 0


def test_what_is_no_command_is_refused(torchx: Call, install_plugin: Callable[..., None]) -> None:
    """An entry point that is not a SubCommand is an error with a hint."""
    install_plugin("odd_tool", {"torchx.cli.cmds": ["odd = odd_tool:X"]}, "X = 7\n")
    outcome = torchx("odd")
    assert "is not a SubCommand: it is `7`" in outcome.err
    assert "`add_arguments` and `run`" in outcome.hint()


@pytest.mark.parametrize(
    ("argv", "message", "hint"),
    [
        (["rnu"], "unknown command `rnu`", "did you mean `run`?"),
        (["--verson"], "unknown option `--verson`", "did you mean `--version`?"),
        (["--log_level=LOUD", "list"], "`--log_level`: `LOUD` is not a log level", "one of: DEBUG"),
        (["--log_level", "INFO"], "no command is given", "`torchx --help`"),
        (["list", "--stat", "x"], "unknown option `--stat`", "did you mean `--state`?"),
        (["list", "--log_level", "DEBUG"], "`--log_level` goes before the command", "torchx --log_level"),
        (["cancel"], "no job is given", "`torchx list` lists them all"),
        (["cancel", "a", "--gently"], "unknown option `--gently`", "`torchx cancel --help`"),
        (["runopts", "a", "b"], "unexpected argument `b`", "`torchx runopts --help`"),
        (["log", "--streams", "stdot", "@last"], "`stdot` is not one of stdout, stderr, combined", "`stdout`"),
        (["run", "-s", "a", "-s", "b", "utils.echo"], "`-s/--scheduler` is given more than once", "leave one"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_usage(torchx: Call, argv: list[str], message: str, hint: str) -> None:
    """A usage error is one line, a hint, and exit code 2."""
    outcome = torchx(*argv)
    assert (outcome.code, outcome.out) == (2, "")
    assert len(outcome.error_lines()) == 1
    assert outcome.err.startswith(f"torchx: error: {message}") or message in outcome.err
    assert hint in outcome.hint()


class _Failing(SubCommand):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def add_arguments(self, subparser: object) -> None: ...

    def run(self, args: object) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ZeroDivisionError("by\nzero"), 70, "torchx: error: ZeroDivisionError: by zero\nhint: this is a bug"),
        (KeyboardInterrupt(), 130, ""),
        (PermissionError(13, "Permission denied", "/x"), 74, "torchx: error: `/x`: Permission denied"),
        (SystemExit("no"), 1, "no"),
        (SystemExit(7), 7, ""),
        (failures.UsageError("bad", hint="good"), 2, "torchx: error: bad\nhint: good\n"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_exit_codes(capsys: pytest.CaptureFixture[str], error: BaseException, code: int, said: str) -> None:
    """Every exception becomes an exit code and at most two lines; a bug is reported without a traceback."""
    with pytest.raises(SystemExit) as e:
        run_main({"x": _Failing(error)}, ["x"])
    err = capsys.readouterr().err
    assert e.value.code == code
    assert err.startswith(said)
    assert "Traceback" not in err


@pytest.mark.parametrize("by", ["option", "variable"])
def test_traceback_when_asked_for(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    """``--log_level=DEBUG`` or TORCHX_DEBUG shows the traceback before the error."""
    if by == "variable":
        monkeypatch.setenv("TORCHX_DEBUG", "1")
    argv = ["--log_level=DEBUG", "x"] if by == "option" else ["x"]
    with pytest.raises(SystemExit):
        run_main({"x": _Failing(failures.UsageError("bad"))}, argv)
    assert "Traceback" in capsys.readouterr().err
    failures.show_tracebacks(False)


def test_broken_pipe_is_silent() -> None:
    """A closed pipe ends the command without a message, with the exit code of SIGPIPE."""
    code = (
        "from torchx.cli.main import run_main\n"
        "from torchx.cli.cmd_base import SubCommand\n"
        "class Yes(SubCommand):\n"
        "    def add_arguments(self, subparser): pass\n"
        "    def run(self, args):\n"
        "        while True: print('y' * 1000)\n"
        "run_main({'yes': Yes()}, ['yes'])"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == failures.EXIT_BROKEN_PIPE


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("options", [[], ["-u"]], ids=["buffered", "unbuffered"])
def test_full_disk_behind_stdout(options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Output that cannot be written is an error of one line."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    with open("/dev/full", "w") as full:
        argv = [sys.executable, *options, "-m", "torchx", "--help"]
        done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == failures.EXIT_IO
    assert done.stderr.splitlines()[0] == "torchx: error: No space left on device"
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"], ids=["stdout", "all"])
def test_closed_streams(closed: str, tmp_path: Path) -> None:
    """Closed streams are not an error, and no file is opened in their place."""
    marker = tmp_path / "stat"
    code = (
        "import os, sys; from torchx.cli.main import main; main(['list'])\n"
        "open(sys.argv[1], 'w').write(os.readlink('/proc/self/fd/1'))"
    )
    argv = ["sh", "-c", f'exec "$0" -c "$1" "$2" {closed}', sys.executable, code, str(marker)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert marker.read_text() == os.devnull


def test_warnings_of_the_library_are_lines_of_ours() -> None:
    """Log records are shown as `torchx: warning:`, also if a verb imports logging itself."""
    code = (
        "from torchx.cli.main import run_main\n"
        "from torchx.cli.cmd_base import SubCommand\n"
        "class Warn(SubCommand):\n"
        "    def add_arguments(self, subparser): pass\n"
        "    def run(self, args):\n"
        "        import logging\n"
        "        logging.getLogger('torchx.x').warning('careful with %s', 'that')\n"
        "        logging.getLogger('torchx.x').info('not shown')\n"
        "run_main({'warn': Warn()}, ['warn'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "torchx: warning: careful with that\n"


@pytest.mark.parametrize(
    ("env", "colored"),
    [({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False), ({}, False)],
    ids=["forced", "NO_COLOR wins", "no terminal"],
)
def test_color(env: dict[str, str], colored: bool) -> None:
    """Errors are red only if colour is wanted."""
    argv = [sys.executable, "-m", "torchx", "rnu"]
    done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, **env}, check=False)
    assert done.returncode == 2
    assert ("\033[31m" in done.stderr) == colored
