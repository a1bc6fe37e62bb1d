"""Training of diffusion pipelines: diffusers' example scripts and kohya's sd-scripts, whose loops are the same.

A frozen autoencoder and frozen text encoders make latents and text states, once or in every step, then the denoiser
is stepped whole or by adapters. What each script keeps on the card stands with its arguments, in formats/tools.

[examples] huggingface/diffusers examples/*/train_*.py @0.40: frozen networks in the 16 bits of --mixed_precision, what
learns in fp32 under Accelerate's autocast (adapters beside bf16 in bf16), AdamW over gradients that are set to none
[kohya] kohya-ss/sd-scripts train_network.py, networks/lora.py @0.9: the same, whose adapters read their input as it is
[ema] huggingface/diffusers training_utils.py `EMAModel`: a copy of what learns
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

from msgspec.structs import replace

from vramcast.blocks.diffusion import text
from vramcast.blocks.diffusion.autoencoder_kl import encode
from vramcast.blocks.diffusion.common import Step, adapted, adapts, count_elements, network_of, weights_of
from vramcast.blocks.diffusion.unet import control, control_parameters
from vramcast.blocks.diffusion.unet import forward as unet_forward
from vramcast.domain.cublas import blas_workspaces
from vramcast.domain.job import AttentionKernel, Phase, Precision, RankProgram, Recompute, Shards
from vramcast.domain.model import Model
from vramcast.domain.pipeline import AutoencoderKL, Component, DiffusionJob, Flux, UNet
from vramcast.domain.program import Alloc, Category, Free, Loop, Node, Program, Tensor, extent
from vramcast.engines.diffusers import ITEMSIZES, Tensors, component_tensors, elements_of, latent_frames, unloaded
from vramcast.engines.serving.weights import Formats, loaded
from vramcast.engines.swapped_blocks import on_card
from vramcast.engines.training import DIFFUSION
from vramcast.errors import InvalidSpec, Note, Unsupported
from vramcast.operators.autograd import Learning, Training
from vramcast.operators.eager import Array, Tape
from vramcast.states.optimizers import optimizer
from vramcast.states.steps import Weight, state_program, step_program, weight_program, weight_tensor
from vramcast.units import FP32, HALF


class Types(NamedTuple):
    """Bytes of an element."""

    frozen: str
    width: int  # of what learns
    autocast: int

    @property
    def compute(self) -> int:
        return self.autocast or ITEMSIZES[self.frozen]


TYPES: Final[dict[Precision, Types]] = {
    Precision.AMP_BF16: Types("bf16", FP32, HALF), Precision.AMP_FP16: Types("fp16", FP32, HALF),
    Precision.BF16: Types("bf16", HALF, HALF), Precision.FP16: Types("fp16", HALF, HALF),
    Precision.FP32: Types("fp32", FP32, 0), Precision.TF32: Types("fp32", FP32, 0),
}


def ranks(job: DiffusionJob) -> tuple[RankProgram, ...]:
    """The one role of data-parallel ranks: every card holds everything.

    Raises: Unsupported, InvalidSpec for what these scripts do not do
    """
    _check(job)
    run = _Run(job)
    load, first, step = run.phases()
    phases: dict[Phase, Program] = {Phase.LOAD: load, Phase.FIRST_STEP: first, Phase.STEP: step}
    if job.setting.validation:
        phases[Phase.EVALUATION] = (*run.validation(), *run.afterwards())
    found = RankProgram(role="all", count=job.cluster.count, phases=phases, assumptions=tuple(run.said()))
    caching = run.caching()
    if not caching:
        return (found,)
    before = (*(load if run.trainer.caches_beside else ()), *caching)
    return (found, RankProgram(role="caching", count=job.cluster.count, phases={Phase.STEP: before}))


def _check(job: DiffusionJob) -> None:
    plan, setting, pipeline = job.plan, job.setting, job.pipeline
    if plan.precision not in TYPES:
        raise Unsupported("precision {} is none of {}'s; use {}", plan.precision, job.engine, ", ".join(TYPES))
    if plan.shards is not Shards.NOTHING or plan.model_parallel * plan.cp * plan.ep > 1:
        raise Unsupported("{} is modelled with everything on every card (DDP); leave out what divides it", job.engine)
    if setting.trains == "text-kv" and plan.peft is not None:
        raise Unsupported("Custom Diffusion trains what reads the text, whole; leave out --peft")
    if len(pipeline.denoisers) > 1 and setting.trains != "denoiser":
        raise Unsupported("{} has two denoisers, of which {} says none", pipeline.name, setting.trains)
    if setting.fused and job.workload.grad_accum > 1:
        raise InvalidSpec("weights that are stepped within backward leave nothing to accumulate; use --grad-accum 1")
    if setting.trains == "embedding" and plan.peft is not None:
        raise Unsupported("textual inversion trains a word's embedding; leave out --peft")
    if setting.distils and not isinstance(pipeline.denoisers[0].network, UNet):
        raise Unsupported("distillation of {} is not modelled; that of UNets is", pipeline.name)
    if setting.trains == "controlnet" and plan.peft is not None:
        raise Unsupported("a ControlNet is trained whole; leave out --peft")


class _Run:
    """One job's programs."""

    def __init__(self, job: DiffusionJob) -> None:
        self.job = job
        self.types = TYPES[job.plan.precision]
        self.pipeline = job.pipeline
        self.denoiser = job.pipeline.denoisers[0]
        assert not isinstance(self.denoiser.network, Model)
        self.network = self.denoiser.network
        if job.setting.condition == "channels":
            if not isinstance(self.network, Flux):
                raise Unsupported("an image beside the channels of {} is not modelled; that of FLUX.1 is",
                                  self.pipeline.name)
            channels = self.network.in_channels
            self.network = replace(self.network, in_channels=2 * channels, out_channels=channels)
            before, self.denoiser = self.denoiser, replace(self.denoiser, network=self.network)
            parts = tuple(self.denoiser if part is before else part for part in self.pipeline.components)
            self.pipeline = replace(self.pipeline, components=parts)
        self.trainer = DIFFUSION[job.engine]
        self.rule = optimizer(job.plan.optimizer)
        self.full = job.plan.peft is None and job.setting.trains == "denoiser"
        self.tag = str(self.network.__struct_config__.tag)
        self.names = self._targets()

    def _words(self) -> tuple[str, ...]:
        """What adapters are put on, as the script says it."""
        return self.job.setting.targets or self.trainer.targets.get(self.tag, self.trainer.targets[""])

    def _targets(self) -> frozenset[str]:
        if self.job.plan.peft is None:
            return frozenset()
        names, lacking = adapted(self.tag, self._words())
        if lacking:
            raise Unsupported("adapters on {} of {} are not modelled: no linear of its blocks is called so",
                              ", ".join(lacking), self.tag)
        return names

    # what is held

    def frozen_tensors(self, component: Component, dtype: str) -> Tensors:
        peft = self.job.plan.peft
        packed = peft is not None and peft.base != "full" and component.role == "denoiser"
        quantised = peft.base if packed and peft is not None else dtype
        if component.role == "denoiser" and self.job.setting.weights:
            quantised = self.job.setting.weights
        found = list(component_tensors(component, Formats(quantised, dtype)))
        return self._on_card(found) if component.role == "denoiser" else found

    def _on_card(self, found: Tensors) -> Tensors:
        swapped = self.job.setting.swapped
        return on_card(found, self.network, swapped, self.pipeline.name) if swapped else found

    def dtype_of(self, component: Component) -> str:
        if component.role == "autoencoder":
            wide = getattr(component.network, "force_upcast", False)
            asked = self.job.setting.vae_dtype or ("fp32" if wide else "half")
            return self.types.frozen if asked == "half" else asked
        apart = component.role == "denoiser" and self.job.setting.distils == "apart"
        return "fp32" if apart else self.types.frozen

    def learning(self, component: Component) -> bool:
        """Whether a text encoder learns: those of CLIP do, T5 never does."""
        setting, network = self.job.setting, component.network
        learns = setting.text_learns or setting.text_words or setting.trains == "embedding"
        return component.role == "encoder" and learns and isinstance(network, Model) and network.hidden <= LARGEST_CLIP

    def whole_weights(self, component: Component) -> tuple[Weight, ...]:
        """Weights that learn, or stand beside some that do, in the type of what learns."""
        if isinstance(component.network, Model):
            tensors = component_tensors(component, Formats("fp32", "fp32"))
            return tuple(
                Weight(t.owner, t.name, (t.num_bytes // FP32,), n, self.types.width, source=t.source)
                for t, n in tensors
            )
        return tuple(
            Weight(f"{component.name}.{owner}", parameter.path, parameter.shape, count, self.types.width)
            for owner, parameter, count in weights_of(component.network)
        )

    def _whole_on_card(self, component: Component) -> Program:
        weights = self.whole_weights(component)
        if component.role != "denoiser" or not self.job.setting.swapped:
            return weight_program(weights)
        return loaded(self._on_card([(weight_tensor(weight), weight.repeats) for weight in weights]))

    # the step

    def tape(self, *, transient: bool) -> Training:
        tape = Training("denoiser", network_of(self.network).source, self._denoiser_learning())
        tape.transient = transient or self.job.setting.fused
        return tape

    def _denoiser_learning(self) -> Learning:
        job, types, network, peft = self.job, self.types, self.network, self.job.plan.peft
        blocks: Counter[str] = Counter()
        for owner, parameter, count in weights_of(network):
            if count > 1:
                blocks[f"denoiser.{owner}"] += parameter.elements
        learned_text = sum(elements_of(part.network) for part in self.pipeline.of_role("encoder")
                           if self.learning(part) and self.full)
        unet = self.tag == "UNet2DConditionModel"
        return Learning(
            full=self.full, of_text=job.setting.trains == "text-kv", width=types.width, autocast=types.autocast,
            adapts=adapts(self.names), rank=peft.rank if peft else 0, casts_input=self.trainer.casts_input,
            modulation=self.full or (job.setting.text_learns and not unet),
            checkpoint=job.plan.recompute is not Recompute.NONE,
            scores=job.plan.attention is AttentionKernel.EAGER,
            packed=(peft is not None and peft.base != "full") or bool(job.setting.weights),
            float8=job.setting.float8, frozen=FP32 if job.setting.distils == "apart" else 0,
            block_elements={} if unet else blocks,
            elements=count_elements(network) + learned_text, workspaces=job.workspaces,
        )

    def _text_learning(self, component: Component) -> Learning:
        base, setting = self._denoiser_learning(), self.job.setting
        names, _ = adapted("CLIPTextModel", self.trainer.text_targets)
        return base._replace(
            full=self.full, adapts=adapts(names if setting.text_learns and not self.full else frozenset()),
            rank=setting.text_rank or base.rank, packed=False, modulation=False,
            embedding=setting.text_words or setting.trains == "embedding", of_text=False,
        )

    def micro_batch(self, tape: Training) -> None:
        """Encoders, autoencoder, forward, loss and backward."""
        job, network = self.job, self.network
        step, compute = self.step(), self.types.compute
        pixels = [tape.new("pixels", self._pixels(), FP32, Category.INPUTS)] if job.setting.vae == "on" else []
        if job.setting.text == "on" or any(map(self.learning, self.pipeline.of_role("encoder"))):
            self._encode_text(tape)
        if job.setting.vae == "on":
            tape.nodes += self._encode_pixels()
        for part in LATENTS:
            pixels.append(tape.new(part, self._latent(step), compute))
        tape.learning = self._denoiser_learning()
        if job.setting.trains == "controlnet":
            out = self._controlled(tape, step)
        else:
            out = network_of(network).forward(tape, network, self._denoised(step))
        if job.setting.distils is not None:
            tape.nodes += self._taught(step)
        tape.backward(tape.cast(out, FP32, "prediction.fp32"))
        del out, pixels

    def _taught(self, step: Step) -> Program:
        """The teacher's prediction, between the student's forward and backward.

        Source: [examples] consistency_distillation/train_lcm_distill_lora_*.py
        """
        setting, written = self.job.setting, network_of(self.network)
        plain = Tape("teacher", written.source, dequantises=setting.distils == "apart" and not setting.teacher_half)
        written.forward(plain, self.network, step)
        return plain.program

    def _denoised(self, step: Step) -> Step:
        """What the denoiser reads: with a second image as tokens, twice as many."""
        return step._replace(height=2 * step.height) if self.job.setting.condition == "tokens" else step

    def _controlled(self, tape: Training, step: Step) -> Array:
        """A ControlNet that learns beside a UNet that only passes gradients on."""
        network = self._unet()
        hint = tape.new("conditioning image", self._pixels(), self.types.compute, Category.INPUTS)
        elements = sum(parameter.elements * count for _, parameter, count in control_parameters(network))
        learning, tape.learning = tape.learning, tape.learning._replace(full=True, elements=elements)
        with tape.owned("controlnet"):
            controls = control(tape, network, step, hint)
        tape.learning = learning._replace(checkpoint=False)
        out = unet_forward(tape, network, step, controls)
        tape.learning = tape.learning._replace(full=True, elements=elements)
        return out

    def _unet(self) -> UNet:
        if not isinstance(self.network, UNet):
            raise Unsupported("a ControlNet of {} is not modelled; those of UNets are", self.pipeline.name)
        return self.network

    def _encode_text(self, tape: Training) -> None:
        for component in self.pipeline.of_role("encoder"):
            if self.learning(component):
                tape.learning = self._text_learning(component)
                with tape.owned(component.name):
                    tape.encoded.append(self._text(tape, component))
            elif self.job.setting.text == "on":
                tape.nodes += self._encoded(component)

    def _encode_pixels(self) -> Program:
        part = self.pipeline.autoencoder
        if part is None or not isinstance(part.network, AutoencoderKL):
            return ()
        size = ITEMSIZES[self.dtype_of(part)]
        nothing = Learning(workspaces=self.job.workspaces)
        tape = Training(part.name, network_of(part.network).source, nothing)
        images, *shape = self._pixels()
        pixels = tape.new("pixels", (min(images, self.job.setting.encodes or images), *shape), size)
        encode(tape, part.network, pixels)
        del pixels
        return tape.program

    def _pixels(self) -> tuple[int, ...]:
        frames, height, width = self.job.size
        return (self.job.batch * frames, 3, height, width)

    def _latent(self, step: Step) -> tuple[int, ...]:
        return (step.batch, getattr(self.network, "in_channels", 16), step.frames, step.height, step.width)

    def step(self, *, batch: int | None = None, size: tuple[int, int, int] | None = None) -> Step:
        frames, height, width = size or self.job.size
        part = self.pipeline.autoencoder
        if part is None or isinstance(part.network, Model):
            raise Unsupported("{} has no autoencoder that is modelled", self.pipeline.name)
        scale = getattr(part.network, "scale", 8)
        for name, side in (("height", height), ("width", width)):
            if side % scale:
                raise InvalidSpec(
                    "{}={} is not a multiple of {} pixels; use {}", name, side, scale, side // scale * scale
                )
        rows, columns = height // scale // 2 * 2, width // scale // 2 * 2  # tokens are pairs of latents
        tokens = self.job.setting.tokens or self.pipeline.context_tokens
        return Step(batch or self.job.batch, latent_frames(part.network, frames), rows, columns, tokens,
                    self.types.compute)

    # phases

    def phases(self) -> tuple[Program, Program, Program]:
        """Load, first step, any step."""
        tape = self.tape(transient=False)
        self.micro_batch(tape)
        learned = self._learned(tape)
        nodes = list(tape.nodes)
        if self.job.workload.grad_accum > 1:
            later = self.tape(transient=True)
            self.micro_batch(later)
            nodes.append(Loop(self.job.workload.grad_accum - 1, later.program, label="micro-batches"))
        fused = self.job.setting.fused  # each weight is stepped as soon as its gradient is there
        update = () if fused else step_program(learned, self.rule, kernel=self.job.plan.optimizer_kernel or "foreach")
        if fused:
            largest = max(learned, key=lambda weight: weight.elements)
            update = step_program([replace(largest, repeats=1)], self.rule, kernel="loop")
        end = (*update, *(Free(tensor) for tensor in tape.kept))
        first = (*blas_workspaces(self.job), *self._buckets(learned), *nodes, *state_program(learned, self.rule), *end)
        return self._load(learned), first, (*nodes, *end)

    def _learned(self, tape: Training) -> tuple[Weight, ...]:
        width = self.types.width
        words = tuple(
            Weight(part.name, "token embedding", (part.network.vocab, part.network.hidden), 1, width)
            for part in self.pipeline.of_role("encoder") if self.learning(part) and isinstance(part.network, Model)
        ) if self.job.setting.text_words or self.job.setting.trains == "embedding" else ()
        if self.job.setting.trains == "embedding":
            return words
        if self.job.setting.trains == "text-kv":
            return (*words, *self._text_readers())
        if self.job.setting.trains == "controlnet":
            return tuple(Weight(owner, parameter.path, parameter.shape, count, width)
                         for owner, parameter, count in control_parameters(self._unet()))
        if not self.full:
            counts = Counter(tape.adapters)
            adapters = (Weight("adapters", name, shape, count, width) for (name, shape), count in counts.items())
            return (*words, *adapters)
        parts = [self.denoiser, *filter(self.learning, self.pipeline.of_role("encoder"))]
        return tuple(weight for part in parts for weight in self.whole_weights(part))

    def _text_readers(self) -> tuple[Weight, ...]:
        """Copies of what makes keys and values of the text, which learn in the place of those that stay."""
        return tuple(
            Weight("custom attention", parameter.path, parameter.shape, count, self.types.width)
            for _, parameter, count in weights_of(self._unet())
            if parameter.path in ("attn2.k.weight", "attn2.v.weight")
        )

    def _load(self, learned: tuple[Weight, ...]) -> Program:
        """What comes to the card, and what makes latents and text states before the first step and leaves."""
        setting, nodes = self.job.setting, list[Node]()
        whole = {self.denoiser.name} if self.full else set()
        whole |= {part.name for part in self.pipeline.of_role("encoder")
                  if self.learning(part) and (self.full or setting.trains == "embedding")}
        for component in self.pipeline.components:
            if component.name in whole:
                nodes += self._whole_on_card(component)
            elif self._placed(component) == "on" and (component is self.denoiser or component.role != "denoiser"):
                nodes += loaded(self.frozen_tensors(component, self.dtype_of(component)))
        if setting.distils == "apart":
            formats = Formats(*(2 * (self.types.frozen if setting.teacher_half else "fp32",)))
            nodes += loaded(list(component_tensors(replace(self.denoiser, name="teacher"), formats)))
        if not self.full and setting.trains != "embedding":  # a table of words is among its encoder's weights
            nodes += weight_program(learned)
        if setting.ema:
            nodes += weight_program(replace(weight, owner=f"ema.{weight.owner}") for weight in learned)
        return tuple(nodes)

    def caching(self) -> Program:
        """Networks that work before the first step, and leave; the cache is emptied behind them."""
        others = (part for part in self.pipeline.components if part.role != "denoiser")
        parts = [part for part in others if self._placed(part) == "cached"]
        together = [parts] if self.trainer.caches_beside else [[part] for part in parts]
        return max(map(self._made_by, together), key=lambda program: extent(program).peak, default=())

    def _placed(self, component: Component) -> str:
        if component.role == "autoencoder":
            return self.job.setting.vae
        if component.role == "encoder":
            return "on" if self.learning(component) else self.job.setting.text
        return "on"

    def _made_by(self, parts: list[Component]) -> Program:
        """Networks that come, work one after the other, and leave."""
        held = [self.frozen_tensors(part, self.dtype_of(part)) for part in parts]
        working = (node for part in parts for node in (
            self._encoded(part) if isinstance(part.network, Model) else self._encode_pixels()))
        return (*(node for one in held for node in loaded(one)), *working,
                *(node for one in held for node in unloaded(one)))

    def _text(self, tape: Tape, component: Component) -> Array:
        assert isinstance(component.network, Model)
        return text.forward(
            tape, component.network, batch=self.job.batch, tokens=component.tokens, itemsize=self.types.compute)

    def _encoded(self, component: Component) -> Program:
        """A text encoder of which nothing learns."""
        tape = Tape(component.name, text.SOURCE)
        self._text(tape, component)
        return tape.program

    def _buckets(self, learned: tuple[Weight, ...]) -> Program:
        if self.job.cluster.count == 1:
            return ()
        total = sum(weight.gradient_bytes * weight.repeats for weight in learned)
        return (Alloc(Tensor(
            name="buckets", num_bytes=total, category=Category.COMMUNICATION, owner="ddp",
            formula=f"{total:,} B of gradients", source="torch/nn/parallel/distributed.py",
        )),)

    def validation(self) -> Program:
        """A pipeline of what is there makes an image between steps; encoders that had left come back."""
        back = [self.frozen_tensors(part, self.dtype_of(part)) for part in self.pipeline.components
                if part.role != "denoiser" and self._placed(part) != "on"]
        return (*(node for tensors in back for node in loaded(tensors)), *self._image(),
                *(node for tensors in back for node in unloaded(tensors)))

    def afterwards(self) -> Program:
        """The image of the end: a pipeline that is loaded as it was stored, beside all that was trained."""
        again, half = self.job.setting.reloads, self.types.frozen
        if again is None:
            return ()
        parts = [replace(part, name=f"{part.name} again") for part in self.pipeline.components]
        held = [list(component_tensors(part, Formats(half, half))) for part in parts]
        if again == "cast" and half != "fp32":  # twice the bytes of 16 bits
            held.append(list(component_tensors(replace(self.denoiser, name="cast to fp32"), Formats(half, half))))
        return (*(node for tensors in held for node in loaded(tensors)), *self._image(),
                *(node for tensors in held for node in unloaded(tensors)))

    def _image(self) -> Program:
        pipeline, network = self.pipeline, self.network
        tape = Tape("denoiser", network_of(network).source, dequantises=self._denoiser_learning().packed)
        size = (pipeline.frames, pipeline.height, pipeline.width)
        step = self.step(batch=2 if pipeline.guidance else 1, size=size)
        network_of(network).forward(tape, network, self._denoised(step))
        vae = pipeline.autoencoder
        if vae is None or not isinstance(vae.network, AutoencoderKL):
            return tape.program
        plain = Tape(vae.name, network_of(vae.network).source)
        latent = plain.new("latents", (1, vae.network.latent_channels, step.height, step.width),
                           ITEMSIZES[self.dtype_of(vae)])
        network_of(vae.network).forward(plain, vae.network, latent)
        del latent
        return (*tape.nodes, *plain.nodes)

    # words

    def said(self) -> Iterator[str]:
        job, setting = self.job, self.job.setting
        frames, height, width = job.size
        if frames > 1:
            yield Note("samples of {} frames of {} x {} pixels, {} in a forward", frames, width, height, job.batch)
        else:
            yield Note("samples of {} x {} pixels, {} in a forward", width, height, job.batch)
        if job.engine == "sd-scripts":
            yield "sd-scripts' own code of the network is taken to keep what diffusers' keeps"
        vae = self.pipeline.autoencoder
        if vae is not None and setting.vae == "cached" and not isinstance(vae.network, AutoencoderKL):
            yield "latents are made before the first step; what the autoencoder takes meanwhile is not counted"
        if setting.validation and setting.reloads:
            yield RELOADED
        if len(self.pipeline.denoisers) > 1:
            yield "one of the two denoisers is on the card and trained"
        if job.plan.peft is not None:
            yield Note("adapters of rank {} on {}", job.plan.peft.rank, ", ".join(self._words()))


RELOADED: Final = (
    "after its last step the script loads the whole pipeline once more beside what it trained, to make the last "
    "images; without --validation_prompt it does not"
)

LARGEST_CLIP: Final = 1280
"""Width of the largest text encoder that these scripts train; T5 and language models stay frozen."""

LATENTS: Final = ("latents", "noise", "noisy latents", "target")
"""Of the size of a latent, beside forward and backward."""
