"""``torchx mcp``: a server of the Model Context Protocol: coding agents read runs, and launch some if allowed."""
