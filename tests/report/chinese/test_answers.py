"""Sentences and answers are Chinese from top to bottom, and English ones are untouched."""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest
from msgspec.structs import asdict

import vramcast
from vramcast.domain.answer import Answer, PostTrainingAnswer, ServeAnswer
from vramcast.errors import VramcastError
from vramcast.report.chinese import in_chinese, rows, shape
from vramcast.report.messages import Words
from vramcast.report.text import render

# Every sentence that the source makes has its Chinese form: templates are looked up, so a row must hold each.

ENGLISH = re.compile(r"(?<![\w/.`'-])[A-Za-z][a-z']+(?:,? [a-z][a-z']+){2,}")
"""Three words in a row that are no name."""
COMMANDS = re.compile(r"`[^`]*`|pip install [\w, ]+|npm \w+ [\w@]+|zstd -d|sysctl [\w.]+|truth/[^ ]*")

SOURCE: Final = Path(vramcast.__file__).parent
MAKERS: Final = {
    "Note": 0, "InvalidSpec": 0, "Unsupported": 0, "UnknownName": 0, "SourceError": 0, "OutOfMemory": 0, "Absent": 0,
    "Unread": 1, "cannot": 1, "refuse": 1, "must_be_off": 1, "must_be_unset": 1, "must_be_empty": 1,
    "wrong": 1, "Refused": 2,
}
"""What makes a sentence -> which of its arguments is the template."""
LISTS: Final = ("assumptions", "warnings", "notes", "found", "lines", "said", "left_out", "refusals", "shortfall",
                "reason", "note", "why", "mismatch")
"""What holds sentences: lists that are appended to, variables, arguments."""
SAYING: Final = re.compile(
    r"assum|warn|caution|note|said|shortfall|recipe|idle|ignored|mismatch|remarks|nothing_possible"
)
"""Names of functions whose texts are sentences."""
RULE: Final = "{}={} of {} "
"""What stands before the rule of a field of a configuration."""
READ_BY_US: Final = (
    "allocator/caching.py", "allocator/failure.py", "allocator/heap.py", "allocator/search.py",
    "allocator/views.py", "catalogue/contexts.py", "catalogue/cudnn.py", "catalogue/gpus.py",
    "catalogue/instances.py", "catalogue/index.py", "catalogue/models.py", "catalogue/multiprocessors.py",
    "catalogue/pipelines.py", "catalogue/prices.py", "catalogue/tables.py", "sources/prices/",
)
"""Files whose sentences no visitor reads: defects of the catalogue's own tables and of a simulation driven by hand, and
replies of price lists to an update."""


Constants = Mapping[str, ast.expr]
"""Name -> what a module keeps under it."""


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _texts(node: ast.expr, constants: Constants) -> Iterator[ast.Constant | ast.JoinedStr]:
    """The texts that an expression may be."""
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        yield node
    elif isinstance(node, ast.IfExp):
        yield from (*_texts(node.body, constants), *_texts(node.orelse, constants))
    elif isinstance(node, (ast.Tuple, ast.List)):
        for one in node.elts:
            yield from _texts(one, constants)
    elif isinstance(node, (ast.GeneratorExp, ast.ListComp)):
        yield from _texts(node.elt, constants)
    elif isinstance(node, ast.Starred):
        yield from _texts(node.value, constants)
    elif isinstance(node, ast.Call) and _name(node.func) in ("tuple", "list", "_unique"):
        for one in node.args:
            yield from _texts(one, constants)
    elif isinstance(node, ast.Name) and node.id in constants:
        yield from _texts(constants[node.id], {})


def _templates(node: ast.AST, constants: Constants) -> Iterator[tuple[str, ast.Constant | ast.JoinedStr]]:
    """What stands before a template, and the template, of what a node of the source says."""
    if isinstance(node, ast.Call) and (place := MAKERS.get(_name(node.func))) is not None and len(node.args) > place:
        before = RULE if _name(node.func) == "wrong" else ""
        yield from ((before, text) for text in _texts(node.args[place], constants))
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("append", "note"):
        if _name(node.func.value) in LISTS:
            yield from (("", text) for text in _texts(node.args[0], constants))
    elif isinstance(node, ast.FunctionDef) and SAYING.search(node.name):
        found = (one.value for one in ast.walk(node) if isinstance(one, (ast.Return, ast.Yield)) and one.value)
        yield from (("", text) for value in found for text in _texts(value, constants))
    elif isinstance(node, ast.keyword) and node.arg in LISTS:
        yield from (("", text) for text in _texts(node.value, constants))


def _words(text: str) -> int:
    return len(re.findall(r"(?<![\w.`-])[A-Za-z][a-z']+(?![\w.])", text.replace("{}", " ")))


def _said() -> Iterator[tuple[str, str, bool]]:
    """Place, shape and whether it is an f-string, of every sentence of the source that a visitor may read."""
    for path in sorted(SOURCE.rglob("*.py")):
        name = str(path.relative_to(SOURCE))
        if name.startswith(READ_BY_US):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        constants = {
            target.id: node.value for node in tree.body if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value
            for target in (node.targets if isinstance(node, ast.Assign) else (node.target,))
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            for before, text in _templates(node, constants):
                if isinstance(text, ast.JoinedStr):
                    parts = (str(one.value) if isinstance(one, ast.Constant) else "{}" for one in text.values)
                    english = before + "".join(parts)
                else:
                    english = before + (shape(text.value)[0] if "{" in text.value else text.value)
                if _words(english) >= 3:
                    yield f"{name}:{text.lineno}", english, isinstance(text, ast.JoinedStr)


SAID: Final = list(_said())

IN_FILES: Final = ("formats/launch.py", "formats/write.py", "formats/tools/torchtitan.py", "formats/tools/torchtune.py")
"""Write comments into files, in English for whoever runs them."""


def test_the_source_is_searched() -> None:
    assert len(SAID) > 1500
    known = {english for _, english, _ in SAID}
    assert "every expert receives the same number of tokens" in known  # a text that a function returns
    assert "{} with a loss scale: {} has no bf16 tensor cores" in known  # yielded
    assert "no plan of {} is known here" in known  # in a variable


def test_every_sentence_keeps_its_template() -> None:
    """An f-string is English for good: write Note("... {} ...", value), or the error with the same."""
    assert [one for one in SAID if one[2] and not one[0].startswith(IN_FILES)] == []


def test_every_template_has_a_chinese_row() -> None:
    """Each that has none is to get a row in a catalogue of report/words/zh."""
    assert {place: english for place, english, _ in SAID if not place.startswith(IN_FILES)
            and english not in rows() and ("{}" in english or in_chinese(english) == english)} == {}


def test_every_kind_of_name_that_may_be_unknown_has_a_chinese_row() -> None:
    sources = (path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))
    kinds = {kind for source in sources for kind in re.findall(r'UnknownName\.of\(\s*(?:Note\()?"([^"]+)"', source)}
    assert len(kinds) > 40
    assert kinds - rows().keys() == set()


def test_no_row_is_half_english() -> None:
    assert [row.chinese for row in rows().values() if ENGLISH.search(COMMANDS.sub("", row.chinese))] == []


# Answers to many questions are Chinese from top to bottom, and English ones are untouched.

ZH = Words("zh")

TRAINING = [
    {"model": "llama-3.1-8b", "gpus": "8xa100-sxm4-80gb", "engine": "megatron", "tp": 2, "pp": 2, "seq_len": 32768},
    {"model": "deepseek-v3", "gpus": "16x8xh800-sxm-80gb", "engine": "megatron", "tp": 2, "pp": 8, "ep": 8},
    {"model": "qwen3-8b", "gpus": "8xv100-sxm2-32gb", "engine": "deepspeed", "zero": 3, "offload_optimizer": "cpu"},
    {"model": "gpt2", "gpus": "t4", "precision": "bf16", "seq_len": 4096},
    {"model": "qwen3-8b", "gpus": "l4", "peft": "lora", "engine": "huggingface", "base_weights": "nf4"},
    {"model": "qwen2.5-vl-7b", "gpus": "2xa100-pcie-80gb", "engine": "pytorch"},
    {"model": "mixtral-8x7b", "gpus": "aws:p4d.24xlarge", "engine": "torchtitan", "shards": "everything"},
    {"model": "qwen3-8b", "gpus": "l40s", "peft": "lora", "engine": "unsloth", "base_weights": "nf4"},
    {"model": None, "gpus": "h100", "params": "3B", "layers": 24, "hidden": 3072, "compile": True},
]
SERVING = [
    {"model": "qwen3-8b", "gpus": "l4", "context": 32768, "concurrency": 32, "engine": "vllm"},
    {"model": "qwen3-32b", "gpus": "2xh100-sxm-80gb", "engine": "vllm@0.9", "tp": 2, "draft": "eagle3"},
    {"model": "llama-3.1-8b", "gpus": "l40s", "engine": "tensorrt-llm"},
    {"model": "gemma-3-27b", "gpus": "rtx-4090", "engine": "llama.cpp", "weights": "q4_k_m"},
    {"model": "deepseek-v3", "gpus": "8xmi300x", "engine": "vllm", "tp": 8},
    {"model": "flux.1-dev", "gpus": "rtx-4090", "engine": "diffusers", "weights": "nf4"},
    {"model": "flux.1-dev", "gpus": "rtx-4090", "engine": "stable-diffusion.cpp", "weights": "q8_0"},
    {"model": "llama-3.1-70b", "gpus": "l40s", "context": 32768, "concurrency": 4, "find": "fewest-gpus"},
    {"model": "qwen3-30b-a3b", "gpus": "h100", "find": "smallest-gpu", "engine": "sglang"},
]
POST_TRAINING = [
    {"model": "qwen2.5-7b", "gpus": "8xh100-sxm-80gb", "mean_response_len": 300, "reference": True},
    {"model": "qwen2.5-7b", "gpus": "h100", "framework": "verl@0.4", "algorithm": "ppo", "offload_optimizer": "cpu"},
    {"model": "qwen2.5-7b", "gpus": "8xh100-sxm-80gb", "rollout_gpus": 4, "ahead": True, "framework": "nemo-rl"},
    {"model": "olmoe-1b-7b", "gpus": "2xa100-sxm4-40gb", "peft": "lora", "rollout": "sglang", "padded": True},
    {"model": "qwen2.5-7b", "gpus": "2xt4", "memory_fraction": 0.9, "offload_parameters": "cpu"},
]
QUESTIONS = [
    *(("train", one) for one in TRAINING), *(("serve", one) for one in SERVING),
    *(("rl", one) for one in POST_TRAINING),
]
OTHERS = [  # with sentences that none of those above has
    *(("train", {"model": model, "gpus": gpus, "engine": engine}) for model, gpus, engine in (
        ("all-minilm-l6-v2", "8xh200-sxm-141gb", "megatron"), ("granite-3.0-3b-a800m", "4xl20", "megatron"),
        ("t5-3b", "v100-32gb", "megatron"), ("t5-large", "v100-32gb", "torchtitan"), ("opt-2.7b", "8xb200", "deepspeed")
    )),
    *(("serve", {"model": model, "gpus": gpus, "engine": engine, "context": 4096}) for model, gpus, engine in (
        ("afm-4.5b", "8xh200-sxm-141gb", "vllm"), ("opt-13b", "8xb200", "vllm"), ("t5-11b", "v100-32gb", "vllm"),
        ("all-minilm-l6-v2", "8xh200-sxm-141gb", "sglang"), ("t5-3b", "v100-32gb", "sglang"),
        ("granite-3.0-8b", "4xl20", "transformers"), ("opt-2.7b", "8xb200", "transformers"),
        ("t5-base", "v100-32gb", "transformers"),
    )),
]


def texts_of(answer: Answer) -> Iterator[str]:
    """What an answer says in words."""
    yield from (*answer.assumptions, *answer.warnings)
    for rank in answer.ranks:
        yield rank.role
        for entry in rank.ledger:
            yield from (entry.path.partition("/")[2].replace("/", "; "), entry.formula)
    yield from (change.cost for change in answer.changes)
    if answer.found is not None:
        yield from (one.reason for one in answer.found.tried)
    if answer.time is not None:
        yield from (*answer.time.sources, *answer.time.assumptions)
    yield from answer.cautions
    if answer.host is not None:
        yield from (text for part in answer.host.parts for text in (ZH.said(part.name), ZH.said(part.formula)))
    if isinstance(answer, (ServeAnswer, PostTrainingAnswer)):
        yield answer.shortfall
    if isinstance(answer, ServeAnswer):
        yield from answer.startup
        if answer.speed is not None:
            yield from answer.speed.sources
        if answer.capacity is not None:
            yield from answer.capacity.tokens_by_count


def left_in_english(text: str) -> re.Match[str] | None:
    return ENGLISH.search(COMMANDS.sub("", text))


@pytest.mark.parametrize(("command", "question"), QUESTIONS + OTHERS, ids=str)
def test_an_answer_says_nothing_in_english(command: str, question: dict[str, object]) -> None:
    try:
        answer: Answer = getattr(vramcast, command)(**question)
    except VramcastError as error:
        assert not left_in_english(ZH.said(str(error))), ZH.said(str(error))
        return
    before = asdict(answer)
    spoken = ZH.spoken(answer)
    assert [text for text in texts_of(spoken) if left_in_english(text)] == []
    assert asdict(answer) == before
    assert Words("en").spoken(answer) is answer
    assert render(answer, ZH) == render(spoken, ZH)  # once in Chinese, it stays so
