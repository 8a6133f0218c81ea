"""Registration of models with TorchServe as a job."""

from __future__ import annotations

import torchx
from torchx import specs
from torchx.errors import SpecError
from torchx.util.strings import did_you_mean

_PARAMS = (
    *("model_name", "handler", "runtime", "batch_size", "max_batch_delay"),
    *("initial_workers", "synchronous", "response_timeout"),
)
"""Options of `torchx.apps.serve.serve`, which components do not import. A test compares the two."""

_DOWNLOAD_PORT = 8222  # of `torchx.apps.serve.serve`


def torchserve(  # noqa: PLR0917  # public signature
    model_path: str,
    management_api: str,
    image: str = torchx.IMAGE,
    params: dict[str, object] | None = None,
    dryrun: bool = False,
    token_file: str | None = None,
    env: dict[str, str] | None = None,
) -> specs.AppDef:
    """Register a model archive with a running TorchServe.

        torchx run serve.torchserve --model_path s3://bucket/digits.mar --management_api http://torchserve:8081

    TorchServe downloads the archive. If it has no http(s) URL, the job serves it on port 8222, under an unguessable
    name, until TorchServe has answered.

    Args:
        model_path: the model archive (.mar): a path, a URL of fsspec, or an http(s) URL
        management_api: address of TorchServe's management API: http://host:8081
        image: container image, with torchx
        params: parameters of the model, see https://pytorch.org/serve/management_api.html#register-a-model:
            model_name=digits,initial_workers=2,synchronous=true
        dryrun: whether the job only prints the request
        token_file: path or URL of TorchServe's key_file.json, or of a file with the token only
        env: environment variables of the job: TORCHSERVE_TOKEN=... instead of a file
    """
    options = []
    for name, value in (params or {}).items():
        if name not in _PARAMS:
            hint = did_you_mean(name, _PARAMS) or f"TorchServe takes {', '.join(_PARAMS)}"
            raise SpecError(
                f"`{name}` of `params` is not a parameter that TorchServe takes with a new model", hint=hint
            )
        options.append(f"--{name}={str(value).lower() if isinstance(value, bool) else value}")
    if management_api.partition("://")[0] not in ("http", "https"):
        raise SpecError(f"`{management_api}` is not a server address", hint="for example http://host:8081")
    role = specs.Role(
        name="torchserve",
        image=image,
        entrypoint="python",
        args=[
            *("-m", "torchx.apps.serve.serve"),
            # `=`, because a value that begins with a dash would be taken for an option.
            *(f"--model_path={model_path}", f"--management_api={management_api}", *options),
            *((f"--token_file={token_file}",) if token_file else ()),
            *(("--dryrun",) if dryrun else ()),
        ],
        env=dict(env or {}),
        port_map={"model-download": _DOWNLOAD_PORT},
        resource=specs.resource(cpu=1, gpu=0, memMB=1024),
    )
    return specs.AppDef(name="torchserve", roles=[role])
