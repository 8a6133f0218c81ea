"""Hostile words in every field of a job go through the real ``sbatch``: nothing executes that was not asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.backends.slurm.conftest import ended, lines
from torchx.errors import TorchXError
from torchx.schedulers.slurm_scheduler import SlurmScheduler
from torchx.specs import AppDef, AppState, Resource, Role, macros

HOSTILE = [
    "$(touch {mark})",
    "`touch {mark}`",
    "'; touch {mark}; '",
    '"; touch {mark}; "',
    "a\nb\ntouch {mark}",
    "#SBATCH --wrap='touch {mark}'",
    "\\'; touch {mark} #",
    "${{IFS}}&& touch {mark}",
    "| touch {mark} &",
    "%j%x;touch {mark}",
    "@TORCHX_APP_ID@$(touch {mark})",
    "--wrap=touch {mark}",
    "\x01\x7f é日\x1f;touch {mark}",
]


def test_every_field_of_the_appdef(scheduler: SlurmScheduler, tmp_path: Path) -> None:
    """Names, arguments, environment, images and metadata arrive as they are, or are refused; no mark is made."""
    mark = tmp_path / "mark"
    words = [word.format(mark=mark) for word in HOSTILE]
    show = (
        'printf "%s\\0" "$@"; for i in $(seq 0 '
        + str(len(words) - 1)
        + '); do n="V$i"; eval "printf \'%s\\0\' \\"\\$$n\\""; done'
    )
    roles = [
        Role(
            name=f"role {word}"[:60],
            image=word,
            entrypoint="sh",
            args=["-c", show, "sh", *words],
            env={f"V{i}": text for i, text in enumerate(words)} | {f"odd name {word[:20]}".replace("=", ""): word},
            metadata={word: {word: word}},
            port_map={word: 1},
            resource=Resource(1, 0, 50, capabilities={word: word}, tags={word: word}),
        )
        for word in words[:4]
    ]
    app_id = scheduler.submit(AppDef("x; touch " + str(mark), roles, metadata={words[0]: words[1]}), {})
    done = ended(scheduler, app_id)
    assert done.state is AppState.SUCCEEDED, done.msg
    for role in roles:
        seen = "".join(lines(scheduler, app_id, role=role.name, streams=None)).split("\0")[:-1]
        assert seen[: len(words)] == [word.replace("@TORCHX_APP_ID@", app_id) for word in words]
        assert seen[len(words) :] == [word.replace("@TORCHX_APP_ID@", app_id) for word in words]
    assert not mark.exists()
    assert [role.name for role in done.roles] == [role.name for role in roles]
    scheduler.delete(app_id)


@pytest.mark.parametrize(
    "option", ["comment", "mail-user", "partition", "time", "constraint", "nodelist", "qos", "account"]
)
def test_every_option(scheduler: SlurmScheduler, tmp_path: Path, option: str) -> None:
    """A hostile value of an option is taken as a value or refused; it is never run, nor read as another option."""
    mark = tmp_path / "mark"
    for word in HOSTILE:
        role = Role("r", "", entrypoint="true", resource=Resource(1, 0, 50))
        cfg: dict[str, Any] = {option: word.format(mark=mark), "extra": ["--hold"]}
        try:
            app_id = scheduler.submit(AppDef("job", [role]), cfg)
        except TorchXError:
            continue
        scheduler.delete(app_id)
    assert not mark.exists()


def test_an_entrypoint_with_spaces_and_a_job_dir_with_quotes(scheduler: SlurmScheduler, tmp_path: Path) -> None:
    """Paths with any character work."""
    folder = tmp_path / 'it\'s a "dir" %j $(id)'
    folder.mkdir()
    program = folder / "run me;"
    program.write_text('#!/bin/sh\npwd; echo "$1"\n')
    program.chmod(0o755)
    role = Role("r", str(folder), entrypoint=str(program), args=[macros.app_id], resource=Resource(1, 0, 50))
    app_id = scheduler.submit(AppDef("job", [role]), {"job_dir": str(tmp_path / "job's dir %j")})
    assert ended(scheduler, app_id).state is AppState.SUCCEEDED
    assert lines(scheduler, app_id) == [f"{folder}\n", f"{app_id}\n"]
    scheduler.delete(app_id)
