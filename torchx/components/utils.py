"""Small jobs: a shell command, a Python program, a binary, a copy; and two for trying out torchx."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Annotated, Any

import torchx
from torchx import specs
from torchx.components.dist import _args_join, get_role_name
from torchx.errors import MissingDependencyError, SpecError, install_extra
from torchx.util.strings import nearest

_PYTHON = "torchx_utils_python"
_WAIT = "trap 'exit 0' TERM INT; while :; do sleep 3600 & wait $!; done"
_UNBUFFERED = {"PYTHONUNBUFFERED": "1"}  # otherwise the log stays empty until the program ends


def echo(msg: str = "hello world", image: str = torchx.IMAGE, num_replicas: int = 1) -> specs.AppDef:
    """Print a message.

        torchx run utils.echo --msg hi

    Args:
        msg: the message
        image: container image
        num_replicas: how many replicas print it
    """
    role = specs.Role(
        name="echo",
        image=image,
        entrypoint="echo",
        args=[msg],
        num_replicas=num_replicas,
        resource=specs.resource(cpu=1, gpu=0, memMB=1024),
    )
    return specs.AppDef(name="echo", roles=[role])


def touch(file: str, image: str = torchx.IMAGE) -> specs.AppDef:
    """Create a file.

    Args:
        file: path of the file
        image: container image
    """
    role = specs.Role(
        name="touch",
        image=image,
        entrypoint="touch",
        args=[file],
        resource=specs.resource(cpu=1, gpu=0, memMB=1024),
    )
    return specs.AppDef(name="touch", roles=[role])


def sh(
    *args: str,
    image: str = torchx.IMAGE,
    num_replicas: int = 1,
    cpu: int = 1,
    gpu: int = 0,
    memMB: int = 1024,
    h: str | None = None,
    env: dict[str, str] | None = None,
    max_retries: int = 0,
    mounts: list[str] | None = None,
    entrypoint: str | None = None,
    name: str = "sh",
) -> specs.AppDef:
    """Run a shell command.

    Several words are a command and its arguments, which are passed unchanged. A single word is a shell command line:

        torchx run utils.sh ls -l "my files"
        torchx run utils.sh 'ls -l | wc -l; echo $HOME'

    Args:
        args: the command
        image: container image
        num_replicas: how many replicas run it
        cpu: CPUs of each replica
        gpu: GPUs of each replica
        memMB: memory of each replica, in MiB; or 4G
        h: named resource of each replica, for example cpu.small; overrides cpu, gpu and memMB
        env: environment variables: A=1,B=2
        max_retries: how often the scheduler restarts it
        mounts: mounts: type=bind,src=/host,dst=/job[,readonly]
        entrypoint: the shell, by default sh
        name: name of the job
    """
    if not args:
        raise SpecError("there is no command", hint="for example `torchx run utils.sh ls -l`")
    role = specs.Role(
        name="sh",
        image=image,
        entrypoint=entrypoint or "sh",
        args=["-c", args[0] if len(args) == 1 else _args_join(args)],
        env=dict(env or {}),
        num_replicas=num_replicas,
        max_retries=max_retries,
        resource=specs.resource(cpu=cpu, gpu=gpu, memMB=memMB, h=h),
        mounts=specs.parse_mounts(mounts) if mounts else [],
    )
    return specs.AppDef(name=name, roles=[role])


def sbatch(*args: str, image: str = torchx.IMAGE) -> specs.AppDef:
    """Run an existing batch script: unchanged with sbatch on Slurm, by its first line (#!) on other schedulers.

        torchx run -s slurm utils.sbatch train.sbatch -- --lr 3e-4
        torchx run -s kubernetes utils.sbatch --image pytorch/pytorch train.sbatch -- --lr 3e-4

    On Slurm, the #SBATCH lines apply; options of -cfg take precedence. Elsewhere, torchx translates them to a resource
    and a time limit; a line that it cannot translate is an error.

    Args:
        args: the script and its arguments
        image: container image, for schedulers with containers
    """
    from torchx.schedulers.slurm.scripts.sbatch import script_app

    if not args:
        raise SpecError("no script is given", hint="for example `torchx run -s slurm utils.sbatch train.sbatch`")
    words = args[2:] if args[1:2] == ("--",) else args[1:]
    try:
        with open(args[0], encoding="utf-8", errors="surrogateescape", newline="") as file:
            return script_app(args[0], file.read(), words, image)
    except OSError as e:
        raise SpecError(f"`{args[0]}` cannot be read: {e.strerror}") from e


def python(
    *args: str,
    m: str | None = None,
    c: str | None = None,
    script: str | None = None,
    image: str = torchx.IMAGE,
    name: str = _PYTHON,
    cpu: int = 1,
    gpu: int = 0,
    memMB: int = 1024,
    h: str | None = None,
    num_replicas: int = 1,
) -> specs.AppDef:
    """Run a Python module, script or piece of code.

        torchx run utils.python --script hello.py -- --greeting hi

    Args:
        args: arguments of the program, after ``--``
        m: a module, as in ``python -m``; one of the three
        c: code, as in ``python -c``; one of the three
        script: a script; one of the three
        image: container image
        name: name of the job; by default the name of the script or module
        cpu: CPUs of each replica
        gpu: GPUs of each replica
        memMB: memory of each replica, in MiB; or 4G
        h: named resource of each replica, for example cpu.small; overrides cpu, gpu and memMB
        num_replicas: how many replicas run it
    """
    given = [flag for flag, value in (("-m", m), ("-c", c), ("--script", script)) if value is not None]
    if len(given) != 1:
        what = " and ".join(f"`{g}`" for g in given) + " are given" if given else "no program is given"
        raise SpecError(what, hint="give one of `-m module`, `-c code` and `--script file.py`")
    program = ["-m", m] if m is not None else ["-c", c] if c is not None else [script]
    program_name = get_role_name(script, m) if c is None else ""
    role = specs.Role(
        name=program_name or "python",
        image=image,
        entrypoint="python",
        args=[*(word for word in program if word is not None), *args],
        env=dict(_UNBUFFERED),
        num_replicas=num_replicas,
        resource=specs.resource(cpu=cpu, gpu=gpu, memMB=memMB, h=h),
        metadata={"script": script} if script is not None else {},
    )
    return specs.AppDef(name=program_name if name == _PYTHON and program_name else name, roles=[role])


def session(
    *,
    image: str = torchx.IMAGE,
    cpu: int = 1,
    gpu: int = 0,
    memMB: int = 4096,
    h: str | None = None,
    env: dict[str, str] | None = None,
    mounts: list[str] | None = None,
) -> specs.AppDef:
    """Interactive session: opens a shell in the job when it runs, and ends with the shell.

        torchx run -s slurm utils.session --gpu 1 --timeout 2h

    Without a terminal, the job waits: `torchx shell JOB` opens a shell, and `torchx cancel JOB` ends the session.

    Args:
        image: container image
        cpu: CPUs
        gpu: GPUs
        memMB: memory, in MiB; or 4G
        h: named resource, for example cpu.small; overrides cpu, gpu and memMB
        env: environment variables: A=1,B=2
        mounts: mounts: type=bind,src=/host,dst=/job[,readonly]
    """
    role = specs.Role(
        name="session",
        image=image,
        entrypoint="sh",
        args=["-c", _WAIT],
        env=dict(env or {}),
        resource=specs.resource(cpu=cpu, gpu=gpu, memMB=memMB, h=h),
        mounts=specs.parse_mounts(mounts) if mounts else [],
    )
    return specs.AppDef(name="session", roles=[role])


def binary(
    *args: str,
    entrypoint: str,
    name: str = "torchx_utils_binary",
    num_replicas: int = 1,
    cpu: int = 1,
    gpu: int = 0,
    memMB: int = 1024,
    h: str | None = None,
) -> specs.AppDef:
    """Run a program of the image.

        torchx run utils.binary --entrypoint /usr/bin/nvidia-smi -- -L

    Args:
        args: its arguments, after ``--``
        entrypoint: the program
        name: name of the job
        num_replicas: how many replicas run it
        cpu: CPUs of each replica
        gpu: GPUs of each replica
        memMB: memory of each replica, in MiB; or 4G
        h: named resource of each replica, for example cpu.small; overrides cpu, gpu and memMB
    """
    role = specs.Role(
        name=name,
        image=torchx.IMAGE,
        entrypoint=entrypoint,
        args=list(args),
        num_replicas=num_replicas,
        resource=specs.resource(cpu=cpu, gpu=gpu, memMB=memMB, h=h),
    )
    return specs.AppDef(name=name, roles=[role])


def copy(src: str, dst: str, image: str = torchx.IMAGE) -> specs.AppDef:
    """Copy a file between any two locations that fsspec supports: file://, s3://, gs://, https://, ...

    Args:
        src: path or URL of the source
        dst: path or URL of the destination
        image: container image
    """
    role = specs.Role(
        name="copy",
        image=image,
        entrypoint="python",
        args=["-m", "torchx.apps.utils.copy_main", "--src", src, "--dst", dst],
        resource=specs.resource(cpu=1, gpu=0, memMB=1024),
    )
    return specs.AppDef(name="copy", roles=[role])


def booth(
    x1: float,
    x2: float,
    trial_idx: int = 0,
    tracker_base: str = "/tmp/torchx-util-booth",  # noqa: S108  # the documented default, for a demonstration
    image: str = torchx.IMAGE,
) -> specs.AppDef:
    """Evaluate the Booth function, (x1 + 2*x2 - 7)^2 + (2*x1 + x2 - 5)^2, an example for optimizers.

    Args:
        x1: the first variable
        x2: the second variable
        trial_idx: key of the stored result
        tracker_base: where to store results: a directory or a URL of fsspec
        image: container image
    """
    role = specs.Role(
        name="booth",
        image=image,
        entrypoint="python",
        args=[
            *("-m", "torchx.apps.utils.booth_main"),
            # `=`, because a negative number would be taken for an option.
            *(f"--x1={x1}", f"--x2={x2}", f"--trial_idx={trial_idx}", f"--tracker_base={tracker_base}"),
        ],
        resource=specs.resource(cpu=1, gpu=0, memMB=1024),
    )
    return specs.AppDef(name="booth", roles=[role])


def hydra(
    *overrides: str,
    config_name: Annotated[str, "-cn"],
    config_dir: Annotated[str, "-cd"] = ".torchx",
) -> specs.AppDef:
    """Run the AppDef that a Hydra configuration describes.

    The configuration names classes by ``_target_``: ``torchx.specs.AppDef``, ``torchx.specs.Role``, ... The AppDef is
    the whole configuration, or its key ``app``. Keys that are not fields of an AppDef are available for interpolation.
    Macros such as ``${app_id}``, also written ``${torchx.app_id:}``, are left to the scheduler.

        torchx run utils.hydra -cn train -- image=my_image:2 trainer.lr=0.1

    Args:
        overrides: changes of the configuration: key=value, +new.key=value, ~key
        config_name: name of the configuration, without .yaml
        config_dir: directory of the configuration
    """
    try:
        from hydra import compose, initialize_config_dir
        from hydra.errors import HydraException
        from hydra.utils import instantiate
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException
    except ImportError as e:
        raise MissingDependencyError(f"`utils.hydra` needs the package `{e.name}`", hint=install_extra("hydra")) from e
    directory = os.path.abspath(config_dir)
    if not os.path.isdir(directory):
        raise SpecError(f"config directory `{config_dir}` does not exist", hint="name it with `-cd DIRECTORY`")
    try:
        with initialize_config_dir(directory, version_base=None):
            config = compose(config_name, overrides=list(overrides))
        hidden = OmegaConf.create(_in_strings(OmegaConf.to_container(config), _hide_macros))
        found = _in_strings(OmegaConf.to_container(hidden, resolve=True), _literal)
        app: Any = instantiate(_app_fields(found), _convert_="all")
    except (HydraException, OmegaConfBaseException) as e:
        reason = ": ".join(line.strip(" :") for line in str(e).splitlines() if line.strip()) or type(e).__name__
        raise SpecError(f"configuration `{config_name}` of `{config_dir}`: {reason}") from e
    if not isinstance(app, specs.AppDef):
        raise SpecError(
            f"configuration `{config_name}` of `{config_dir}` describes `{type(app).__name__}`, not an AppDef",
            hint="it, or what stands under `app:`, begins with `_target_: torchx.specs.AppDef`",
        )
    for role in app.roles:  # YAML has numbers where a command line has words
        nothing = [f"args[{i}]" for i, arg in enumerate(role.args) if arg is None]
        if nothing := [*nothing, *(f"env.{k}" for k, v in role.env.items() if v is None)]:
            raise SpecError(
                f"configuration `{config_name}` of `{config_dir}`: `{nothing[0]}` of role `{role.name}` is null",
                hint="give it a value, or remove it",
            )
        role.args = [str(arg) for arg in role.args]
        role.env = {str(k): str(v) for k, v in role.env.items()}
    return app


def _in_strings(config: Any, change: Callable[[str], str]) -> Any:
    if isinstance(config, dict):
        return {k: _in_strings(v, change) for k, v in config.items()}
    if isinstance(config, list):
        return [_in_strings(v, change) for v in config]
    return change(config) if isinstance(config, str) else config


_MACROS = ("img_root", "base_img_root", "app_id", "replica_id", "rank0_env")
_HIDDEN = "\ue000{}\ue001"  # characters of the private use area, which no configuration contains


def _hide_macros(text: str) -> str:
    """Hide macros, ``${app_id}`` or ``${torchx.app_id:}``, which Hydra would interpolate."""
    for name in _MACROS:
        for written in (f"\\${{{name}}}", f"${{{name}}}", f"${{torchx.{name}:}}"):
            text = text.replace(written, _HIDDEN.format(name))
    return text


def _literal(text: str) -> str:
    """Restore macros, and escape the text so that Hydra returns it unchanged."""
    for name in _MACROS:
        text = text.replace(_HIDDEN.format(name), f"${{{name}}}")
    # Hydra resolves twice before it creates an object, and removes one level of escapes each time.
    return text.replace("${", "\\\\\\${")


def _app_fields(config: Any) -> Any:
    """Return the configuration of the AppDef without keys that serve interpolation only."""
    if isinstance(config, dict) and "_target_" not in config:
        config = config.get("app", config)
    if not isinstance(config, dict) or str(config.get("_target_", "")).rpartition(".")[2] != "AppDef":
        return config
    fields = ("name", "roles", "metadata")
    for key in config.keys() - {*fields}:
        meant = nearest(str(key), fields, cutoff=0.8)
        if meant is not None:
            raise SpecError(f"an AppDef has no field `{key}`", hint=f"did you mean `{meant}`?")
    return {key: value for key, value in config.items() if key in fields or str(key).startswith("_")}
