"""diffusers: eager pipelines with their offloading, tiling and quantisation."""

from vramcast.engines.diffusers.deploy import deploy

__all__ = ["deploy"]
