"""What bsub refuses without a look at the cluster: https://www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=reference-bsub"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchx.schedulers.kit import rules
from torchx.schedulers.kit.rules import Rule
from torchx.schedulers.lsf.options import Opts, in_docker

_GPU = r"(num|mode|mps|j_exclusive|aff|block|gpack|gvendor|gmodel|gmem|gtile|glink|mig)=[^\s:]+"


def _docker(cfg: Mapping[str, Any]) -> bool:
    return in_docker(Opts.from_cfg(cfg))


RULES = (
    *rules.images(_docker),
    Rule(
        lambda role: [("the image", role.image)],
        rules.text("[^/].*"),
        "which is a folder, not a container image",
        when=_docker,
    ),
    Rule(
        rules.mount_paths,
        lambda _: False,
        "and mounts need containers",
        "`-cfg docker=true`",
        when=lambda cfg: not _docker(cfg),
    ),
    Rule("time", rules.text(r"(\d+:)?\d+"), "not a time limit", "write `90` (minutes) or `1:30`"),
    rules.one_of("memory", "host", "task", "none"),
    Rule("jobdir", lambda path: "%" not in path, "and LSF replaces what follows a `%` in paths", "choose another"),
    Rule("shm_size", rules.text(r"\d+(\.\d+)?[bkmgBKMG]?[bB]?"), "not a size such as `8g`"),
    Rule("gpu_options", rules.text(f"-|{_GPU}(:{_GPU})*"), "not `name=value:...` as `bsub -gpu` has it"),
)
