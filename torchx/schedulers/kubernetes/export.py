"""Exports a job as manifests for ``kubectl``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchx.errors import NotSupportedError
from torchx.schedulers.kit.export import Export, build_lines
from torchx.schedulers.kit.manifests import to_yaml
from torchx.schedulers.kit.shell import quote
from torchx.schedulers.kubernetes.names import JOBSET, KUBEFLOW, PYTORCH, VOLCANO
from torchx.schedulers.kubernetes.request import KubernetesJob
from torchx.schedulers.kubernetes.shipped_code import SCRIPT

JOB_FILE, CODE_FILE = "job.yaml", "code.yaml"


def export(job: KubernetesJob, bases: Mapping[str, str]) -> Export:
    """Return the objects of a job; NotSupportedError for code in a bucket,
    whose URL is signed when the job is submitted.
    """
    objects: list[dict[str, Any]] = job.resource["items"] if job.resource["kind"] == "List" else [job.resource]
    if any(SCRIPT in item.get("stringData", {}) for item in objects):
        raise NotSupportedError(
            "code in a bucket is downloaded from a URL that is signed when the job is submitted, and valid for a week",
            hint="export it with `-cfg code=inline`, or as an image: `-cfg code=registry,image_repo=<registry>/<name>`",
        )
    code = [item for item in objects if item["kind"] == "ConfigMap"]
    files = {JOB_FILE: _documents([item for item in objects if item["kind"] != "ConfigMap"])}
    about = {JOB_FILE: "the job: its objects, which `kubectl` makes"}
    if code:
        files[CODE_FILE] = _documents(code)
        about[CODE_FILE] = "the code of the job, as a ConfigMap: an archive, and the script that unpacks it"
    built = {name: bases[name] for name in map(":".join, job.images_to_push.values()) if name in bases}
    lines, more = build_lines(built, push=True)
    lines += _secret(job.secret) if job.secret else []
    lines.append("kubectl create " + " ".join(f'--filename "$here/{name}"' for name in reversed(files)))
    secrets = job.secret_variables()
    namespace, listed = job.opts.namespace, "".join(f" --filename {name}" for name in files)
    logs = f"kubectl logs --namespace {namespace} --selector app.kubernetes.io/instance={job.app_id}"
    return Export(
        files={**files, **more},
        about={**about, **({"Dockerfile": "how the code gets into the image"} if more else {})},
        run="\n".join(lines),
        needs="`kubectl`, and a cluster of Kubernetes 1.31 or newer that it reaches"
        + _OPERATORS.get(job.kind, "")
        + (", with Kueue" if job.opts.local_queue else "")
        + (", `docker` to build and push the image" if built else ""),
        logs=f"`{logs}`",
        where=logs,
        secrets=secrets,
        notes=[
            f"To run it again, first delete the objects: `kubectl delete{listed}`"
            + (f" and `kubectl delete --namespace {namespace} secret {job.app_id}`." if secrets else "."),
        ],
    )


_OPERATORS = {
    JOBSET: ", with JobSet",
    VOLCANO: ", with Volcano",
    KUBEFLOW: ", with Kubeflow Trainer 2.2",
    PYTORCH: ", with Kubeflow's Training Operator 1",
}


def _documents(objects: list[dict[str, Any]]) -> str:
    return "---\n".join(to_yaml(item, in_lines=True) for item in objects)


def _secret(secret: Mapping[str, Any]) -> list[str]:
    """Shell lines that create the Secret, without its values on a command line, which others could see."""
    head = to_yaml({k: v for k, v in secret.items() if k != "stringData"})
    lines = ["{", f"  printf '%s' {quote(head)}", "  echo data:"]
    for key in secret["stringData"]:
        name = key.partition(".")[2]
        lines.append(f"""  printf '  "%s": %s\\n' {quote(key)} "$(printf %s "${name}" | base64 | tr -d '\\n')\"""")
    return [*lines, "} | kubectl create --filename -"]
