"""``torchx top``: the runs full screen in the terminal; reads what the pollers write down, as all who watch do."""
