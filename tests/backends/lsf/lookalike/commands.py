"""The commands as a shell sees them: their options, what they print, and their exit codes."""

from __future__ import annotations

import getpass
import json
import os
import select
import shlex
import signal
import socket
import sys
from typing import Any

from .show import show_history, show_jobs

USAGE = """\
Usage: bsub [-h] [-V] [-H] [-x] [-r | -rn] [-N] [-B] [-I | -Ip | -Is | -K]
            [-q queue_name ...] [-m host_name[+[pref_level]] ...] [-n min_processors[,max_processors]]
            [-J job_name | -J "job_name[index_list]%job_slot_limit"] [-P project_name]
            [-w depend_cond] [-o out_file] [-e err_file] [-W run_limit] [-R res_req] [command [argument ...]]
"""

NAMES = (
    *("bsub", "bjobs", "bhist", "bpeek", "bkill", "brequeue", "bstop", "bresume"),
    *("bgadd", "bgdel", "bjgroup", "bhosts", "bqueues", "bparams", "badmin", "lsid"),
)

# Options that take a value. Of bsub those that are here are understood; others are refused.
_VALUED = {
    "bsub": {
        *("-J", "-Jd", "-g", "-w", "-o", "-oo", "-e", "-eo", "-q", "-P", "-m", "-M", "-W", "-n", "-R"),
        *("-app", "-gpu", "-env", "-Q", "-cwd", "-G", "-sla", "-sp", "-U", "-We", "-L", "-a", "-i", "-wa", "-wt"),
    },
    "bjobs": {"-o", "-g", "-J", "-q", "-u", "-m", "-P"},
    "bkill": {"-g", "-J", "-q", "-u", "-s", "-m", "-C"},
    "bhist": {"-n", "-u", "-J", "-P"},
    **{name: {"-g", "-J", "-q", "-u", "-m"} for name in ("bresume", "bstop", "brequeue", "bpeek")},
}
PATIENCE_S = 1.0  # until a command says that the daemon does not answer
HANGS = "batch system daemon not responding ... still trying"
_FLAGS = {"bsub": {"-r", "-rn", "-x", "-H", "-N", "-B", "-K", "-ti", "-Ne"}}
_NOT_PASSED_ON = ("LSB_", "LS_")


def main(name: str, argv: list[str]) -> int:
    """Runs one command."""
    if name == "badmin" and argv in (["hang"], ["go"]):
        return _stop(hang=argv == ["hang"])
    if argv == ["-V"]:
        print("A look-alike of IBM Spectrum LSF 10.1, for torchx's tests. It is not LSF.", file=sys.stderr)
        return 0
    if name == "lsid":
        config = _config()
        print("A look-alike of IBM Spectrum LSF 10.1, for torchx's tests. It is not LSF.\n")
        print(f"My cluster name is {config['name']}\nMy master name is {config['hosts'][0]['name']}")
        return 0
    try:
        options, words = _parse(name, argv)
    except ValueError as e:
        print(e, file=sys.stderr)
        return 255
    request: dict[str, Any] = {
        "command": name,
        "options": options,
        "ids": words,
        "user": getpass.getuser(),
        "host": socket.gethostname(),
        "cwd": os.getcwd(),
    }
    if name == "bsub":
        if not words and not _from_stdin(options, words):
            print("Empty job. Job not submitted.", file=sys.stderr)
            return 255
        # As bsub does: the words are put together again, for a shell on the execution host.
        request.update(job=" ".join(words), env=_environment(options))
    answer = _ask(request)
    for line in answer.get("out", []):
        print(line)
    sys.stdout.flush()
    for line in answer.get("err", []):
        print(line, file=sys.stderr)
    if name == "bjobs" and "rows" in answer:
        return show_jobs(answer["rows"], answer["missing"], options)
    if name == "bhist" and "rows" in answer:
        return show_history(answer, words)
    return int(answer.get("code", 0))


def _parse(name: str, argv: list[str]) -> tuple[dict[str, str], list[str]]:
    """Options, then words: for bsub the first word begins the job."""
    options: dict[str, str] = {}
    words = list(argv)
    rest: list[str] = []
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            rest.append(word)
            if name == "bsub":
                return options, [*rest, *words]
        elif word in _VALUED.get(name, set()):
            if not words:
                raise ValueError(f"{name}: option {word} requires a value")
            value = words.pop(0)
            options[word] = f"{options[word]} {value}" if word == "-R" and word in options else value
        elif name == "bsub" and word not in _FLAGS["bsub"]:
            raise ValueError(f"bsub: illegal option -- {word[1]}\n{USAGE}")
        else:
            options[word] = ""
    return options, rest


def _from_stdin(options: dict[str, str], words: list[str]) -> bool:
    """A job script: its ``#BSUB`` lines are options, too; those of the command line are stronger."""
    text = sys.stdin.read()
    for line in text.splitlines():
        if line.startswith("#BSUB"):
            found, _ = _parse("bsub", shlex.split(line[5:]))
            for option, value in found.items():
                options.setdefault(option, value)
    words.append(text)
    return bool(text.strip())


def _environment(options: dict[str, str]) -> dict[str, str]:
    every = {k: v for k, v in os.environ.items() if not k.startswith(_NOT_PASSED_ON)}
    spec = options.get("-env", "all")
    if spec.strip() == "none":
        return {"PATH": os.defpath, "HOME": every.get("HOME", "/")}
    parts = [p.strip() for p in spec.split(",")]
    chosen = every if parts[0] == "all" else {}
    for part in parts:
        variable, equals, value = part.partition("=")
        if equals:
            chosen[variable] = value.strip("'")
        elif part.startswith("~"):
            chosen.pop(part[1:], None)
        elif part in every:
            chosen[part] = every[part]
    return chosen


def _config() -> dict[str, Any]:
    with open(os.path.join(os.environ["LSF_ENVDIR"], "lsf.conf")) as file:
        found: dict[str, Any] = json.load(file)
    return found


def _ask(request: dict[str, Any]) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as s:
        try:
            s.connect(os.path.join(os.environ["LSF_ENVDIR"], "mbatchd.sock"))
        except OSError:
            print(HANGS, file=sys.stderr, flush=True)
            while True:  # as LSF's commands do
                signal.pause()
        with s.makefile("rwb") as stream:
            stream.write(json.dumps(request).encode() + b"\n")
            stream.flush()
            if not select.select([s], [], [], PATIENCE_S)[0]:
                print(HANGS, file=sys.stderr, flush=True)
            answer: dict[str, Any] = json.loads(stream.readline())
            return answer


def _stop(*, hang: bool) -> int:
    """``badmin hang`` and ``badmin go``, which are not LSF's: the daemon answers nobody, or goes on."""
    with open(os.path.join(os.environ["LSF_ENVDIR"], "mbatchd.pid")) as file:
        os.kill(int(file.read()), signal.SIGSTOP if hang else signal.SIGCONT)
    return 0
