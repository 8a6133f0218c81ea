import shutil

from torchx_mine import STATES, MineScheduler, app_state, create_scheduler

from torchx.testing import CommandContract, FakeCommandRunner, SchedulerContract


class TestContract(SchedulerContract):
    can_run = shutil.which("msub") is not None
    raw_states = STATES
    name_rule = r"[A-Za-z][A-Za-z0-9_-]{0,60}"

    def create_scheduler(self, folder):
        made = create_scheduler("contract")
        made.fresh_s = 0.01  # seconds for which answers are cached
        return made

    def map_state(self, raw):
        return app_state(raw)


class TestTrouble(CommandContract):
    """Lost answers, refusals, damaged output, missing programs."""

    submit_argv = ("msub",)
    query_argv = ("mstat",)

    def cluster(self):
        fake = FakeCommandRunner()
        fake.on("msub", stdout="job 1\n")
        fake.on("mstat", stdout=lambda call: "".join(f"1 {argv[1]} R\n" for argv in fake.argvs("msub")))
        return fake

    def create_scheduler(self, commands):
        return MineScheduler("contract", commands=commands, sleep=lambda seconds: None)
