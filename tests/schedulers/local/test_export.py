"""An exported local job follows the retry rules of the job itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from torchx.runner import get_runner
from torchx.schedulers.local.export import export
from torchx.specs.api import AppDef, RetryPolicy, Role
from torchx.specs.wishes.setup import SETUP
from torchx.specs.wishes.timeouts import TIMEOUT


def _role(tmp_path: Path, name: str, *, good: str, **role: object) -> Role:
    """Each replica counts its starts in a file `NAMEk` and succeeds if `good` is true of `$n`, that number."""
    code = f'f={tmp_path}/{name}${{replica_id}}; echo >>"$f"; n=$(wc -l <"$f"); k=${{replica_id}}; {good}'
    return Role(name, "", entrypoint="sh", args=["-c", code], **role)  # type: ignore[arg-type]


def _starts(tmp_path: Path, *roles: Role, before: str = "", **metadata: str) -> tuple[int, dict[str, int]]:
    """The exit code of the exported script, and how many times it started each replica."""
    folder = tmp_path / "exported"
    (folder / "code").mkdir(parents=True)
    with get_runner() as runner:
        for name, text in export(
            runner.dryrun(AppDef("job", list(roles), metadata), "local_cwd").request
        ).files.items():
            (folder / name).write_text(f"{before}\n{text}")
    done = subprocess.run(["bash", str(folder / "job.sh")], capture_output=True, timeout=60, check=False)
    return done.returncode, {p.name: p.read_text().count("\n") for p in tmp_path.iterdir() if p.is_file()}


def test_each_role_has_retries_of_its_own(tmp_path) -> None:
    """The retry of a replica does not use up that of the role with the same number."""
    replicas = _role(
        tmp_path,
        "a",
        good="[ $k = 0 ] || [ $n = 2 ]",
        num_replicas=2,
        max_retries=1,
        retry_policy=RetryPolicy.REPLICA,
    )
    good = f"until [ $(cat {tmp_path}/a1 | wc -l) = 2 ]; do sleep 0.02; done; [ $n = 2 ]"
    whole = _role(tmp_path, "b", good=good, max_retries=1, retry_policy=RetryPolicy.ROLE)
    assert _starts(tmp_path, replicas, whole) == (0, {"a0": 1, "a1": 2, "b0": 2})


@pytest.mark.parametrize("policy", [RetryPolicy.APPLICATION, RetryPolicy.ROLE])
def test_an_elastic_role_goes_on_before_it_is_restarted(tmp_path, policy) -> None:
    """While enough replicas are left, a failure of another one restarts nothing."""
    role = _role(tmp_path, "a", good="[ $k = 0 ]", num_replicas=2, min_replicas=1, max_retries=1, retry_policy=policy)
    assert _starts(tmp_path, role) == (0, {"a0": 1, "a1": 1})


def test_each_attempt_has_the_whole_time(tmp_path) -> None:
    """The clock of the time limit begins when all replicas are started, whatever was before."""
    good = _role(tmp_path, "a", good="sleep 1.5")
    assert _starts(tmp_path, good, before="SECONDS=100", **{TIMEOUT: "9s"}) == (0, {"a0": 1})
    (tmp_path / "over").mkdir()
    endless = _role(tmp_path / "over", "b", good="exec sleep 60")
    assert _starts(tmp_path / "over", endless, **{TIMEOUT: "1s"}) == (124, {"b0": 1})


@pytest.mark.parametrize(
    ("setup", "code", "starts"), [("say() { echo 'x $y'; }; export A=$(say)", 0, 1), ("nope", 127, 0)]
)
def test_the_set_up_comes_before_the_program(tmp_path, setup: str, code: int, starts: int) -> None:
    """With its environment; if it fails, the program does not start."""
    role = _role(tmp_path, "a", good="[ \"$A\" = 'x $y' ]")
    assert _starts(tmp_path, role, **{SETUP: setup}) == (code, {"a0": starts} if starts else {})
