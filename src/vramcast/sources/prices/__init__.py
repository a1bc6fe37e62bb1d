"""Public lists of prices that need no key, one module per provider."""
