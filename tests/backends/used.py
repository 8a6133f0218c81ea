"""What a user asks about a job that costs something: the question before it, what it used, and the file for support."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

from tests.backends.shell import Shell

SECRET = "s3cret-of-the-test"


def told(shell: Shell, folder: Path, words: list[str]) -> None:
    """A job of one GPU for an hour is asked about; its usage is that of its scheduler's times; its report has no secret.

    Args:
        shell: its commands run in ``folder``.
        words: options of ``torchx run`` that choose the scheduler.
    """
    (folder / ".torchxconfig").write_text("[cli]\nmax_gpu_hours = 0.5\n[prices]\ngpu_hour = 3600\n")
    own = Shell(folder, {**shell.env, "TOKEN": SECRET})
    job = [*words, "--workspace=", "--gpu", "1", "--timeout", "1h", "--secret", "TOKEN", "utils.sh", "--"]
    job += ['echo token "$TOKEN"; sleep 2; echo nan >&2; exit 3']
    asked = own.start("run", *job)
    out, err = asked.communicate(timeout=120)
    assert asked.returncode == 2 and "1 GPU x 1 h = 1 GPU-hour" in err and "--yes" in err, (out, err)
    assert json.loads(own.torchx("list", "--json"))["runs"] == []
    handle = own.launch("--yes", *job)
    own.torchx("wait", handle, check=False)
    status = json.loads(own.torchx("status", handle, "--json"))
    (row,) = json.loads(own.torchx("usage", "--json", "--by", "scheduler"))["groups"]
    assert (row["runs"], row["key"]) == (1, status["scheduler"]), row
    assert 2 / 3600 <= row["gpu_hours"] <= 60 / 3600 and 2 <= row["cost"] <= 60, row
    own.torchx("report", handle, "-o", "r.tgz")
    with tarfile.open(folder / "r.tgz") as tar:
        found = {name: tar.extractfile(name).read().decode() for name in tar.getnames()}
    assert SECRET not in "".join(found.values())
    assert "token ********" in found["report/log.txt"] and "nan" in found["report/why.json"]
    for name, text in found.items():
        assert "Traceback" not in text, (name, text)
        if name.endswith(".json"):
            json.loads(text)
