"""A model layer by layer: parameters, output shape, saved bytes, FLOPs; read from the same tape as `train`.

Symbols:  B samples   S positions   O output features   V vocabulary
"""

from __future__ import annotations

from collections.abc import Iterator

from vramcast.blocks.ends import embedding, head
from vramcast.blocks.parameters.layer import layer_parameters
from vramcast.blocks.parameters.model import embedding_parameters, head_parameters, stack_parameters
from vramcast.blocks.parts import Sizes
from vramcast.blocks.transformer import decoder_layer
from vramcast.domain.job import AttentionKernel
from vramcast.domain.model import Model, Noun, Parameter
from vramcast.operators.graph import Graph, Operator
from vramcast.operators.linear import Numerics


class LayerRow(Noun, frozen=True):
    """One module of one layer, or of the equal layers of a run."""

    path: str  # "decoder.layers.0-31.attention.q"
    kind: str  # "linear", "norm", "softmax(QK)V", "mul" ...
    repeats: int  # equal layers in a row; the figures are those of one
    parameters: int  # 0: the module has none
    output_shape: tuple[int, ...]
    saved_bytes: int
    flops: int  # forward, one micro-batch
    temporary_bytes: int | None = None  # alive at once and freed within the forward; None: not known


def layer_rows(
    model: Model,
    *,
    batch: int = 1,
    seq_len: int = 1024,
    dtype_bytes: int = 2,
    attention: AttentionKernel = AttentionKernel.FLASH,
) -> tuple[LayerRow, ...]:
    """The main stack of a model in training on one GPU, module by module.

    A value that two modules save is counted with the first. Towers beside the main stack (vision, encoder) are left
    out; their parameters are in `count_parameters`.

    Args:
        model: the network
        batch: B [samples]
        seq_len: S [tokens]
        dtype_bytes: width of weights and activations [bytes]
        attention: which attention kernel
    """
    numerics = Numerics(dtype_bytes, dtype_bytes, dtype_bytes, dtype_bytes)
    sizes = Sizes(batch, seq_len, model.hidden, numerics=numerics, attention=attention)
    stack = stack_parameters(model.main)
    final = tuple(parameter for parameter in stack if parameter.path.startswith("final_norm"))
    first = (*embedding_parameters(model), *(parameter for parameter in stack if parameter not in final))
    rows = list(_block("embedding", embedding(model, sizes, learns=True), first, sizes, 1))
    start = 0
    for run in model.main.runs:
        span = str(start) if run.count == 1 else f"{start}-{start + run.count - 1}"
        parameters = layer_parameters(run.layer, hidden=model.hidden)
        graph = decoder_layer(run.layer, sizes)
        rows += _block(f"{model.main.name}.layers.{span}", graph, parameters, sizes, run.count)
        start += run.count
    last = (*final, *head_parameters(model))
    rows += _block("head", head(model, sizes, learns=True), last, sizes, 1, widest=model.vocab)
    return tuple(rows)


def _block(
    owner: str, graph: Graph, parameters: tuple[Parameter, ...], sizes: Sizes, repeats: int, *, widest: int = 0
) -> Iterator[LayerRow]:
    """Rows of one block in the order its modules run."""
    modules: dict[str, list[Operator]] = {}
    named = [(_module_of(parameter.path, owner), parameter) for parameter in parameters]
    names = {name for name, _ in named}
    for operator in graph.operators:
        if operator.outputs:
            name = operator.outputs[0].name.removeprefix(f"{owner}.")
            modules.setdefault(_owning(name, names), []).append(operator)
    saved_already: set[object] = set(graph.outputs)
    for name, operators in modules.items():
        own = [parameter for module, parameter in named if module == name]
        saved = 0
        for operator in operators:
            for value in (*operator.saved, *operator.extra):
                if value not in saved_already:
                    saved_already.add(value)
                    saved += value.num_bytes
        yield LayerRow(
            path=f"{owner}.{name}",
            kind=_kind(name, operators),
            repeats=repeats,
            parameters=sum(parameter.elements for parameter in own),
            output_shape=_shape(operators[-1], sizes, widest),
            saved_bytes=saved,
            flops=sum(operator.flops for operator in operators),
        )
    for name in sorted(names - set(modules)):
        own = [parameter for module, parameter in named if module == name]
        yield LayerRow(
            path=f"{owner}.{name}",
            kind=own[0].kind,
            repeats=repeats,
            parameters=sum(parameter.elements for parameter in own),
            output_shape=(),
            saved_bytes=0,
            flops=0,
        )


def _kind(name: str, operators: list[Operator]) -> str:
    """What a module is: the operator that does its arithmetic."""
    if "norm" in name:
        return "norm"
    working = next((operator for operator in operators if operator.flops), operators[-1])
    return working.name.rpartition(".")[2]


def _module_of(path: str, owner: str) -> str:
    """A weight and its bias are one module."""
    return path.removeprefix(f"{owner}.").removesuffix(".bias").removesuffix(".weight")


def _owning(name: str, modules: set[str]) -> str:
    """The module that makes a value: the longest parameter path it starts with, else its own first two parts."""
    fitting = [module for module in modules if name == module or name.startswith(f"{module}.")]
    return max(fitting, key=len) if fitting else ".".join(name.split(".")[:2])


def _shape(operator: Operator, sizes: Sizes, widest: int) -> tuple[int, ...]:
    """(B, S, features) as far as the bytes divide evenly, () for scalars; fp32 copies are wider than `widest`."""
    num_bytes, width = operator.outputs[0].num_bytes, sizes.numerics.compute
    if widest and num_bytes == sizes.tokens * widest * 4:
        width = 4
    features, rest = divmod(num_bytes, sizes.tokens * width)
    return () if rest or not features else (sizes.batch, sizes.seq_len, features)
