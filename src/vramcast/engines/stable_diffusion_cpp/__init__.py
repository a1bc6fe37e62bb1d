"""stable-diffusion.cpp: pipelines as ggml graphs."""

from vramcast.engines.stable_diffusion_cpp.deploy import deploy

__all__ = ["deploy"]
