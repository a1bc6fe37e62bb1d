"""Networks of diffusion pipelines: their weights, and their forward as eager PyTorch runs it."""
