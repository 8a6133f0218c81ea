"""What is fuzzed: each target makes something of any bytes, and raises when torchx does not keep a promise.

The promises: no exception but torchx's own for wrong input, and what is written is read back as it was.
``coverage_guided.py`` lets atheris look for bytes that break one; ``test_targets.py`` tries those that once did.
"""

from __future__ import annotations

import binascii
import contextlib
import json
import os
import re
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from io import StringIO
from typing import Any, Optional
from unittest import mock

from torchx.cli.argparse_util import parse_moment
from torchx.cli.log_targets import parse_ids, parse_target
from torchx.component_reader import arguments, linter, signature, types
from torchx.component_reader.help import format_help, get_fn_docstring
from torchx.components import dist, utils
from torchx.config import ini
from torchx.errors import TorchXError
from torchx.schedulers.kit.logs import LogQuery
from torchx.schedulers.local import logs as local_logs
from torchx.specs import AppDef, Role, materialize_appdef, parse_app_handle, runopts
from torchx.specs.failures import parse_failure
from torchx.specs.mounts import format_mount, parse_mounts
from torchx.specs.named_resources import parse_resource
from torchx.specs.options.cfg_literals import join_options
from torchx.specs.serialize import appdef_from_dict, appdef_to_dict
from torchx.supervisor import follow, lines, statefile
from torchx.workspace.ignore import IgnoreRules

TARGETS: dict[str, Callable[[bytes], None]] = {}
_SEPARATOR = b"\xff"  # no byte of UTF-8


def _target(fn: Callable[[bytes], None]) -> Callable[[bytes], None]:
    TARGETS[fn.__name__] = fn
    return fn


def _words(data: bytes, most: int = 8) -> list[str]:
    """The bytes as arguments of a program, and so maybe no Unicode."""
    return [word.decode("utf-8", "surrogateescape") for word in data.split(_SEPARATOR)[:most]]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


# -- what is typed ---------------------------------------------------------------------------------


@_target
def handle(data: bytes) -> None:
    """Handles, short or whole, with roles and replicas."""
    text = _text(data)
    try:
        parsed = parse_app_handle(text)
    except TorchXError as e:
        assert e.hint
    else:
        assert f"{parsed[0]}://{parsed[1]}/{parsed[2]}" == text
    try:
        target = parse_target(text)
    except TorchXError as e:
        assert e.hint
    else:
        assert text.startswith(target.reference)
        again = "/".join([target.reference, *filter(None, [target.role])])
        assert parse_target(again) == replace(target, ids=None)
    try:
        ids = parse_ids(text)
    except TorchXError:
        return
    few = ids[:1000]
    assert parse_ids(",".join(map(str, few))) == few


@cache
def _options() -> runopts:
    opts = runopts()
    for name, tp in {
        "text": str,
        "number": int,
        "real": float,
        "flag": bool,
        "items": list[str],
        "table": dict[str, str],
        "with-dash": str,
    }.items():
        opts.add(name, type_=tp, help="")
    return opts


@_target
def cfg(data: bytes) -> None:
    """``-cfg`` literals, and the same as JSON."""
    opts = _options()
    for read in (opts.cfg_from_str, opts.cfg_from_json_repr):
        try:
            found = read(_text(data))
            known = {key: value for key, value in found.items() if key in opts._opts and value is not None}
            opts.resolve(known)
        except TorchXError as e:
            assert e.exit_code == 2
            continue
        again = opts.cfg_from_str(join_options(known))
        assert again == known or "nan" in repr(known)


@_target
def moment(data: bytes) -> None:
    """``--since`` and ``--until``."""
    try:
        parse_moment(_text(data), now=1e9)
    except TorchXError as e:
        assert e.hint


@_target
def mounts(data: bytes) -> None:
    """The mounts of a component."""
    try:
        found = parse_mounts(_words(data))
    except TorchXError as e:
        assert e.hint
        return
    assert parse_mounts([format_mount(mount) for mount in found]) == found
    assert parse_mounts([",".join(format_mount(mount) for mount in found)]) == found


@_target
def resource(data: bytes) -> None:
    """A named resource of a config file."""
    try:
        parse_resource(_text(data), name="x")
    except TorchXError as e:
        assert str(e)


_ANNOTATIONS = [
    *(str, int, float, bool, list[str], dict[str, str], Optional[int], dict[str, list[int]], list[dict[str, int]]),
    *(int | str, list[str] | None, bool | float | None, dict[str, bool | None], tuple, Any),
]


@_target
def value(data: bytes) -> None:
    """One argument of any type that a component may have."""
    if not data:
        return
    annotation = _ANNOTATIONS[data[0] % len(_ANNOTATIONS)]
    text = _text(data[1:])
    try:
        found = types.decode(text, annotation)
    except ValueError:
        return
    if annotation is str:
        assert found == text
    elif annotation in (int, float, bool, list[int], dict[str, int]):
        assert repr(types.decode(found, annotation)) == repr(found)


def _component(
    name: str,
    numbers: list[int],
    *words: str,
    table: dict[str, str] | None = None,
    deep: Optional[dict[str, list[int]]] = None,
    flag: bool = False,
    real: float = 0.5,
    either: int | str = 1,
) -> AppDef:
    """Any arguments.

    Args:
        name: a name
        numbers: numbers
    """
    args = [name, repr(numbers), *words, repr(table), repr(deep), repr(flag), repr(real), repr(either)]
    return AppDef("any", [Role("any", "", entrypoint="any", args=args)])


_COMPONENTS: list[Any] = [
    _component,
    dist.ddp,
    dist.spmd,
    dist.torchrun,
    utils.sh,
    utils.python,
    utils.echo,
    utils.copy,
]


@_target
def command_line(data: bytes) -> None:
    """The command line of a component: an app that survives JSON, or an error that says what is wrong."""
    if not data:
        return
    component = _COMPONENTS[data[0] % len(_COMPONENTS)]
    words = _words(data[1:])
    try:
        arguments.parse(signature.read(component), words)
        with contextlib.redirect_stdout(StringIO()):  # the help
            app = materialize_appdef(component, words)
    except arguments.HelpRequested:
        return
    except TorchXError as e:
        assert str(e)
        return
    except SystemExit as e:
        assert e.code == 0
        return
    assert appdef_from_dict(json.loads(json.dumps(appdef_to_dict(app)))) == app


# -- files -----------------------------------------------------------------------------------------


@_target
def config_file(data: bytes) -> None:
    """``.torchxconfig``: where the standard library's parser reads something, ours reads the same."""
    import configparser

    text = data.decode("utf-8", "replace")
    try:
        ours = ini.parse(StringIO(text), "x")
    except TorchXError as e:
        assert "x:" in str(e)
        ours = None
    standard = configparser.RawConfigParser(delimiters=("=", ":"), strict=True)
    standard.optionxform = lambda optionstr: optionstr  # type: ignore[method-assign]  # the documented way
    try:
        standard.read_file(StringIO(text))
    except (configparser.Error, AttributeError):  # AttributeError: of its own, before the first section
        return
    theirs = {name: dict(standard.items(name)) for name in standard.sections()}
    if "\0" in text:
        assert ours is None
        return
    assert ours is not None, theirs
    assert {name: {key: entry.text for key, entry in section.items()} for name, section in ours.items()} == theirs


@_target
def app(data: bytes) -> None:
    """The JSON of an app."""
    try:
        read = json.loads(_text(data))
    except (ValueError, RecursionError):
        return
    try:
        found = appdef_from_dict(read)
    except TorchXError as e:
        assert str(e)
        return
    text = json.dumps(appdef_to_dict(found))
    assert json.dumps(appdef_to_dict(appdef_from_dict(json.loads(text)))) == text


@_target
def error_file(data: bytes) -> None:
    """The error file of torchelastic: anything is a failure, or nothing at all."""
    text = _text(data)
    failure = parse_failure(text)
    if failure is not None:
        again = parse_failure(failure.to_structured_msg())
        assert again is not None or not failure.summary()


@_target
def state_file(data: bytes) -> None:
    """The state of a local job, cut off or damaged; with checksums made good, for damage that they do not show."""
    _read_state(data)
    head, _, rest = data.partition(b"\n")
    start = f"{statefile.MAGIC} {statefile.FORMAT} {len(head) + 40} ".encode()
    body = (start + head).ljust(len(head) + 40 - 9)
    file = body + b"%08x\n" % binascii.crc32(body)
    for line in rest.split(b"\n"):
        body = line[: statefile._LINE - 9].ljust(statefile._LINE - 9)
        file += body + b"%08x\n" % binascii.crc32(body)
    _read_state(file)
    word = _text(data)
    assert statefile.unescape(statefile.escape(word)) == word
    assert statefile.escape(word).isascii()


def _read_state(data: bytes) -> None:
    try:
        job = statefile.parse_state(data)
    except statefile.StateFileError:
        return
    assert len(job.positions()) == len(job.replicas)


@_target
def ignore_rules(data: bytes) -> None:
    """An ignore file, and a path: what is in a folder that is passed over is left out, too."""
    text, _, path = _text(data).rpartition("\n")
    try:
        rules = IgnoreRules.parse(text)
    except TorchXError as e:
        assert ":" in str(e)
        return
    path = "/".join(part for part in path.split("/") if part not in ("", ".", ".."))
    if not path:
        return
    parts = path.split("/")
    for n in range(1, len(parts)):
        folder = "/".join(parts[:n])
        if rules.ignores(folder) and not rules.may_include_below(folder):
            assert rules.ignores(path)


@_target
def docstring(data: bytes) -> None:
    """The docstring of a component: its help can be shown."""
    text = data.decode("utf-8", "replace")

    def component(name: str, count: int = 1) -> AppDef:
        raise NotImplementedError

    component.__doc__ = text
    description, helps = get_fn_docstring(component)
    assert isinstance(description, str)
    assert all(isinstance(key, str) and isinstance(line, str) for key, line in helps.items())
    assert "name" in format_help(component)


@_target
def component_file(data: bytes) -> None:
    """The source of a component file: findings, whatever it is."""
    with tempfile.NamedTemporaryFile(suffix=".py") as f:
        f.write(data)
        f.flush()
        for finding in linter.validate(f.name, "f"):
            assert finding.description


# -- logs ------------------------------------------------------------------------------------------


@_target
def logs(data: bytes) -> None:
    """Logs with lines that are too long, as they are and by what is in them; read at once, polled, from the end."""
    if len(data) < 4:
        return
    small = (
        mock.patch.object(local_logs.LogIterator, "block", 1 + data[0] % 7),
        mock.patch.object(lines, "LONG_LINE", 4 + data[1] % 16),
    )
    count, wanted, data = data[2] % 5, chr(data[3]), data[4:]
    with small[0], small[1], tempfile.NamedTemporaryFile() as f:
        f.write(data)
        f.flush()

        def log(regex: str | None = None) -> local_logs.LogIterator:
            query = LogQuery(regex=re.compile(re.escape(regex)) if regex else None)
            return local_logs.LogIterator("job", f.name, None, should_tail=False, query=query)

        assert b"".join(log().chunks()) == data
        assert b"".join(iter(log().poll, None)) == data
        last = b"".join(log().last(count).chunks())
        assert data.endswith(last)
        assert not count or last.removesuffix(b"\n").count(b"\n") < count
        shown = b"".join(log(wanted).chunks())
        for line in shown.removesuffix(b"\n").split(b"\n") if shown else ():
            assert line in data
            assert wanted in (line + b"\n").decode("utf-8", "replace")
        ends = shown.removesuffix(b"\n").split(b"\n")[-count:] if shown and count else []
        tail = b"".join(log(wanted).last(count).chunks())
        assert not count or tail.removesuffix(b"\n") == b"\n".join(ends)


@_target
def combined_log(data: bytes) -> None:
    """What the supervisor makes of two streams that grow by and by: nothing is lost, and no line end, or carriage return
    after a progress bar, is invented but where the other stream came in between."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(follow, "LONG_LINE", 24):
        follower = follow.Follower(folder, 0)
        written = {"stdout": b"", "stderr": b""}
        for i, piece in enumerate(data.split(_SEPARATOR)[:12]):
            name = "stderr" if piece[:1] > b"\x7f" else "stdout"
            written[name] += piece
            with open(os.path.join(folder, f"{name}.log"), "ab") as f:
                f.write(piece)
            if len(piece) % 3:
                follower.look(i + 1)
            elif len(piece) % 5 == 0:
                follower = follow.Follower.resumed(folder, i + 1)
        follower.look(20, last=True)
        combined = b""
        if os.path.exists(os.path.join(folder, "combined.log")):
            with open(os.path.join(folder, "combined.log"), "rb") as f:
                combined = f.read()
    total = sum(map(len, written.values()))
    if not (written["stdout"] and written["stderr"]):
        assert combined == written["stdout"] + written["stderr"]
    assert len(combined) >= total
    everything = b"".join(written.values())
    assert all(combined.count(end) >= everything.count(end) for end in (b"\n", b"\r"))
    assert sorted(combined.translate(None, b"\r\n")) == sorted(everything.translate(None, b"\r\n"))


def seeds() -> dict[str, list[bytes]]:
    """Where to begin: inputs that mean something."""
    role = Role("r", "img", entrypoint="e", args=["a", "${app_id}"], env={"A": "1"}, num_replicas=2)
    some = json.dumps(appdef_to_dict(AppDef("app", [role], {"k": "v"}))).encode()
    job = statefile.JobState({"app_id": "a b"}, [("r", 2), ("s", 1)])
    with tempfile.TemporaryDirectory() as folder:
        writer = statefile.StateWriter(os.path.join(folder, "state"), job)
        writer.flush()
        writer.close()
        with open(os.path.join(folder, "state"), "rb") as f:
            state = f.read()
    return {
        "handle": [b"local_cwd://torchx/app-1", b"@last/trainer/0,2-4", b"a://b/c/d/1-3"],
        "cfg": [
            b"text=a,number=1,real=1.5,flag=yes,items=a;\"b;c\",table=A:1;B:'x=y'",
            b'{"number": 3, "table": {"a": "b"}}',
        ],
        "moment": [b"1h30m", b"2026-11-21T08:00:00Z", b"2 days ago"],
        "mounts": [b"type=bind,src=/a,dst=/b,readonly", b"type=device\xffsrc=/dev/fuse\xfftype=volume,src=v,dst=/d"],
        "resource": [b"cpu=4,gpu=1,memMB=8192,devices=vpc/efa:1", b'{"cpu": 4, "memMB": 8192}'],
        "value": [
            bytes([i]) + text for i in range(len(_ANNOTATIONS)) for text in (b'a=1,b="2,3"', b"1", b'{"a": [1]}')
        ],
        "command_line": [
            b"\x00--name\xffx\xff--numbers\xff1,2\xff--table=a=1\xff--flag\xffmore",
            b"\x01-j\xff2x4\xff--script\xffa.py\xff--env\xffA=1,B=2\xff--\xff--lr",
            *(bytes([i]) + b"--help" for i in range(len(_COMPONENTS))),
            b"\x06--msg\xffhi\xff--num_replicas\xff2",
        ],
        "config_file": [b"[slurm]\ntime = 1:00\n; comment\ncomment: two\n  lines\n\n  more\n[DEFAULT]\na=b\n[x:y]\n"],
        "app": [some, b'{"version": 1, "name": "train"}'],
        "error_file": [b'{"message": {"message": "ValueError: x", "errorCode": 1, "extraInfo": {"timestamp": "7"}}}'],
        "state_file": [state, b" ".join(state.split(b" ")[3:])],
        "ignore_rules": [b"**/*.pyc\nbuild\n!build/keep\n[a-z]?\\*\nbuild/x/y", b"a/**/b\n!**\na/c/b"],
        "docstring": [
            b"Does it.\n\nArgs:\n    name: a name\n    count: how often\n",
            b"Does it.\n\n:param name: a name\n:param int count: how often\n",
            b"Does it.\n\nParameters\n----------\nname : str\n    a name\n",
        ],
        "component_file": [
            b"import torchx.specs as specs\ndef f(a: str, *b: int, c: 'dict[str, str] | None' = None) -> specs.AppDef:\n"
            b'    """Doc."""\n',
            b"from typing import Optional as O, List\nL = List[int]\ndef f(a: O[L]) -> 'AppDef': ...\n",
        ],
        "logs": [
            b"\x03\x04\x02aone\ntwo\nlonglonglonglonglonglonglonglong\nend",
            b"\x01\x01\x01x\r\n\xc3\xa9\xe6\xbc\xa2" * 9,
        ],
        "combined_log": [
            b"out\nnext\xff\x80err\n\xffa long line without an end that goes on and on\xff\x80x\n\xffy\n",
            b"\r\x00\xff\x80",
        ],
    }
