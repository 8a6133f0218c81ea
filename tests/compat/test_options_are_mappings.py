"""Options classes are mappings of their options, whose names may be written in camelCase."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from torchx.runner import get_runner
from torchx.schedulers.api import StructuredOpts
from torchx.schedulers.slurm_scheduler import SlurmOpts, create_scheduler
from torchx.specs import AppDef, Role, runopts


@dataclass
class Opts(StructuredOpts):
    cluster_name: str
    priority: int = 3
    zone: str | None = None


APP = AppDef("a", [Role("r", "/tmp", entrypoint="true")])


def test_mapping() -> None:
    """Keys, items, iteration, length, and unpacking, as of a dict of its fields."""
    opts = Opts(cluster_name="x")
    expected = {"cluster_name": "x", "priority": 3, "zone": None}
    assert isinstance(opts, Mapping)
    assert dict(opts) == {**opts} == expected
    assert list(opts) == list(opts.keys()) == list(expected)
    assert dict(opts.items()) == expected
    assert list(opts.values()) == ["x", 3, None]
    assert len(opts) == 3
    assert (opts["priority"], opts.get("zone"), opts.get("nothing"), "nothing" in opts) == (3, None, None, False)
    with pytest.raises(KeyError):
        opts["nothing"]


def test_merge() -> None:
    """`|` gives a dict; what is on the right counts."""
    opts = Opts(cluster_name="x")
    assert opts | {"priority": 4, "more": 1} == {"cluster_name": "x", "priority": 4, "zone": None, "more": 1}
    assert opts | Opts("y") == dict(Opts("y"))
    assert {"priority": 4, "more": 1} | opts == {"cluster_name": "x", "priority": 3, "zone": None, "more": 1}
    assert opts == Opts("x")
    assert opts != Opts("y")


def test_camel_case() -> None:
    """`clusterName` is `cluster_name`, wherever a name is given; where both are, the option's own counts."""
    assert Opts.from_cfg({"clusterName": "z"}) == Opts("z")
    assert Opts.from_cfg({"cluster_name": "z", "clusterName": "w"}) == Opts("z")
    assert Opts("x")["clusterName"] == "x"
    assert Opts("x").get("clusterName") == "x"
    assert "clusterName" in Opts("x")
    declared = Opts.as_runopts()
    assert "clusterName" in declared
    assert declared.get("clusterName") == declared.get("cluster_name") is not None
    assert declared.resolve({"clusterName": "q"}) == {"cluster_name": "q", "priority": 3, "zone": None}
    assert declared.unknown({"clusterName": "q", "clutserName": "q"}) == ["clutserName"]
    assert declared.resolve(declared.cfg_from_str("clusterName=q,priority=7"))["priority"] == 7
    assert declared.resolve(Opts("x")) == dict(Opts("x"))


def test_union_of_declarations() -> None:
    """`runopts | runopts` has the options of both, and leaves both as they are."""
    one, two = runopts(), runopts()
    one.add("a", type_=str, help="first", default="1")
    two.add("a", type_=str, help="second", default="2")
    two.add("b", type_=int, help="third", default=3)
    both = one | two
    assert both.resolve({}) == {"a": "2", "b": 3}
    assert one.resolve({}) == {"a": "1"}
    assert isinstance(both, runopts)


def test_runner_takes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `cfg`; what they leave at its default is the config file's to say."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".torchxconfig").write_text("[slurm]\nreplicasPerNode = 2\nmailType = END\nqos = low\n")
    with get_runner() as runner:
        info = runner.dryrun(APP, "slurm", cfg=SlurmOpts(partition="p", qos="high"))
        camel = runner.dryrun(APP, "slurm", cfg={"mailUser": "me", "jobDir": "/x"})
    assert info._cfg is not None
    assert (info._cfg["partition"], info._cfg["qos"]) == ("p", "high")
    assert (info._cfg["replicas_per_node"], info._cfg["mail-type"]) == (2, "END")
    assert "--partition=p" in str(info)
    assert camel._cfg is not None
    assert (camel._cfg["mail-user"], camel._cfg["job_dir"]) == ("me", "/x")


def test_scheduler_takes_them() -> None:
    """As `cfg` of `submit_dryrun`, and for `from_cfg`."""
    opts = SlurmOpts(partition="p", mail_user="me")
    assert SlurmOpts.from_cfg(opts) == SlurmOpts.from_cfg({"partition": "p", "mail-user": "me"}) == opts
    assert "--mail-user=me" in str(create_scheduler("s").submit_dryrun(APP, opts))
