"""A plugin package, `examples/torchx-gridengine`, as its users have it: installed beside torchx, on a real Grid Engine."""
