"""What every tool calls what a plan says: one module a tool, which reads its files and writes them."""
