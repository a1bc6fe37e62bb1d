"""`vramcast.trace`, `simulate` and `assert_fits`: any PyTorch code on a simulated card.

`vramcast.tune`: the changes of a script that make it faster or let it fit, tried on a simulated card, as a patch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, overload

from msgspec.structs import replace

from vramcast.api.jobs import by_option
from vramcast.domain.trace_job import ScriptJob, Traced, TraceJob
from vramcast.emit.memory_snapshot import save_snapshot
from vramcast.errors import InvalidSpec, SourceError, Unsupported
from vramcast.formats.reading import Command
from vramcast.formats.tools.hf_command import launching, taken_apart
from vramcast.question.option import headroom_of
from vramcast.question.tracing import DEEPSPEED, build_script, build_trace, build_tune, is_command, is_script
from vramcast.question.varied import parse_axes
from vramcast.report.shown import ShownTrace
from vramcast.report.varied import ShownTuned, ShownVaried
from vramcast.sources.files import check_writable, write_whole

if TYPE_CHECKING:
    from types import TracebackType

    from vramcast.domain.answer import LedgerEntry, Peak


def tune(script: str | Path, *, args: Iterable[str] = (), **options: Any) -> ShownTuned:
    """The best of a script's changes, each tried by tracing the changed source.

    Args:
        script: a file of Python, which stays as it is
        args: its command line
        options: those of `vramcast tune --help`, with underscores: gpu="rtx-4090", goal="tokens/s", allow="bf16",
            any_batch=True

    Returns: what was tried; `patch` is the best as a unified diff, "" where the script is best as it is
    Raises: VramcastError of one sentence when it cannot be traced or has no training step
    """
    return tuned_script(str(script), by_option(options), arguments=args)


def tuned_script(
    path: str, options: Mapping[str, Any], *, arguments: Iterable[str] = (),
    say: Callable[[str], None] = lambda text: None,
) -> ShownTuned:
    """As `tune`; `say` is told of every trace."""
    job, asked = build_tune(path, options, arguments=arguments)
    require_torch()
    optim_of = import_module("vramcast.formats.tools.transformers").optim_of
    found = import_module("vramcast.tracing.tuning.search").tuned(job, asked, optim_of=optim_of, say=say)
    return ShownTuned(**{name: getattr(found, name) for name in found.__struct_fields__})


def check_patch(path: Path | None, *, force: bool) -> None:
    """Refuse before any work a patch that could not be written after it.

    Raises: SourceError where it is there already, or its folder is not
    """
    check_writable(path)
    if path is not None and path.exists() and not force:
        raise SourceError("{} is there already; name another file, or give --force", path)


def write_patch(answer: ShownTuned, path: Path | None) -> ShownTuned:
    """The answer with its patch in a file; nothing is written where it has none."""
    if path is None or not answer.patch:
        return answer
    write_whole(path, answer.patch)
    return replace(answer, patch_path=str(path))


CARD: Final = ("gpu", "device", "capacity", "alloc-conf", "steps")
"""Options of code that is at hand in Python; the others are for modules that are named."""

ParametersT = ParamSpec("ParametersT")
ResultT = TypeVar("ResultT")


class TraceResult(ShownTrace, frozen=True):
    """An answer that shows itself and writes its run."""

    def save(self, path: str | Path) -> None:
        """The run as a memory snapshot, which memory_viz and `vramcast replay` open.

        Raises: SourceError where it cannot be written
        """
        if self.snapshot is not None:
            save_snapshot(self.snapshot, Path(path))


def trace_result(traced: Traced) -> TraceResult:
    """The same answer, able to show itself and to write its run."""
    answer = {name: getattr(traced.answer, name) for name in traced.answer.__struct_fields__}
    return TraceResult(**answer, snapshot=traced.snapshot)


def trace(target: Any, *, args: Mapping[str, Any] | Iterable[str] = (), **options: Any) -> TraceResult:
    """The memory of any PyTorch code, unmodified, on a simulated card.

    Args:
        target: what `vramcast trace` takes ("torchvision.models:resnet50", "timm:NAME", "train.py"), a torch.nn.Module
            (a copy of which runs), or a function without arguments that does one step
        args: of the factory, by name; of a script, its command line
        options: those of `vramcast trace --help`, with underscores: gpu="rtx-4090", input="32x3x224x224", amp="bf16"

    Returns: the answer; it shows itself in a notebook, `save` and `write_html` write the run
    Raises: VramcastError of one sentence when it cannot be traced
    """
    given = by_option(options)
    if isinstance(target, (str, Path)):
        return trace_result(traced_target(str(target), given, arguments=args))
    if isinstance(target, require_torch().nn.Module):
        return trace_result(_traced_module(target, given))
    if not callable(target):
        raise InvalidSpec("{} cannot be traced; give a name, a torch.nn.Module or a function", type(target).__name__)
    return trace_result(_traced_function(target, given))


def vary(
    target: str, axes: str = "batch", *, args: Mapping[str, Any] | Iterable[str] = (), **options: Any
) -> ShownVaried:
    """The peak of a module or script as a function of its sizes, from few traces.

    Args:
        target: a name, see `trace`
        axes: "batch,seq", with ranges where they matter: "batch=1..64,seq=256..4096/256"
        args: of the factory, by name; of a script, its command line
        options: those of `vramcast trace --help`, with underscores

    Returns: the formula, the largest of each that fits, and a map
    Raises: VramcastError of one sentence when it cannot be traced, or does not follow the sizes
    """
    return varied_target(target, by_option({**options, "vary": (axes,)}), arguments=args)


def varied_target(
    target: str, options: Mapping[str, Any], *, arguments: Iterable[str] | Mapping[str, Any] = (),
    is_module: bool = False,
) -> ShownVaried:
    """As `vary`; `is_module`: a script named as with `python -m`."""
    axes = parse_axes(options["vary"])
    if is_module or is_script(target):
        job: TraceJob | ScriptJob = _script_job(target, options, tuple(arguments), is_module)
    else:
        job = build_trace(target, options, arguments=arguments)
    require_torch()
    found = import_module("vramcast.tracing.varied.answers").varied(job, axes, headroom_of(options))
    return ShownVaried(**{name: getattr(found, name) for name in found.__struct_fields__})


def traced_target(
    target: str, options: Mapping[str, Any], *, arguments: Iterable[str] | Mapping[str, Any] = (),
    is_module: bool = False,
) -> Traced:
    """The answer to the trace of a module or script by name; `is_module`: a script named as with `python -m`.

    Raises: VramcastError of one sentence
    """
    if is_module or is_script(target):
        return _traced_by("run", "answered_script", _script_job(target, options, tuple(arguments), is_module))
    goal, job = options.get("find"), build_trace(target, options, arguments=arguments)
    if goal is not None:
        return _traced_by("finding", "find_largest", job, goal, headroom_of(options))
    return _traced_by("run", "answered", job)


def _script_job(path: str, options: Mapping[str, Any], arguments: tuple[str, ...], is_module: bool) -> ScriptJob:
    is_launched = False
    if is_command(path):
        launch = taken_apart((path, *arguments))
        ranks = launching(launch, Command((path, *arguments))).ranks  # as many as the launcher is told to start
        options = {"world-size": str(ranks), **options} if ranks else options
        if path == DEEPSPEED:
            path, arguments = launch.program, ("--local_rank=0", *launch.words)
            is_launched = True
    job = build_script(path, options, arguments=arguments, is_module=is_module)
    return replace(job, is_launched=is_launched)


def _traced_module(module: Any, options: Mapping[str, Any]) -> Traced:
    name, run = type(module).__name__, import_module("vramcast.tracing.run")
    family = "transformers" if hasattr(module, "main_input_name") else "python"
    target = run.Target(name, family, lambda: run.copied(module))
    return _traced_by("run", "answered", build_trace(name, options), target)


def _traced_function(step: Callable[[], Any], options: Mapping[str, Any]) -> Traced:
    steps, card = _card(options, getattr(step, "__name__", "step"))
    return _traced_by("run", "run_steps", step, card, steps=steps)


def _card(options: Mapping[str, Any], what: str) -> tuple[int, Any]:
    for name in options:
        if name not in CARD:
            raise InvalidSpec("{} means nothing for code at hand; use {}", name.replace("-", "_"), ", ".join(CARD))
    job = build_trace(what, options)
    require_torch()
    simulated = import_module("vramcast.tracing.run").Simulated
    return job.steps, simulated(job.gpu, capacity_bytes=job.capacity_bytes, alloc_conf=job.alloc_conf, what=what)


class Simulation:
    """A simulated card under `with`; afterwards, what ran on it."""

    def __init__(self, options: Mapping[str, Any], what: str = "simulation") -> None:
        _, self._card = _card(options, what)
        self._answer: TraceResult | None = None

    def __enter__(self) -> Simulation:
        self._card.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._card.stop()
        self._answer = None

    def step(self) -> None:
        """A step ends here. Those of optimizers are seen without it; inference has none."""
        self._card.mark_step()

    @property
    def answer(self) -> TraceResult:
        """What has run so far: whether it fits, the peak, the ledger."""
        if self._answer is None or self._answer.events != self._card.num_events:
            self._answer = trace_result(self._card.traced())
        return self._answer

    @property
    def fits(self) -> bool:
        """Whether the card holds it."""
        return self.answer.fits

    @property
    def peak(self) -> Peak:
        """Of the last step, at the three levels."""
        return self.answer.peak

    @property
    def ledger(self) -> tuple[LedgerEntry, ...]:
        """What is in that peak."""
        return self.answer.ledger

    def save(self, path: str | Path) -> None:
        """The run as a memory snapshot, which memory_viz and `vramcast replay` open."""
        self.answer.save(path)

    def __str__(self) -> str:
        return str(self.answer)

    def _repr_html_(self) -> str:
        return self.answer._repr_html_()


def simulate(gpu: str | None = None, **options: Any) -> Simulation:
    """A card that is not there: within the block torch sees it, and nothing computes.

        with vramcast.simulate("h100-sxm-80gb") as run:
            model = Model().cuda()
            ...
        print(run.peak.reserved_bytes, run.fits)

    Args:
        gpu: a name of `vramcast gpus`
        options: capacity="24GiB", alloc_conf="expandable_segments:True"

    Raises: VramcastError of one sentence
    """
    return Simulation(by_option({"gpu": gpu, **options} if gpu is not None else options))


@overload
def assert_fits(target: None = None, **options: Any) -> Callable[
    [Callable[ParametersT, ResultT]], Callable[ParametersT, ResultT]
]: ...
@overload
def assert_fits(target: Any, **options: Any) -> TraceResult: ...
def assert_fits(target: Any = None, **options: Any) -> Any:
    """For tests and CI: that code fits a card.

        vramcast.assert_fits("torchvision.models:resnet50", input="32x3x224x224", gpu="t4")

        @vramcast.assert_fits(gpu="rtx-4090")
        def test_training_step(): ...

    Args:
        target: see `trace`; without one this is a decorator, and the function runs on the card
        options: those of `trace`

    Returns: the answer, or the decorator
    Raises: AssertionError with the report where it does not fit
    """
    if target is not None:
        return _asserted(trace(target, **options))

    def decorate(function: Callable[ParametersT, ResultT]) -> Callable[ParametersT, ResultT]:
        @wraps(function)
        def run(*args: ParametersT.args, **kwargs: ParametersT.kwargs) -> ResultT:
            with Simulation(by_option(options), function.__name__) as simulation:
                result = function(*args, **kwargs)
            _asserted(simulation.answer)
            return result

        return run

    return decorate


def _asserted(answer: TraceResult) -> TraceResult:
    if not answer.fits:
        raise AssertionError(str(answer))
    return answer


def _traced_by(module: str, function: str, *given: Any, **how: Any) -> Traced:
    """What a function of `vramcast.tracing`, which imports torch, comes to."""
    require_torch()
    traced: Traced = getattr(import_module(f"vramcast.tracing.{module}"), function)(*given, **how)
    return traced


def require_torch() -> Any:
    """The module torch; raises Unsupported, which says what to install, where it is missing."""
    try:
        return import_module("torch")
    except ImportError:
        raise Unsupported("tracing runs PyTorch, which is not installed: pip install 'vramcast[trace]'") from None
