"""An app as objects of the Kubernetes API, of the kind that was chosen.

==============  ===========================================================================================
``job``         ``batch/v1`` Jobs, one per role, whose pods are numbered (Indexed), and a headless Service that gives
                every pod a name; the Service owns the Jobs
``jobset``      one ``jobset.x-k8s.io/v1alpha2`` JobSet with a replicated Job per role
``volcano``     one ``batch.volcano.sh/v1alpha1`` Job with a task per replica
``kubeflow``    one ``trainer.kubeflow.org/v1alpha1`` TrainJob, of one role
``pytorchjob``  one ``kubeflow.org/v1`` PyTorchJob, of one role
==============  ===========================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping

from torchx.schedulers.kubernetes import pytorchjob, request, trainjob, volcanojob
from torchx.schedulers.kubernetes.bucket_code import BucketCode
from torchx.schedulers.kubernetes.inline_code import Code, attach
from torchx.schedulers.kubernetes.names import JOBSET, KUBEFLOW, PYTORCH, VOLCANO, Object
from torchx.schedulers.kubernetes.request import JobRules
from torchx.specs.api import AppDef


def render(
    kind: str, app: AppDef, app_id: str, rules: JobRules, codes: Mapping[int, Code | BucketCode] | None = None
) -> list[Object]:
    """The objects of an app, the one that owns the others first.

    Args:
        app_id: name of the owner; at most :data:`~torchx.schedulers.kubernetes.request.MAX_APP_ID` characters.
        codes: index of a role -> its code, where that is not in the image.

    Raises:
        SpecError: the kind cannot be what a role asks for.
    """
    if kind == KUBEFLOW:
        return trainjob.folded(attach([trainjob.render(app, app_id, rules)], codes or {}))
    if kind == PYTORCH:
        return pytorchjob.folded(attach([pytorchjob.render(app, app_id, rules)], codes or {}))
    if kind == VOLCANO:
        objects = [volcanojob.render(app, app_id, rules)]
    elif kind == JOBSET:
        objects = [request.render_jobset(app, app_id, rules)]
    else:
        objects = request.render_jobs(app, app_id, rules)
    return attach(objects, codes) if codes else objects
