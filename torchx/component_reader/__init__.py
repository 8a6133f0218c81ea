"""How a component is read: found by name, its signature, the values of its arguments, its help."""
