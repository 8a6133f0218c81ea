"""The job description that every scheduler understands.

>>> from torchx.specs import AppDef, Role
>>> AppDef("echo", roles=[Role("echo", image="/tmp", entrypoint="/bin/echo", args=["hello world"])]).name
'echo'
"""

from __future__ import annotations

from torchx.specs import api
from torchx.specs.api import *  # noqa: F403  # `torchx.specs` and `torchx.specs.api` export the same names
from torchx.specs.mounts import parse_mounts as parse_mounts

GiB = 1024
"""MiB in a GiB, for ``memMB``."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from torchx.component_reader.builders import materialize_appdef as materialize_appdef
    from torchx.plugins import load_group as load_group
    from torchx.specs import named_resources as named_resources
    from torchx.specs.named_resources import AWS_NAMED_RESOURCES as AWS_NAMED_RESOURCES
    from torchx.specs.named_resources import CUSTOM_NAMED_RESOURCES as CUSTOM_NAMED_RESOURCES
    from torchx.specs.named_resources import GENERIC_NAMED_RESOURCES as GENERIC_NAMED_RESOURCES
    from torchx.specs.named_resources import ResourceFactory as ResourceFactory
    from torchx.specs.named_resources import get_named_resources as get_named_resources
    from torchx.specs.named_resources import resource as resource
    from torchx.specs.secret import Secret as Secret
    from torchx.util.modules import import_attr as import_attr
else:
    from torchx.util.reexports import reexports

    _LAZY = {
        "torchx.component_reader.builders": "materialize_appdef",
        "torchx.plugins": "load_group",
        "torchx.specs.named_resources": """
            AWS_NAMED_RESOURCES CUSTOM_NAMED_RESOURCES GENERIC_NAMED_RESOURCES ResourceFactory get_named_resources
            named_resources resource""",
        "torchx.specs.secret": "Secret",
        "torchx.util.modules": "import_attr",
    }
    __all__ = [*api.__all__, "GiB", "parse_mounts", *" ".join(_LAZY.values()).split()]  # noqa: PLE0604  # they are strings
    reexports(__name__, _LAZY)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
