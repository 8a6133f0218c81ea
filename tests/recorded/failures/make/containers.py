"""Containers of a real Docker engine; needs ``python -m tests.backends.parts up docker``."""

from __future__ import annotations

from tests.recorded.failures.make.cases import Case

IMAGE = "torchx-test/python:1"
RUN = """\
docker create --name failure-@PORT@ {options} {image} {command} > /dev/null || exit
docker start -a failure-@PORT@; code=$?
docker inspect -f '{{{{if .State.OOMKilled}}}}OOMKilled{{{{end}}}}{{{{.State.Error}}}}' failure-@PORT@ > said
docker rm -f failure-@PORT@ > /dev/null
exit $code
"""
PULL = "docker pull -q {} 2> said; code=$?; exit $code\n"
EAT = "x = [bytearray(1 << 22) for _ in range(9999)]"
SHM = "f = open('/dev/shm/a', 'w+b'); f.truncate(1 << 24); import mmap; mmap.mmap(f.fileno(), 1 << 24)[:] = b'x' * (1 << 24)"


def run(command: str, options: str = "", image: str = IMAGE) -> str:
    """A script that runs a container, and writes down what the engine says of its end."""
    return RUN.format(options=options, image=image, command=command)


def python(code: str) -> str:
    return f'python3 -c "{code}"'


def cases() -> list[Case]:
    rows: list[tuple[str, str, str, tuple[str, ...], str]] = [
        ("oom", run(python(EAT), "--memory 64m"), "oom", (), "SIGKILL"),
        ("oom-child", run(f"sh -c 'echo loading; {python(EAT)}; exit 1'", "--memory 64m"), "oom", (), ""),
        ("value", run(python("raise ValueError('bad lr')")), "error", ("ValueError: bad lr",), ""),
        ("exit-3", run("sh -c 'echo no data in /data >&2; exit 3'"), "error", ("no data in /data",), ""),
        ("exit-stdout", run("sh -c 'echo fatal: no data; exit 3'"), "error", ("fatal: no data",), ""),
        ("segv", run(python("import ctypes; ctypes.string_at(0)")), "error", (), "SIGSEGV"),
        ("abort", run(python("import os; os.abort()")), "error", (), "SIGSEGV"),
        ("kill", run(python("import os; os.kill(os.getpid(), 9)"), "--init"), "unknown", (), "SIGKILL"),
        ("no-program", run("nosuch --version"), "error", (), ""),
        ("not-executable", run("/etc/passwd"), "error", (), ""),
        ("is-folder", run("/tmp"), "error", (), ""),
        ("no-folder", run("true", "--workdir /etc/passwd/x"), "error", (), ""),
        ("no-gpu", run("true", "--gpus all"), "error", (), ""),
        ("in-shell", run("sh -c 'nosuchtool; exit $?'"), "error", ("nosuchtool",), ""),
        ("read-only", run("sh -c 'set -e; echo x > /etc/x'", "--read-only"), "error", ("Read-only file system",), ""),
        ("no-user", run("true", "--user nosuchuser"), "error", (), ""),
        ("shm", run(python(SHM), "--shm-size 1m"), "error", (), "SIGBUS"),
        ("no-fork", run("sh -c 'sleep 1 & sleep 1 & sleep 1 & sleep 1; wait'", "--pids-limit 2"), "error", ("ork",), ""),
        ("pull-no-host", PULL.format("no-such-registry.invalid/x:1"), "image", (), ""),
        ("pull-refused", PULL.format("localhost:9/x:1"), "image", (), ""),
        ("pull-no-image", PULL.format("127.0.0.1:5000/nosuch:1"), "image", (), ""),
        ("pull-name", PULL.format("UPPER/x:1"), "image", (), ""),
    ]  # fmt: skip
    given = [Case(id=i, by="sh", program=p, kind=k, said=s, signal=signal) for i, p, k, s, signal in rows]
    format_ = "printf '\\177ELF junk' > a && chmod +x a\n" + run("/a", '-v "$PWD/a:/a"')
    told = run(python("import time; time.sleep(60)"), "--init").replace("docker start -a", "(sleep 2; docker {} failure-@PORT@)"
                                                                       " > /dev/null & docker start -a")  # fmt: skip
    return [
        *given,
        Case(id="exec-format", by="sh", program=format_, kind="image"),
        Case(id="stop", by="sh", program=told.replace("docker {}", "docker stop"), kind="cancelled", signal="SIGTERM",
             aftermath=True),
        Case(id="killed", by="sh", program=told.replace("docker {}", "docker kill"), kind="unknown", signal="SIGKILL"),
    ]  # fmt: skip
