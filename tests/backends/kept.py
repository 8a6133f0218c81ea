"""What `[logs] keep = end` promises on every backend: the logs of a run are there after its scheduler has lost them."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable
from pathlib import Path

from tests.backends.shell import Shell

SECRET = "s3cret-of-the-test"
SAYS = 'echo step ${replica_id}; echo token "$TOKEN"; echo nan >&2; exit 3'


def outlive(shell: Shell, folder: Path, words: list[str], lose: Callable[[str], object]) -> None:
    """A job of two replicas that fails; then its scheduler loses it; then its logs are read.

    Args:
        shell: its commands run in ``folder``.
        words: options of ``torchx run`` and ``utils.sh``: the scheduler, the image.
        lose: takes the job with this handle from its scheduler, as a user or an administrator does.
    """
    (folder / ".torchxconfig").write_text(f"[logs]\nkeep = end\nto = {folder}/kept\n")
    own = Shell(folder, {**shell.env, "TOKEN": SECRET})
    handle = own.launch(
        *words[:2], "--workspace=", "--secret", "TOKEN", "utils.sh", *words[2:], "--num_replicas", "2", "--", SAYS
    )
    try:
        own.torchx("wait", handle, check=False)
        deadline = time.monotonic() + 120
        while len(files := sorted(Path(folder / "kept").rglob("*.log.gz"))) < 2:
            assert time.monotonic() < deadline, files
            time.sleep(0.1)
    finally:
        lose(handle)
    for k, file in enumerate(files):
        text = gzip.decompress(file.read_bytes()).decode()
        assert SECRET not in text and "token ********" in text, text
        assert f" step {k}\n" in text and " nan\n" in text, text
    show = Shell(folder, {**shell.env})
    kept = show.torchx("log", handle, "--regex", "step|token").splitlines()
    assert kept == [f"sh/{k} {line}" for k in (0, 1) for line in (f"step {k}", "token ********")], kept
    found = [json.loads(row) for row in show.torchx("log", "--search", "step 1", "--json").splitlines()]
    assert [(row["handle"], row["role"], row["replica"], row["line"]) for row in found] == [(handle, "sh", 1, "step 1")]
