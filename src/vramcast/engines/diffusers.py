"""diffusers: eager pipelines with their offloading, tiling and quantisation.

Components are loaded, a prompt is encoded, latents are denoised, pixels decoded.

[bnb] huggingface/transformers quantizers/base.py `get_modules_to_not_convert`, models/t5 `_keep_in_fp32_modules`: what
T5 keeps in fp32 (`wo`) no quantiser converts, and it is fp32 then. [quantizers] huggingface/diffusers quantizers.
[offload] huggingface/diffusers pipelines/pipeline_utils.py `enable_model_cpu_offload`,
`enable_sequential_cpu_offload`; hooks/group_offloading.py: a component comes to the card when it is called and leaves
when the next one is.
[hooks] huggingface/accelerate hooks.py `CpuOffload.pre_forward`: offloads the former module, `clear_device_cache`.
[upcast] pipelines/stable_diffusion_xl `upcast_vae`: an fp16 autoencoder that needs it decodes in fp32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from msgspec.structs import replace

from vramcast.blocks.diffusion import text
from vramcast.blocks.diffusion.common import Step, buffer_elements, count_elements, network_of, weights_of
from vramcast.blocks.parameters.model import count_parameters
from vramcast.domain.job import Phase, RankProgram
from vramcast.domain.model import Attention, Model, Parameter
from vramcast.domain.pipeline import (
    Autoencoder,
    AutoencoderKL,
    AutoencoderKLWan,
    Component,
    Denoiser,
    Network,
    Pipeline,
)
from vramcast.domain.program import Alloc, Category, Free, Loop, Program, Tensor, extent
from vramcast.domain.serving import Deployment, PipelineJob, ServingRank
from vramcast.engines.serving.requests import Known, typed_options
from vramcast.engines.serving.stages import Stage
from vramcast.engines.serving.weights import Formats, loaded, weight_tensors
from vramcast.errors import InvalidSpec, Note, Unsupported
from vramcast.operators.eager import Tape
from vramcast.parallel.layout import Layout
from vramcast.states.storage import format_for, format_of
from vramcast.units import ceil_div

SOURCE: Final = "tensors of the component's class under its config; docs/serving.md"

LARGE_ENCODER: Final = 10**9
"""Encoders above this many parameters are quantised with the denoiser; CLIP's are not."""

DTYPES: Final = ("bf16", "fp16", "fp32")


def quantised_by_default(component: Component, elements: int) -> bool:
    """Whether a quantised pipeline quantises that component: the denoiser and large encoders, as examples do."""
    return component.role == "denoiser" or (component.role == "encoder" and elements > LARGE_ENCODER)


def formats_of_component(*, weights: str | None, dtype: str, quantised: bool) -> Formats:
    """The formats of one component."""
    if weights is None or weights in DTYPES or not quantised:
        return Formats(weights if weights in DTYPES and weights is not None else dtype, dtype)
    return Formats(weights, dtype)


def component_tensors(component: Component, formats: Formats) -> Iterator[tuple[Tensor, int]]:
    """The component's weights, with how many equal ones there are."""
    network = component.network
    if isinstance(network, Model):
        yield from _model_tensors(component.name, network, formats)
    else:
        yield from _network_tensors(component.name, network, formats)


def _model_tensors(name: str, model: Model, formats: Formats) -> Iterator[tuple[Tensor, int]]:
    stage = Stage(0, model.num_layers, first=True, last=True)
    found = weight_tensors(model, layout=Layout(), formats=formats, stage=stage)
    kept_wide = formats.quantised not in DTYPES and _is_t5(model)
    for tensor, count in found:
        if kept_wide and tensor.name == "mlp.down":
            shape = (model.hidden, getattr(model.main.layers[0].channel, "width", 0))
            yield _tensor(name, tensor.owner, Parameter(path=tensor.name, shape=shape), "fp32"), count
        else:
            yield replace(tensor, owner=f"{name}.{tensor.owner}"), count


def _is_t5(model: Model) -> bool:
    mixer = model.main.layers[0].mixer
    return isinstance(mixer, Attention) and mixer.position_bias == "relative"


def _network_tensors(
    name: str, network: Denoiser | Autoencoder, formats: Formats
) -> Iterator[tuple[Tensor, int]]:
    for owner, parameter, count in weights_of(network):
        stored = format_for(parameter, quantised=formats.quantised, whole=formats.whole)
        yield _tensor(name, owner, parameter, stored), count
    elements = buffer_elements(network)
    if elements:
        yield _tensor(name, "buffers", Parameter(path="positions", shape=(elements,), kind="bias"), formats.whole), 1


def _tensor(name: str, owner: str, parameter: Parameter, stored: str) -> Tensor:
    shape = parameter.shape if parameter.kind == "matrix" else (parameter.elements,)
    return Tensor(
        name=parameter.path, num_bytes=format_of(stored).num_bytes(shape), category=Category.WEIGHTS,
        owner=f"{name}.{owner}", formula=f"{' x '.join(f'{size:,}' for size in parameter.shape)} in {stored}",
        source=SOURCE,
    )


def unloaded(tensors: list[tuple[Tensor, int]]) -> Program:
    """Weights leave the card."""
    return tuple(Loop(count, (Free(tensor),), label="layers") for tensor, count in tensors)


def largest_module(tensors: list[tuple[Tensor, int]]) -> int:
    """Bytes of the largest single weight: what sequential offloading brings in at once."""
    return max(tensor.num_bytes for tensor, _ in tensors)


def largest_group(tensors: list[tuple[Tensor, int]]) -> int:
    """Bytes of the largest block beside everything outside blocks: what block-level group offloading brings in."""
    blocks: dict[str, int] = {}
    outside = 0
    for tensor, count in tensors:
        if count > 1:
            blocks[tensor.owner] = blocks.get(tensor.owner, 0) + tensor.num_bytes
        else:
            outside += tensor.num_bytes
    return outside + max(blocks.values(), default=0)


OFFLOAD_SOURCE: Final = "diffusers pipelines/pipeline_utils.py, hooks/group_offloading.py"

ITEMSIZES: Final = {"bf16": 2, "fp16": 2, "fp32": 4}

OPTIONS: Final[dict[str, Known]] = {"context-parallel": Known(int, most=1 << 16)}
"""Engine options and what their values may be."""

STEPS: Final = 20
"""Denoising steps; memory is the same after the first."""

Tensors = list[tuple[Tensor, int]]


class Part(NamedTuple):
    """A component with its weights and the program of its forward."""

    component: Component
    tensors: Tensors
    forward: Program


def deploy(job: PipelineJob) -> Deployment:
    """The one process of a pipeline, or one of several that share the sequence."""
    format_of(job.plan.weights or "bf16")
    parts = [_part(job, component) for component in job.pipeline.components]
    load, serving = PLACEMENTS[job.plan.offload](parts)
    program = RankProgram(
        role="all", count=max(1, _sequence_ranks(job)), phases={Phase.LOAD: load, Phase.SERVING: serving},
    )
    return Deployment(ranks=(ServingRank(program=program),), assumptions=tuple(_assumptions(job)))


def _assumptions(job: PipelineJob) -> list[str]:
    found = ["convolutions run without cuDNN workspaces larger than what is freed beside them"]
    if job.plan.weights is not None:
        found.append("the denoiser and text encoders of more than 10^9 parameters are quantised, the others are not")
    return found


def _sequence_ranks(job: PipelineJob) -> int:
    """Cards that share the tokens of a denoising step (Ulysses, ring): each holds all weights."""
    ranks = int(typed_options(job, OPTIONS).get("context-parallel", 1))
    if ranks > job.cluster.count:
        raise InvalidSpec(
            "context-parallel={} needs as many GPUs; {} has {}", ranks, job.cluster.name, job.cluster.count
        )
    return ranks


def _part(job: PipelineJob, component: Component) -> Part:
    dtype = component.dtype or job.plan.dtype or job.pipeline.dtype
    quantised = quantised_by_default(component, elements_of(component.network))
    formats = formats_of_component(weights=job.plan.weights, dtype=dtype, quantised=quantised)
    tensors = list(component_tensors(component, formats))
    return Part(component, tensors, _forward(job, component, dtype, dequantises=formats.quantised != formats.whole))


def elements_of(network: Network) -> int:
    """Parameters of a component."""
    return count_parameters(network).total if isinstance(network, Model) else count_elements(network)


def _forward(job: PipelineJob, component: Component, dtype: str, *, dequantises: bool) -> Program:
    network, itemsize = component.network, ITEMSIZES[dtype]
    owner = "denoiser" if component.role == "denoiser" else component.name
    if isinstance(network, Model):
        tape = Tape(owner, text.SOURCE, dequantises=dequantises)
        text.forward(tape, network, batch=_prompts(job), tokens=component.tokens, itemsize=itemsize)
        return tape.program
    written = network_of(network)
    tape = Tape(owner, written.source, dequantises=dequantises)
    if component.role == "denoiser":
        written.forward(tape, network, step_of(job, itemsize))
        return (Loop(STEPS, tape.program, label="denoising steps"),)
    assert not isinstance(network, Model)
    _decode(tape, job, component, itemsize)
    return tape.program


def _prompts(job: PipelineJob) -> int:
    return 2 if job.pipeline.guidance else 1


def step_of(job: PipelineJob, itemsize: int) -> Step:
    """Sizes of one denoising step; context parallelism divides the longest side of its latent."""
    frames, height, width = latent_sizes(job)
    ranks = _sequence_ranks(job)
    batch = job.requests.concurrency * _prompts(job)
    tokens = job.pipeline.context_tokens
    return Step(batch, frames, ceil_div(height, 2 * ranks) * 2, width, ceil_div(tokens, ranks), itemsize)


def latent_sizes(job: PipelineJob) -> tuple[int, int, int]:
    """Frames, rows and columns of the latent.

    Raises: InvalidSpec when the autoencoder cannot make such pixels
    """
    pipeline = job.pipeline
    part = pipeline.autoencoder
    if part is None or isinstance(part.network, Model):
        raise Unsupported("{} has no autoencoder that is modelled", pipeline.name)
    height, width = job.size
    scale = getattr(part.network, "scale", 8)
    for name, size in (("height", height), ("width", width)):
        if size % (2 * scale):
            below = max(1, size // (2 * scale)) * 2 * scale
            raise InvalidSpec(
                "{}={} is not a multiple of {} pixels; use {} or {}", name, size, 2 * scale, below, below + 2 * scale
            )
    frames = job.frames
    return latent_frames(part.network, frames), height // scale, width // scale


def latent_frames(network: Network, frames: int) -> int:
    if isinstance(network, AutoencoderKL):
        return 1
    ratio = network.scale_factor_temporal if isinstance(network, AutoencoderKLWan) else 4
    return (frames - 1) // ratio + 1


def _decode(tape: Tape, job: PipelineJob, component: Component, itemsize: int) -> None:
    """Pixels of all images, or of one after the other; in fp32 where fp16 would overflow."""
    network = component.network
    upcast = isinstance(network, AutoencoderKL) and network.force_upcast and job.pipeline.dtype == "fp16"
    upcast = upcast and itemsize == ITEMSIZES["fp16"]
    if upcast:
        itemsize = ITEMSIZES["fp32"]
        held = tape.new("weights upcast to fp32", (elements_of(network),), 2, Category.WEIGHTS)
    frames, height, width = latent_sizes(job)
    images = job.requests.concurrency
    rounds = images if job.plan.slicing else 1
    channels = getattr(network, "latent_channels", 4)
    time = () if isinstance(network, AutoencoderKL) else (frames,)
    latent = tape.new("latents", (images, channels, *time, height, width), itemsize)
    forward = network_of(_autoencoder(network)).forward
    done = []
    for _ in range(rounds):
        part = latent.view(images // rounds, *latent.shape[1:])
        done.append(forward(tape, network, part, tiling=job.plan.tiling))
    if rounds > 1:
        tape.cat(done, 0, "pixels of all")
    if upcast:
        del held


def _autoencoder(network: Network) -> Autoencoder:
    assert isinstance(network, Autoencoder)
    return network


def _resident(parts: list[Part]) -> tuple[Program, Program]:
    """Everything stays on the card."""
    load = tuple(node for part in parts for node in loaded(part.tensors))
    return load, tuple(node for part in parts for node in part.forward)


def _model_offload(parts: list[Part]) -> tuple[Program, Program]:
    """Each component comes when it is called; the one before leaves first and the cache is emptied [hooks].

    So the calls do not see each other's memory, and the one that takes most is the peak.
    """
    calls = ((*loaded(part.tensors), *part.forward, *unloaded(part.tensors)) for part in parts)
    return (), max(calls, key=lambda call: extent(call).peak)


def _sequential_offload(parts: list[Part]) -> tuple[Program, Program]:
    """Single modules come and go: beside a forward lies the largest one."""
    return (), _beside(parts, "largest module", [largest_module(part.tensors) for part in parts])


def _group_offload(parts: list[Part]) -> tuple[Program, Program]:
    """Blocks come and go one by one; what belongs to no block stays while its component runs."""
    return (), _beside(parts, "largest block and the rest", [largest_group(part.tensors) for part in parts])


def _beside(parts: list[Part], name: str, sizes: list[int]) -> Program:
    nodes: list[Alloc | Free | Loop] = []
    for part, size in zip(parts, sizes, strict=True):
        held = Tensor(
            name=name, num_bytes=size, category=Category.WEIGHTS, owner=part.component.name,
            formula=Note("{:,} B at once", size), source=OFFLOAD_SOURCE,
        )
        nodes += [Alloc(held), *part.forward, Free(held)]
    return tuple(nodes)


PLACEMENTS: Final = {
    "none": _resident, "model": _model_offload, "sequential": _sequential_offload, "group": _group_offload,
}
"""`--offload` -> what is on the card when."""


def pipeline_elements(pipeline: Pipeline) -> int:
    """Parameters of all components."""
    return sum(elements_of(component.network) for component in pipeline.components)
