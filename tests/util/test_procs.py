"""Programs, resources of this machine, session ids and installed files."""

from __future__ import annotations

import os
import re

import pytest

from torchx.compat.io import get_abspath, read_conf_file
from torchx.util.machine import cpu_count, gpu_ids, memory_mb
from torchx.util.procs import find_program
from torchx.util.session import TORCHX_INTERNAL_SESSION_ID, get_session_id_or_create_new, get_torchx_session_id


def _program(path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def test_a_program_is_found_as_a_shell_would(tmp_path) -> None:
    """The first match on PATH counts; a name with a slash is relative to the working directory; folders are skipped."""
    first, second = _program(tmp_path / "a" / "tool"), _program(tmp_path / "b" / "tool")
    (tmp_path / "a" / "dir").mkdir()
    path = f"{tmp_path}/a:{tmp_path}/b"
    assert find_program("tool", path, "/") == first
    assert find_program("tool", f"{tmp_path}/none:{tmp_path}/b", "/") == second
    assert find_program("./b/tool", "", str(tmp_path)) == second
    assert find_program("tool", "a", str(tmp_path)) == first
    assert find_program("dir", path, "/") is None
    assert find_program("nope", path, "/") is None


def test_what_the_machine_has() -> None:
    """The machine has CPUs and memory."""
    assert cpu_count() >= 1
    assert memory_mb() > 64


@pytest.mark.parametrize(("value", "ids"), [("0,2", ["0", "2"]), ("", []), ("-1", []), ("GPU-a, 3", ["GPU-a", "3"])])
def test_visible_gpus_decide(monkeypatch, value: str, ids: list[str]) -> None:
    """CUDA_VISIBLE_DEVICES determines the available GPUs."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert gpu_ids() == ids


@pytest.mark.parametrize(
    ("script", "count"),
    [
        ("echo 'GPU 0: A100 (UUID: x)'; echo '  MIG 1g.5gb Device 0'; echo 'GPU 1: A100'", 2),
        ("echo broken >&2; exit 9", None),
    ],
    ids=["two", "broken"],
)
def test_nvidia_smi_is_asked(monkeypatch, tmp_path, script: str, count: int | None) -> None:
    """The list of nvidia-smi counts; if it fails, that of the driver; it never raises."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path) + os.pathsep + "/bin:/usr/bin")
    found = gpu_ids()
    if count is None:
        assert isinstance(found, list)
    else:
        assert found == [str(i) for i in range(count)]


def test_a_session_id_is_made_once(monkeypatch) -> None:
    """The session id is a UUID that child processes inherit."""
    monkeypatch.setenv(TORCHX_INTERNAL_SESSION_ID, "")
    assert get_torchx_session_id() is None
    made = get_session_id_or_create_new()
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", made)
    assert get_session_id_or_create_new() == get_torchx_session_id() == os.environ[TORCHX_INTERNAL_SESSION_ID] == made


def test_installed_files() -> None:
    """Paths are relative to the package, and files are read from there."""
    assert os.path.isfile(get_abspath("settings.py"))
    assert read_conf_file("py.typed") == ""
    with pytest.raises(OSError):
        read_conf_file("no-such.conf")
