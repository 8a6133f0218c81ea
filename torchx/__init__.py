"""Describe a job once in Python, run it anywhere, and always know how it ended.

>>> import torchx
>>> torchx.IMAGE  # $TORCHX_IMAGE
''
"""

from torchx.version import __version__

__all__ = ["IMAGE", "__version__"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    IMAGE: str


def __getattr__(name: str) -> str:
    # Looked up at each access: the setting may change after the import.
    if name == "IMAGE":
        from torchx.settings import default_image

        return default_image()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
