"""The transformer of Stanford's CS336 course, written as its published recordings of GPU memory show that it ran.

The course describes the network (pre-norm, RMSNorm, rotary embeddings, SwiGLU, attention and optimizer by hand, no
bias); every participant writes it differently. The recordings name each operator's function and line, so each module
here is one way of writing it: same operators, same order, same lifetimes.
"""
