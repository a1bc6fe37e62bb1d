"""Any PyTorch code on a simulated device: tensors without storage, with the allocations of CUDA.

A simulated tensor is a meta tensor; its storage says on which device it lives (`memory`). A dispatch mode below
autograd sees every operator (`simulation`), the rules say what each allocates on CUDA beyond its outputs (`rules`),
the patches make scripts see a device (`environment`). Only this package imports torch.
"""
