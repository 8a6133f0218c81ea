"""Empty: adapters of pipelines were here; `torchx.runner` is what a step of a pipeline calls."""
