"""Why a replica failed, read out of what it left behind; the corpus of real outputs has a test of its own."""

from __future__ import annotations

import pytest

from torchx.schedulers.kit.classes import CLASSES, classify, is_aftermath
from torchx.schedulers.kit.failures import Evidence, read_failure, signal_name
from torchx.specs.failures import Failure, parse_failure


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (9, "SIGKILL"),
        (-11, "SIGSEGV"),
        (137, "SIGKILL"),
        (139, "SIGSEGV"),
        (134, "SIGABRT"),
        (143, "SIGTERM"),
        (-35, "signal 35"),
        (128, ""),
        (193, ""),
        (255, ""),
        (0, ""),
    ],
)
def test_names_of_signals(number: int, name: str) -> None:
    """By number, as subprocess has it and as a shell has it; what is no signal has no name."""
    assert signal_name(number) == name


@pytest.mark.parametrize("code", [137, -9])
def test_killed_without_a_word(code: int) -> None:
    """The usual cause is said as a guess, and its class is not guessed."""
    failure = read_failure(Evidence(), exit_code=code, ended=7.0)
    assert failure.summary() == "killed by SIGKILL (often: out of memory)"
    assert (failure.exit_code, failure.signal, failure.kind, failure.timestamp) == (None, "SIGKILL", "unknown", 7.0)


def test_what_the_system_said_comes_first() -> None:
    """A program that is killed cannot know why."""
    said = "slurmstepd: error: *** STEP 12.0 ON n1 CANCELLED AT 2026-11-22T10:00:00 DUE TO TIME LIMIT ***"
    assert classify(Failure("ValueError: x", 1), said) == ("timeout", said)


def test_who_it_was_is_written_and_read_back() -> None:
    """A status page need not guess the culprit again."""
    failure = Failure("x", 3, rank=0, kind="error", evidence="x", role="trainer", replica=0, host="n1")
    assert parse_failure(failure.to_structured_msg()) == failure
    assert '"class": "error"' in failure.to_structured_msg()


def test_keys_of_others_in_the_error_file_are_ignored() -> None:
    """As are ours with values that make no sense."""
    failure = parse_failure('{"message": "x", "rank": "one", "role": 3, "replica": true, "class": "oom", "new": [1]}')
    assert failure == Failure("x", kind="oom")


@pytest.mark.parametrize(
    "message",
    [
        "ValueError: NCCL timed out because of NODE_FAIL",
        "requests.exceptions.ConnectionError: HTTPConnectionPool(host='api', port=80): Connection refused",
        "TimeoutError: the label service did not answer",
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/preempted'",
        "node failure: no data",
    ],
)
def test_a_users_bug_is_never_transient(message: str) -> None:
    """Whatever words are in it."""
    failure = Failure(message, 1)
    assert classify(failure)[0] == "error"
    assert not is_aftermath(failure)


def test_each_class_is_one_of_the_words() -> None:
    """No table names a class that the documents do not."""
    from torchx.schedulers.kit import classes

    tables = {*classes._SAID, *classes._BY_SIGNAL.values(), *(kind for kind, _ in (*classes._RAISED, *classes._LINES))}
    assert tables == set(CLASSES)
