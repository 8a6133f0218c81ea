"""``python -m torchx``: the command line."""

from __future__ import annotations

from torchx.cli.main import main

if __name__ == "__main__":
    main()
