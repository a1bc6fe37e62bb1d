"""Training and serving engines: what each allocates."""

from typing import TYPE_CHECKING

from vramcast.lazy import submodules

if TYPE_CHECKING:
    from vramcast.engines import deepspeed as deepspeed
    from vramcast.engines import diffusers as diffusers
    from vramcast.engines import llamacpp as llamacpp
    from vramcast.engines import megatron as megatron
    from vramcast.engines import serving as serving
    from vramcast.engines import torchtitan as torchtitan
    from vramcast.engines import transformers as transformers

__getattr__ = submodules(__name__)
