"""The PyTorch code that rows of single operators ran, as modules and functions of torch: one module a kind of operator."""
