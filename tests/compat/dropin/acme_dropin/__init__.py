"""A product that launches jobs through torchx. Nothing in it knows more than names, fields and signatures."""
