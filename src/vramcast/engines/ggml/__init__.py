"""How ggml packs the tensors of a graph: operators, backend scheduler, best-fit allocator."""
