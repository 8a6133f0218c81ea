"""The Kubernetes scheduler keeps the contract, against an API server in memory."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

pytest.importorskip("urllib3")

from tests.schedulers.kubernetes.fake_cluster import Cluster
from torchx.schedulers.api import Scheduler
from torchx.schedulers.kubernetes.names import ANNOTATION_APP
from torchx.schedulers.kubernetes_scheduler import create_scheduler
from torchx.specs import AppState
from torchx.testing import SchedulerContract


class TestKubernetes(SchedulerContract):
    """Plain Jobs."""

    scheduler_name = "kubernetes"
    unknown_id = "default:no-such-job"
    name_rule = r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?"
    runtime_macros = frozenset({"replica_id"})

    def create_scheduler(self, folder: str) -> Scheduler[Any]:
        return create_scheduler("contract", client=Cluster())

    def request_name(self, info: Any) -> str:
        return info.request.app_id

    def rendered(self, info: Any) -> str:
        """Less the job's definition, which is kept as the user wrote it."""
        return "\n".join(
            line for line in json.dumps(info.request.resource, indent=0).splitlines() if ANNOTATION_APP not in line
        )


class TestVolcano(TestKubernetes):
    """Volcano jobs, whose phases are the states of the table."""

    cfg: Mapping[str, Any] = {"kind": "volcano"}
    runtime_macros = frozenset()

    @property
    def raw_states(self):  # type: ignore[override]  # imported when it is asked for
        from torchx.compat.kubernetes import JOB_STATE

        return JOB_STATE

    def map_state(self, raw: str) -> AppState:
        from torchx.schedulers.kubernetes.owners import read_owner

        return read_owner("volcano", {"status": {"state": {"phase": raw}}}).state

    def create_scheduler(self, folder: str) -> Scheduler[Any]:
        return create_scheduler("contract", client=Cluster(groups=["batch.volcano.sh/v1alpha1"]))


class TestMcad(TestKubernetes):
    """AppWrappers, in the form of today."""

    scheduler_name = "kubernetes_mcad"
    runtime_macros = frozenset()
    form = "v1beta2"

    @property
    def cfg(self):  # type: ignore[override]  # the form of the class below
        return {"appwrapper_version": self.form}

    @property
    def raw_states(self):  # type: ignore[override]  # imported when it is asked for
        from torchx.schedulers.kubernetes.reasons import APPWRAPPER_PHASES, APPWRAPPER_STATES

        return APPWRAPPER_PHASES if self.form == "v1beta2" else APPWRAPPER_STATES

    def map_state(self, raw: str) -> AppState:
        from torchx.compat.kubernetes_mcad import get_appwrapper_status

        return get_appwrapper_status({"status": {"phase": raw} if self.form == "v1beta2" else {"state": raw}})

    def create_scheduler(self, folder: str) -> Scheduler[Any]:
        from torchx.schedulers.kubernetes_mcad_scheduler import create_scheduler

        return create_scheduler(
            "contract", client=Cluster(groups=["workload.codeflare.dev/v1beta2", "mcad.ibm.com/v1beta1"])
        )


class TestOldMcad(TestMcad):
    """AppWrappers in the older form."""

    form = "v1beta1"
