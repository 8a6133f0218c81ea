"""What sbatch and slurmctld refuse without a look at the cluster: https://slurm.schedmd.com/sbatch.html"""

from __future__ import annotations

from torchx.schedulers.kit import rules
from torchx.schedulers.kit.rules import Rule
from torchx.schedulers.slurm.containers import RUNTIMES

_NAME = rules.text(r"[^\s;|*]+", 4096)
_HOSTS = rules.text(r"([^\s\[\]]|\[[\d,-]+\])+", 65535)
RULES = (
    rules.one_of("container", *RUNTIMES),
    rules.images(lambda cfg: cfg.get("container") and not cfg.get("container_image"))[0],
    rules.one_of("requeue", "auto", "yes", "no"),
    Rule("replicas_per_node", rules.whole(1), "not 1 or more"),
    Rule(
        "time",
        rules.text(r"\s*(-1|(?i:unlimited|infinite)|\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2})\s*"),
        "not a time limit",
        "write minutes, `hours:minutes:seconds` or `days-hours`",
    ),
    Rule("signal", rules.text(r"([RB]{1,2}:)?[A-Za-z0-9+-]+(@\d{1,5})?\s*"), "not a signal such as `USR1@120`"),
    Rule("mail-type", rules.text(r"[A-Za-z_0-9]+(\s*,\s*[A-Za-z_0-9]+)*"), "not a list such as `END,FAIL`"),
    Rule(
        "gres",
        rules.text(r"[^\s:,]+(:[^\s:,]+){0,2}(\s*,\s*[^\s:,]+(:[^\s:,]+){0,2})*"),
        "not `name[:type][:number],...`",
    ),
    *(Rule(name, _NAME, "and a name has no blanks") for name in ("account", "partition", "qos", "reservation")),
    *(Rule(name, _HOSTS, "not a list of nodes such as `n[1-3],n7`") for name in ("exclude", "nodelist")),
    Rule(
        lambda role: [(f"the number of `{name}`", n) for name, n in role.resource.devices.items() if "/" not in name],
        rules.whole(0),
        "not 0 or more",
    ),
)
