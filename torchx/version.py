"""The version of this distribution; importing this module imports nothing else."""

__version__ = "0.9.0"


def __getattr__(name: str) -> str:
    if name == "TORCHX_IMAGE":
        from torchx.settings import default_image

        return default_image()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
