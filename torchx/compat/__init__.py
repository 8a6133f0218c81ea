"""Old names that programs for earlier versions import. Nothing in the product imports them."""
