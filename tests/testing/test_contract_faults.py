"""The contract finds every fault that a backend may have, and no other test is upset by it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HOSTILE = {f"test_names_obey_the_rule[name{i}]" for i in range(9)}
WELL_NAMED = {"test_names_obey_the_rule[name1]", "test_names_obey_the_rule[name3]"}  # for this rule they are
MOUNTS = {f"test_what_it_cannot_do_is_refused[mount {kind}]" for kind in ("bind", "volume", "device")}
RETRIES = {f"test_retries_are_honoured_or_refused[{policy}]" for policy in ("APPLICATION", "REPLICA", "ROLE")}

FAULTS: dict[str, set[str]] = {
    "Good": set(),
    "RawStates": {"test_every_raw_state_maps"},
    "WrongState": {"test_every_raw_state_maps"},
    "ChangesTheApp": {"test_dryrun_leaves_the_app_alone"},
    "DiffersEachTime": {"test_dryrun_is_deterministic_but_for_the_id"},
    "LeavesMacros": {"test_macros_are_substituted", "test_logs"},
    "LeavesMacrosInMetadata": {"test_macros_are_substituted"},
    "TakesTheNameAsId": {"test_ids_differ", *(HOSTILE - WELL_NAMED)},
    "InventsJobs": {"test_unknown_job", "test_a_job_runs_and_is_remembered"},
    "RaisesForUnknownJobs": {"test_unknown_job", "test_a_job_runs_and_is_remembered"},
    "ListNeedsOptions": {"test_list_without_options", "test_a_job_runs_and_is_remembered"},
    "CancelsOnce": {"test_cancel_twice_is_quiet"},
    "CancelRewritesHistory": {"test_a_job_runs_and_is_remembered"},
    "ClaimsToDelete": {"test_a_job_runs_and_is_remembered"},
    "ClaimsSince": {"test_log_query_is_honoured_or_refused"},
    "ClaimsCombined": {"test_logs"},
    "ClaimsLogs": {"test_logs_are_refused_when_there_are_none", "test_logs_of_an_unknown_job"},
    "EmptyLogOfAnybody": {"test_logs_of_an_unknown_job"},
    "IgnoresMounts": {*MOUNTS, *RETRIES, "test_what_it_cannot_do_is_refused[elastic]"},
    "GoesThroughAShell": {"test_hostile_arguments_arrive_as_they_are"},
    "KeepsTheReason": {"test_a_failure_is_told"},
    "StripsLines": {"test_logs", "test_log_query_is_honoured_or_refused"},
    "OptionWithoutHelp": {"test_options_explain_themselves"},
    "DescribesOneByOne": {"test_unknown_job", "test_a_job_runs_and_is_remembered"},
}


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Backend to the tests of the contract that it fails: all of them in one run."""
    folder = tmp_path_factory.mktemp("faulty")
    # beside its root folder: pytest reads all folders between the two
    faulty = shutil.copy(Path(__file__).with_name("faulty.py"), folder)
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "--tb=no",
        "-rfE",
        "--noconftest",
    ]
    done = subprocess.run(
        [*argv, "-c", os.devnull, "--rootdir", str(folder), "--basetemp", str(folder / "tmp"), faulty],
        env={**os.environ, "FAULTY_FOLDER": str(folder), "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    found: dict[str, set[str]] = {}
    for line in done.stdout.splitlines():
        if line.startswith(("FAILED", "ERROR")):
            backend, test = line.split(" - ")[0].split(" ", 1)[1].split("::")[-2:]
            found.setdefault(backend.removeprefix("Test"), set()).add(test)
    assert " passed" in done.stdout, done.stdout + done.stderr
    return found


@pytest.mark.slow
@pytest.mark.parametrize("backend", FAULTS)
def test_a_fault_is_found(backend: str, failed: dict[str, set[str]]) -> None:
    """The backend with this fault fails just the tests that are about it; without a fault it fails none."""
    assert failed.get(backend, set()) == FAULTS[backend]


def test_every_fault_is_listed(failed: dict[str, set[str]]) -> None:
    """No backend of the file is forgotten here."""
    from tests.testing import faulty

    assert {n.removeprefix("Test") for n in vars(faulty) if n.startswith("Test")} == set(FAULTS)
    assert failed.keys() <= FAULTS.keys()
