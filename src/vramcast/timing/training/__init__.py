"""Seconds of the pieces of a training step: rates, links, one layer, the ends of the network, states."""
