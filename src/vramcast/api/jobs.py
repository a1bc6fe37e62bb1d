"""Options, by whatever way they were given, turned into a job and its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from msgspec.structs import replace

from vramcast.domain.job import Job
from vramcast.domain.model import Model
from vramcast.errors import InvalidSpec
from vramcast.question.build import Resolve
from vramcast.question.configs.paths import Configs, is_script

if TYPE_CHECKING:
    from vramcast.domain.answer import Answer, ServeAnswer
    from vramcast.domain.planning import PlanAnswer
    from vramcast.domain.serving import PipelineJob, ServeJob
    from vramcast.question.configs.readers import Given
    from vramcast.question.configs.searched import ForSearch
    from vramcast.question.options import Option


def by_option(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords as the tables of options name them."""
    return {name.replace("_", "-"): value for name, value in keywords.items()}


def paths(given: str | Path | Sequence[str | Path]) -> tuple[str | Path, ...] | None:
    """One file or several, as the option `from` has them; None where there are none."""
    return ((given,) if isinstance(given, (str, Path)) else tuple(given)) or None


NotedT = TypeVar("NotedT", bound="Answer | PlanAnswer")


class Asked(NamedTuple):
    """A question, whatever way its parts were given."""

    options: dict[str, Any]  # all of them; what says how files are read is done with
    resolve: Resolve
    model: str | Model | None = None  # as a command line names it; a Model: only Python has it
    assumptions: tuple[str, ...] = ()  # what files of other tools said
    ignored: tuple[str, ...] = ()  # what of them the answer is without

    def noted(self, answer: NotedT) -> NotedT:
        """An answer with what files said."""
        return replace(
            answer, assumptions=(*self.assumptions, *answer.assumptions), ignored=(*self.ignored, *answer.ignored)
        )


def serve_answer(
    options: Mapping[str, Any], *, file: str | Path | None = None, resolve: Resolve | None = None,
    with_changes: bool = True,
) -> ServeAnswer:
    """The answer to a serving question on top of a job file: of its plan, or of the plan it asks to find."""
    from vramcast.domain.serving import PipelineJob
    from vramcast.question.options import NO_SEARCH
    from vramcast.question.serving import build_serving, goal_of
    from vramcast.question.serving_options import SERVE_OPTIONS

    asked = question_of(options, file, SERVE_OPTIONS, command="serve")
    goal, job = goal_of(asked.options), build_serving(asked.options, resolve=resolve or asked.resolve)
    if goal is None and asked.options.get("headroom") is not None:
        raise InvalidSpec(NO_SEARCH)
    if goal is None or isinstance(job, PipelineJob):
        from vramcast.estimate.serving import answer

        return asked.noted(answer(job, with_changes=with_changes))
    from vramcast.catalogue.gpus import gpu_names, load_gpu
    from vramcast.question.amounts import headroom_of
    from vramcast.search.serving import find

    return asked.noted(find(goal, job, cards=map(load_gpu, gpu_names()), headroom=headroom_of(asked.options)))


def train_answer(
    options: Mapping[str, Any], *, file: str | Path | None = None, resolve: Resolve | None = None,
    with_changes: bool = True,
) -> tuple[Job, Answer]:
    """A training question on top of a job file: the job, and its answer with what files of other tools said."""
    from vramcast.estimate.training import answer
    from vramcast.question.build import build_job
    from vramcast.question.options import OPTIONS

    asked = question_of(options, file, OPTIONS, command="train")
    job = build_job(asked.options, resolve=resolve or asked.resolve)
    return job, asked.noted(answer(job, with_changes=with_changes))


def job_of(
    options: Mapping[str, Any], *, file: str | Path | None = None, resolve: Resolve | None = None
) -> Job:
    """The training job that options ask for, on top of a job file; `resolve` finds models in another way than usual."""
    from vramcast.question.build import build_job
    from vramcast.question.options import OPTIONS

    asked = question_of(options, file, OPTIONS, command="train")
    return build_job(asked.options, resolve=resolve or asked.resolve)


def serve_job_of(
    options: Mapping[str, Any], *, file: str | Path | None = None, resolve: Resolve | None = None
) -> ServeJob | PipelineJob:
    """The serving job that options ask for, on top of a job file; `resolve` finds models in another way than usual."""
    from vramcast.question.serving import build_serving
    from vramcast.question.serving_options import SERVE_OPTIONS

    asked = question_of(options, file, SERVE_OPTIONS, command="serve")
    return build_serving(asked.options, resolve=resolve or asked.resolve)


def question_of(
    options: Mapping[str, Any], file: str | Path | None, table: Mapping[str, Option], *, command: str = "",
    search: bool = False,
) -> Asked:
    """The options over those of files of other tools, and those over a job file's.

    Args:
        options: as given by name
        file: a job file
        table: the options of the command
        command: "train" or "serve", for which files of other tools are read; "": they are for neither
        search: whether they say what is trained or served, and how it is split is looked for
    """
    from vramcast.question.configs.paths import OPTIONS as ABOUT_FILES
    from vramcast.question.configs.paths import configs_in
    from vramcast.question.options import over

    merged: dict[str, Any] = {}
    if file is not None:
        from vramcast.question.files import read_job

        merged |= read_job(Path(file), table)
    named = {name: value for name, value in options.items() if value is not None}
    configs = configs_in(merged | named)
    beneath = {name: value for name, value in merged.items() if name not in ABOUT_FILES}
    named = {name: value for name, value in named.items() if name not in ABOUT_FILES}
    said: Given | ForSearch | None = None
    if configs.paths and search:
        from vramcast.question.configs.readers import read_files
        from vramcast.question.configs.searched import for_search

        given = read_files(configs.paths, command=command, format_name=configs.format_name)
        said = for_search(given, beneath | named, command, ignore_unread=configs.ignore_unread)
        merged = said.options
    elif configs.paths:
        from vramcast.question.configs.merged import with_configs

        merged, said = with_configs(named, configs, command=command, beneath=beneath)
    else:
        merged = over(named, beneath)
    assumptions, ignored = (said.assumptions, said.ignored) if said is not None else ((), ())
    return _with_network(merged, configs, assumptions, ignored)


def _with_network(
    merged: dict[str, Any], configs: Configs, assumptions: tuple[str, ...], ignored: tuple[str, ...]
) -> Asked:
    """The question with its model: a network that the caller has, one that a script describes, or a name."""
    from vramcast.domain.checkpoint import Checkpoint
    from vramcast.sources.resolve import resolve_checkpoint

    named = model = merged.get("model")
    if is_script(model):
        from vramcast.question.configs.merged import script_network

        model, left = script_network(Path(str(model)), ignore_unread=configs.ignore_unread)
        ignored = (*ignored, *left)
    if not isinstance(model, Model):
        return Asked(merged, resolve_checkpoint, named, assumptions, ignored)
    own = model
    if isinstance(named, Model):  # read from a file, whose path names it as well
        named = next((str(path) for path in configs.paths if Path(path).name == own.name and is_script(path)), own)

    def resolve(text: str) -> Checkpoint:
        return Checkpoint(model=own) if text == own.name else resolve_checkpoint(text)

    return Asked(merged | {"model": own.name}, resolve, named, assumptions, ignored)
