"""From a job to steps: a module built and shared among ranks, inputs moved, forward, loss, backward, optimizer.

A loader that fed the steps gives no further batch, which ends the loop around it; loaders that are started afterwards
give a few each, as evaluations need no more, until a step of the next epoch ends the run. Loops over other things
cannot be cut: there a run ends with its steps.
"""

from __future__ import annotations

import fnmatch
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data.dataloader import _BaseDataLoaderIter

from vramcast.allocator import DeviceOutOfMemory
from vramcast.domain.trace_job import TraceJob
from vramcast.errors import InvalidSpec, Note, UnknownName, Unsupported
from vramcast.tracing.inputs import Feed, default_loss, describe, make_loss, sizes_of
from vramcast.tracing.session import Session
from vramcast.tracing.targets import Target, explained, found_object, unfetched

LEARNING_RATE: Final = 1e-3
MOMENTUM: Final = 0.9

Make = Callable[..., torch.optim.Optimizer]

OPTIMIZERS: Final[Mapping[str, tuple[str, dict[str, Any]]]] = {
    "sgd": ("SGD", {"lr": LEARNING_RATE}),
    "momentum": ("SGD", {"lr": LEARNING_RATE, "momentum": MOMENTUM}),
    "nesterov": ("SGD", {"lr": LEARNING_RATE, "momentum": MOMENTUM, "nesterov": True}),
    "adam": ("Adam", {}),
    "amsgrad": ("Adam", {"amsgrad": True}),
    "adamw": ("AdamW", {}),
    "adagrad": ("Adagrad", {}),
    "adadelta": ("Adadelta", {}),
    "adamax": ("Adamax", {}),
    "nadam": ("NAdam", {}),
    "radam": ("RAdam", {}),
    "asgd": ("ASGD", {}),
    "rprop": ("Rprop", {}),
    "rmsprop": ("RMSprop", {}),
    "adafactor": ("Adafactor", {}),
    "muon": ("Muon", {}),
}
"""Name -> class of torch.optim and what it is made with."""

KERNELS: Final[Mapping[str, dict[str, Any]]] = {
    "fused": {"fused": True}, "foreach": {"foreach": True}, "loop": {"foreach": False},
}
"""What may stand behind a name: how a step is computed. torch's own choice on a card is foreach."""

EIGHT_BIT: Final[Mapping[str, str]] = {
    "adam-8bit": "Adam8bit", "adamw-8bit": "AdamW8bit", "sgd-8bit": "SGD8bit", "lion-8bit": "Lion8bit",
    "adamw-8bit-paged": "PagedAdamW8bit",
}
"""Name -> class of bitsandbytes.optim."""


def make_optimizer(name: str, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer of a name or of module:Class.

    Raises: UnknownName with the nearest names, Unsupported where its library is missing
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if not trained:
        raise InvalidSpec("no parameter of the module needs a gradient; trace it with --eval")
    if ":" in name:
        found: Make = _own_optimizer(name)
        return found(trained)
    if name in EIGHT_BIT:
        return getattr(_bitsandbytes(), EIGHT_BIT[name])(trained)
    plain, _, kernel = name.rpartition("-")
    if kernel not in KERNELS:
        plain, kernel = name, ""
    if plain not in OPTIMIZERS:
        raise UnknownName.of("optimizer", name, (*OPTIMIZERS, *EIGHT_BIT, *(f"adamw-{each}" for each in KERNELS)))
    class_name, values = OPTIMIZERS[plain]
    try:
        return getattr(torch.optim, class_name)(trained, **values, **KERNELS.get(kernel, {}))
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidSpec("optimizer={}: torch.optim.{} says: {}", name, class_name, error) from None


def _own_optimizer(name: str) -> Make:
    found = found_object(name)
    if not callable(found):
        raise InvalidSpec("optimizer={} is no class or function that makes an optimizer", name)
    return found


def _bitsandbytes() -> Any:
    try:
        return importlib.import_module("bitsandbytes.optim")
    except ImportError:
        raise Unsupported("8-bit optimizers are those of bitsandbytes: pip install bitsandbytes") from None


BACKEND: Final = "nccl"


def shared(model: torch.nn.Module, how: str, device: torch.device, blocks: list[torch.nn.Module]) -> torch.nn.Module:
    """The module on this rank; its blocks are gathered one after the other."""
    torch.cuda.set_device(device)
    torch.distributed.init_process_group(BACKEND)
    return WRAPPERS[how](model, device, blocks)


def _ddp(model: torch.nn.Module, device: torch.device, _blocks: list[torch.nn.Module]) -> torch.nn.Module:
    found: torch.nn.Module = DistributedDataParallel(model.to(device), device_ids=[device.index])
    return found


def _fsdp(model: torch.nn.Module, device: torch.device, blocks: list[torch.nn.Module]) -> torch.nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    policy = ModuleWrapPolicy({type(block) for block in blocks}) if blocks else None
    found: torch.nn.Module = FullyShardedDataParallel(
        model, auto_wrap_policy=policy, device_id=device, use_orig_params=True
    )
    return found


def _fsdp2(model: torch.nn.Module, device: torch.device, blocks: list[torch.nn.Module]) -> torch.nn.Module:
    from torch.distributed.fsdp import fully_shard

    for module in (*blocks, model):
        fully_shard(module)
    return model.to(device)


WRAPPERS: Final[Mapping[str, Callable[[torch.nn.Module, torch.device, list[torch.nn.Module]], torch.nn.Module]]] = {
    "ddp": _ddp, "fsdp": _fsdp, "fsdp2": _fsdp2,
}
"""Name -> how torch does it. Both kinds of FSDP gather the blocks that repeat one by one, and what is left as one."""


DTYPES: Final = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
BLOCKS: Final = "blocks"  # name for all modules that repeat: the entries of lists and sequences of one class
FEWEST_REPEATS: Final = 2
MOST_NORM: Final = 1.0


class Workload:
    """A built job: steps that can be run within an active session."""

    def __init__(self, job: TraceJob, target: Target, session: Session) -> None:
        """Builds the module and moves it; must be called within the session.

        Raises: VramcastError of one sentence
        """
        self.job, self.target, self._session = job, target, session
        self.device = session.device.torch_device
        self.model = _built(target, job)
        described = describe(target, self.model, job)
        batch, seq_len, said = sizes_of(described, job, self.model)
        self.batch, self.seq_len, self.described = batch, seq_len, described
        self.assumptions = [*job.assumptions, *described.assumptions, *said]
        self.num_parameters = sum(parameter.numel() for parameter in self.model.parameters())
        self.recomputed = recompute(self.model, job.checkpoint) if job.checkpoint else ()
        self.model = self._placed().train(job.is_training)
        weights = next((each.dtype for each in self.model.parameters() if each.is_floating_point()), torch.float32)
        self._feed = Feed(described, batch=batch, seq_len=seq_len, dtype=weights, is_training=job.is_training)
        self._loss = make_loss(job.loss) if job.loss else None
        self._optimizer = make_optimizer(job.optimizer, self.model.parameters()) if job.is_training else None
        self._scaler = torch.amp.GradScaler(self.device.type) if job.is_training and job.amp == "fp16" else None
        if job.compiles:
            self.model.compile()

    def _placed(self) -> torch.nn.Module:
        """The module on the device, or this rank's share of it."""
        if not self.job.parallel:
            return self.model.to(self.device)

        modules = dict(self.model.named_modules())
        return shared(self.model, self.job.parallel, self.device, [modules[name] for name in blocks_of(self.model)])

    def run(self) -> None:
        """All steps.

        Raises: VramcastError of one sentence
        """
        step = self._train if self.job.is_training else self._infer
        for _ in range(self.job.steps):
            step()

    def _train(self) -> None:
        assert self._optimizer is not None
        for _ in range(self.job.accumulate):
            loss = self._begin()
            with _explaining("backward", self.model):
                (self._scaler.scale(loss) if self._scaler else loss).backward()
            del loss
        with _explaining("the optimizer's step", self.model):
            self._update(self._optimizer)

    def _update(self, optimizer: torch.optim.Optimizer) -> None:
        if self.job.clips:
            if self._scaler is not None:
                self._scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), MOST_NORM)
        if self._scaler is not None:
            self._scaler.step(optimizer)
            self._scaler.update()
        else:
            optimizer.step()
        optimizer.zero_grad(set_to_none=self.job.zero_grad == "none")

    def _infer(self) -> None:
        with torch.no_grad():
            self.forward()
        self._session.memory.mark_step()

    def forward(self) -> Any:
        positional, named = self._moved()
        with self._autocast(), _explaining("the forward", self.model):
            return self.model(*positional, **named)

    def _begin(self) -> torch.Tensor:
        output = self.forward()
        with self._autocast(), _explaining("the loss", self.model):
            return self._loss_of(output)

    def _loss_of(self, output: Any) -> torch.Tensor:
        if self._loss is None:
            name = default_loss(output, self.target.family)
            self.assumptions.append(Note("no --loss given: {}", LOSS_WORDS.get(name, name)))
            self._loss = make_loss(name)
        return self._loss(output)

    def _moved(self) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
        positional, named = self._feed()
        to = self.device
        return [tensor.to(to) for tensor in positional], {name: tensor.to(to) for name, tensor in named.items()}

    def _autocast(self) -> Any:
        return torch.autocast(self.device.type, dtype=DTYPES[self.job.amp]) if self.job.amp else nullcontext()


LOSS_WORDS: Final = {"own": "the model's own", "mean": "the mean of the first output"}


@contextmanager
def _explaining(what: str, model: torch.nn.Module | None = None) -> Iterator[None]:
    """Turns what a user's code raises into one sentence."""
    try:
        yield
    except DeviceOutOfMemory:
        raise
    except Exception as error:
        raise explained(error, what=what, model=model) from error


def _built(target: Target, job: TraceJob) -> torch.nn.Module:
    try:
        with unfetched():
            model = target.build()
    except TypeError as error:
        if "required" in str(error) and "argument" in str(error):
            raise InvalidSpec("{} needs arguments: {}; give them with --arg name=value", target.name, error) from None
        raise explained(error, what=f"building {target.name}") from error
    except Exception as error:
        raise explained(error, what=f"building {target.name}") from error
    return model.to(DTYPES[job.dtype]) if job.dtype else model


def recompute(model: torch.nn.Module, patterns: tuple[str, ...]) -> tuple[str, ...]:
    """Let modules be recomputed in backward, by patterns of names ("layers.*"), classes, "blocks": all that repeat.

    Raises: UnknownName where a pattern matches nothing
    """
    modules = dict(model.named_modules())
    chosen: list[str] = []
    for pattern in patterns:
        found = list(blocks_of(model)) if pattern == BLOCKS else [
            name for name, module in modules.items()
            if name and (fnmatch.fnmatchcase(name, pattern) or type(module).__name__ == pattern)
        ]
        if not found:
            raise UnknownName.of("module to recompute", pattern, dict.fromkeys([BLOCKS, *filter(None, modules)]))
        chosen += [name for name in found if name not in chosen]
    outermost = [name for name in chosen if not any(name.startswith(f"{other}.") for other in chosen)]
    for name in outermost:
        _recomputed(modules[name])
    return tuple(outermost)


def blocks_of(model: torch.nn.Module) -> Iterator[str]:
    """Names of the outermost modules that repeat: children of one class in a list or sequence."""
    begun: list[str] = []
    for name, module in model.named_modules():
        if not isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)):
            continue
        if any(name.startswith(f"{other}.") for other in begun):
            continue
        classes = [type(child) for child in module.children() if any(True for _ in child.parameters())]
        if len(classes) >= FEWEST_REPEATS and len(set(classes)) == 1 and any(True for _ in module[0].children()):
            for child, _ in module.named_children():
                begun.append(f"{name}.{child}" if name else child)
                yield begun[-1]


def _recomputed(module: torch.nn.Module) -> None:
    forward: Callable[..., Any] = module.forward

    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    module.forward = run


BATCHES: Final = 2
"""Of a loader that no backward follows: the second comes while results of the first are there."""
STEPS: Final = 3
"""After which a loop that goes on, though its loader has ended, is none over that loader: some look a batch ahead."""
NOT_CUT: Final = "what comes after these steps, as an evaluation, is not part of the answer; --steps runs further"
CUT: Final = "loops over data were cut short after these steps: what came behind them ran for {} batches each"
FAILED: Final = "what came after these steps ended with {}, which may be because its loops were cut short: {}"


class Loaders:
    """Every iterator over a loader, and which of them give no more."""

    def __init__(self) -> None:
        self.is_cut = False
        self.has_restarted = False  # a loader was started after the cut
        self._given: WeakKeyDictionary[Any, tuple[int, int]] = WeakKeyDictionary()
        """Iterator -> batches it gave, backwards before the first of them; within one side of the cut."""
        self._before: set[int] = set()  # ids of iterators that were under way at the cut

    def start(self) -> None:
        """Follow the batches of all loaders of this process."""
        give: Any = _BaseDataLoaderIter.__next__
        loaders = self

        def given(iterator: Any) -> Any:
            if loaders.has_ended(iterator):
                raise StopIteration
            batch = give(iterator)
            loaders.note(iterator)
            return batch

        _BaseDataLoaderIter.__next__ = given
        self.backwards = 0

    def note(self, iterator: Any) -> None:
        count, backwards = self._given.get(iterator, (0, self.backwards))
        self._given[iterator] = count + 1, backwards
        self.has_restarted = self.is_cut

    def has_ended(self, iterator: Any) -> bool:
        """Whether it gives no more, as if its data had come to an end."""
        if not self.is_cut:
            return False
        if id(iterator) in self._before:
            return True
        count, backwards = self._given.get(iterator, (0, self.backwards))
        return count >= BATCHES and backwards == self.backwards

    def cut(self) -> bool:
        """End the loops that are under way; whether there are any."""
        kept = list(self._given)
        self._before = set(map(id, kept))
        self._kept = kept  # so that no other iterator is taken for one of them
        self.is_cut = bool(kept)
        return self.is_cut
