"""``torchx top``: the full-screen view of runs; shows the states that the pollers record."""
