"""The PyTorch code that rows of single operators ran: one module a kind of operator."""
