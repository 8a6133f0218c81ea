"""Supervisors in reserve: one reads at a time, in turn, and none without a guardian."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from tests.supervisor.forks import Fork, eventually
from torchx.supervisor.reserve import Reserve


class Member:
    """A fork that does what it is asked with its part of the reserve."""

    def __init__(self, reserve: Reserve) -> None:
        self._orders, orders = os.pipe()[::-1]
        answers, self._answers = os.pipe()[::-1]

        def work() -> None:
            while order := os.read(orders, 100):
                name, _, argument = order.decode().partition(" ")
                os.write(answers, _call(reserve, name, argument).encode() + b"\n")

        self.fork = Fork(work)
        os.close(orders)
        os.close(answers)

    def ask(self, order: str) -> None:
        os.write(self._orders, order.encode())

    def answer(self) -> str:
        return os.read(self._answers, 100).decode().rstrip("\n")

    def does(self, order: str) -> str:
        self.ask(order)
        return self.answer()

    def close(self) -> None:
        os.close(self._orders)
        os.close(self._answers)
        self.fork.kill()


def _call(reserve: Reserve, name: str, argument: str) -> str:
    def read(fd: int) -> Any:
        word = os.read(fd, 1).decode()
        if word == "!":
            reserve.guardian = (1, 1)  # it dies just now
        return {"word": word} if word else None

    if name == "next_request":
        return str(reserve.next_request(read))
    return str(getattr(reserve, name)(*[argument] if argument else []))


class World:
    def __init__(self) -> None:
        requests, self.requests = os.pipe()
        self.answers, answers = os.pipe()
        self.news, news = os.pipe()
        self.reserve = Reserve(requests, answers, news, (os.getpid(), 0))
        self.members: list[Member] = []

    def member(self) -> Member:
        self.members.append(Member(self.reserve))
        return self.members[-1]

    def holder(self, byte: int) -> int:
        """The process that has locked a byte; 0 when nobody has."""
        assert self.reserve._locks is not None
        asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
        kind, _, _, _, pid = struct.unpack("hhqqi4x", fcntl.fcntl(self.reserve._locks, fcntl.F_GETLK, asked))
        return 0 if kind == fcntl.F_UNLCK else pid

    def close(self) -> None:
        for member in self.members:
            member.close()
        self.reserve.leave()
        for fd in (self.requests, self.answers, self.news):
            os.close(fd)


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


def test_one_reads_and_the_next_waits_for_its_turn(world) -> None:
    """The second reads only after the first has let it, each gets a request of its own, and they take turns again."""
    first, second = world.member(), world.member()
    first.ask("next_request")
    eventually(lambda: world.holder(0) == first.fork.pid)
    second.ask("next_request")
    os.write(world.requests, b"a")
    assert first.answer() == "{'word': 'a'}"
    assert world.holder(0) == first.fork.pid
    assert world.holder(1) == world.holder(2) == 0  # no other byte is locked
    first.does("let_next_read")
    eventually(lambda: world.holder(0) == second.fork.pid)
    assert first.does("rejoin") == "True"
    assert world.holder(1) == first.fork.pid and world.holder(2) == 0
    first.ask("next_request")
    os.write(world.requests, b"b")
    assert second.answer() == "{'word': 'b'}"
    assert world.holder(1) == first.fork.pid
    second.does("let_next_read")
    eventually(lambda: world.holder(0) == first.fork.pid)
    eventually(lambda: world.holder(1) == 0)
    os.write(world.requests, b"c")
    assert first.answer() == "{'word': 'c'}"


def test_there_are_seven_places(world) -> None:
    """The eighth that would come back is sent home; a place is free again when its process has died."""
    members = [world.member() for _ in range(8)]
    assert [member.does("rejoin") for member in members] == ["True"] * 7 + ["False"]
    assert [world.holder(byte) for byte in range(9)] == [0, *(m.fork.pid for m in members[:7]), 0]
    members[3].fork.kill()
    assert members[7].does("rejoin") == "True"
    assert world.holder(4) == members[7].fork.pid


def test_what_the_guardian_hears(world) -> None:
    """Pid and folder of a job that was taken, the pid alone of one that is free again."""
    member = world.member()
    assert member.does("report /a/b c") == "True"
    assert os.read(world.news, 100) == b"%d /a/b c\0" % member.fork.pid
    assert member.does("rejoin") == "True"
    assert os.read(world.news, 100) == b"%d\0" % member.fork.pid


def test_nobody_listens(world) -> None:
    """Without a guardian a job is not taken, and nobody comes back."""
    broken = os.pipe()
    os.close(broken[0])
    world.reserve = Reserve(os.dup(0), os.dup(0), broken[1], (os.getpid(), 0))
    other = world.member()
    assert other.does("report /a") == "False"
    assert other.does("rejoin") == "False"


@pytest.mark.parametrize("word", [b"!", b""], ids=["dies meanwhile", "end"])
def test_no_request_is_taken(world, word) -> None:
    """Not when the guardian died while the request was read, nor at the end of the requests."""
    member = world.member()
    member.ask("next_request")
    if word:
        os.write(world.requests, word)
    else:
        os.close(world.requests)
        os.close(world.reserve.requests)
        world.requests, world.reserve.requests = os.dup(0), os.dup(0)
        member.close()
        world.members.clear()
        read, write = os.pipe()
        world.reserve.requests = read
        os.close(write)
        member = world.member()
        member.ask("next_request")
    assert member.answer() == "None"


def test_a_guardian_that_is_gone_already(world) -> None:
    """Nothing is read at all: the request is for whom the caller starts next."""
    world.reserve.guardian = (1, 1)
    os.write(world.requests, b"a")
    assert world.member().does("next_request") == "None"
    assert os.read(world.reserve.requests, 10) == b"a"


def test_who_has_left_does_not_come_back(world) -> None:
    """It has closed all that it held of the pipes; leaving twice closes nothing that has been opened since."""
    reserve = world.reserve
    assert reserve._locks is not None
    held = [reserve.requests, reserve.answers, reserve.news, reserve._locks]
    reserve.leave()
    for fd in held:
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(fd)
    again = [os.open(os.devnull, os.O_RDONLY) for _ in held]
    reserve.leave()
    assert reserve.rejoin() is False
    for fd in again:
        os.close(fd)


def _unknown(*_: object) -> int:
    raise OSError(errno.ENOSYS, "not known")


@pytest.mark.parametrize("how", ["missing", "refused"])
def test_where_the_system_has_no_such_file(monkeypatch, how) -> None:
    """A supervisor takes one job, lets go of the pipes for the next one, and does not come back."""
    if how == "missing":
        monkeypatch.delattr(os, "memfd_create")
    else:
        monkeypatch.setattr(os, "memfd_create", _unknown)
    world = World()
    member = world.member()
    os.write(world.requests, b"a")
    assert member.does("next_request") == "{'word': 'a'}"
    assert member.does("rejoin") == "False"
    assert member.does("let_next_read") == "None"
    assert member.does("report /a") == "False"
    world.close()
