"""Registration with TorchServe as a job: the arguments of its program."""

from __future__ import annotations

import pytest

from torchx.apps.serve import serve as app
from torchx.component_reader.builders import materialize_appdef
from torchx.components import serve
from torchx.components.serve import torchserve
from torchx.errors import SpecError

API = "http://torchserve:8081"


def test_the_program_understands_every_word() -> None:
    """Model, server, parameters of any type and token are passed unchanged."""
    params = {"model_name": "two words", "initial_workers": 2, "synchronous": True, "handler": "-x"}
    (role,) = torchserve("s3://b/m.mar", API, params=params, token_file="-keys", env={"A": "1"}).roles
    args = app.parse_args(role.args[2:])
    assert role.args[:2] == ["-m", "torchx.apps.serve.serve"]
    assert (args.model_path, args.management_api, args.token_file) == ("s3://b/m.mar", API, "-keys")
    told = (args.model_name, args.initial_workers, args.synchronous, args.handler)
    assert told == ("two words", "2", "true", "-x")
    assert (role.port_map, role.env) == ({"model-download": app.PORT}, {"A": "1"})
    assert not args.dryrun
    assert app.parse_args(torchserve("m", API, dryrun=True).roles[0].args[2:]).dryrun


def test_from_the_command_line() -> None:
    """`--params` is a list of pairs."""
    words = ["--model_path", "m.mar", "--management_api", API, "--params", "model_name=m,batch_size=4"]
    args = app.parse_args(materialize_appdef(torchserve, words).roles[0].args[2:])
    assert (args.model_name, args.batch_size) == ("m", "4")


def test_parameters_are_those_of_the_program() -> None:
    """The component has the same parameters as the program."""
    assert list(serve._PARAMS) == app.TORCHSERVE_PARAMS


def test_an_unknown_parameter() -> None:
    """Unknown parameters raise an error with the nearest name before the submission."""
    with pytest.raises(SpecError, match="`model_nam` of `params`") as e:
        torchserve("m.mar", API, params={"model_nam": "x"})
    assert e.value.hint == "did you mean `model_name`?"


def test_no_address() -> None:
    """A server address without http raises an error before the submission."""
    with pytest.raises(SpecError, match="`torchserve:8081` is not a server address"):
        torchserve("m.mar", "torchserve:8081")
