"""The same jobs on Podman's Docker-compatible service, which ``DOCKER_HOST`` names.

What Podman 4.3 itself does not do is left out: it tells times of logs in whole seconds, ignores GPU requests, makes
folders that are to be mounted, shows a container that it is about to start again as ended, stops seven containers at a
time (on two processors), and (with cgroups v1) does not see that memory ran out.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.docker import engine
from tests.backends.docker import test_docker_inside as inside
from tests.backends.docker import test_docker_jobs as jobs
from tests.backends.docker import test_docker_retries as retries
from tests.backends.docker import test_docker_watcher as watcher
from tests.backends.docker.engine_podman import Podman

test_echo = jobs.test_echo_in_eight_replicas_from_shell_to_shell
test_half_submitted = jobs.test_a_submission_that_fails_half_way_leaves_nothing
test_submitted_twice = jobs.test_submitting_twice_starts_once
test_traceback = jobs.test_the_failed_replica_is_named_with_its_traceback
test_error_file = jobs.test_torchelastic_error_file_is_read_out_of_the_container
test_removed = jobs.test_a_container_removed_behind_our_back
test_names = jobs.test_replicas_find_each_other_by_name
test_mounts = jobs.test_environment_mounts_and_limits_arrive
test_ports = jobs.test_ports_are_published
test_cancel = jobs.test_cancel_keeps_the_log_and_delete_removes_all
test_waiting = jobs.test_waiting_is_told_of_the_end


test_policy = retries.test_a_gang_starts_again_once_and_the_same_bug_ends_it
test_failed_replica = watcher.test_a_failed_replica_ends_the_others
test_elastic = watcher.test_an_elastic_role_goes_on
test_files_in_memory = inside.test_files_that_the_engine_does_not_see
test_files_of_a_user = inside.test_files_belong_to_who_runs_there
place = inside.place
users_image = inside.users_image
TestInside = inside.TestInsideDocker
attempts = watcher.attempts
TestRetries = watcher.TestRetries
TestWithoutWatcher = watcher.TestWithoutWatcher


class TestLogs(jobs.TestLogs):
    test_since_and_until_cut_between_lines = None


@pytest.fixture(scope="module")
def docker_image() -> Iterator[str]:
    """The test image on a Podman of these tests."""
    if os.geteuid():
        pytest.skip("only root can start Podman here")
    engine.STATE.mkdir(parents=True, exist_ok=True)
    podman = Podman(Path(tempfile.mkdtemp(prefix="podman-", dir=engine.STATE.parent)))
    try:
        podman.start()
        tag = engine.image(host=podman.host)
    except engine.Unavailable as e:
        podman.remove()
        pytest.skip(f"no Podman can be had: {e}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", podman.host)
        yield tag
    podman.remove()
