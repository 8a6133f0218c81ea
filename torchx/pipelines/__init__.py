"""Empty: pipeline adapters were here. A pipeline step calls `torchx.runner` instead."""
