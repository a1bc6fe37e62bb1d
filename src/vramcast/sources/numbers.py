"""A LLaMA-like model from plain numbers: `--params 100B --layers 96 --hidden 12288`."""

from __future__ import annotations

from math import lcm
from typing import Final

from vramcast.blocks.parameters.model import count_parameters
from vramcast.domain.job import require_count
from vramcast.domain.model import MLP, Attention, Layer, Model, Run, Stack
from vramcast.errors import InvalidSpec, Note
from vramcast.units import round_up

SUFFIXES: Final = {"k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
HEAD_DIM: Final = 128
VOCABULARY: Final = 32000
LARGEST_HIDDEN: Final = 10**7
MOST_HEADS: Final = 4096
WIDTH_MULTIPLE: Final = 8
"""Of feed-forward widths that nobody gives: tensor cores and up to eight ranks divide them."""


def parse_parameters(text: str) -> int:
    """"7B" and "1.5b" as numbers of weights.

    >>> parse_parameters("1.5B")
    1500000000
    """
    word = text.strip().lower()
    factor = SUFFIXES.get(word[-1:], 1)
    digits = word[:-1] if factor > 1 else word
    whole, _, fraction = digits.partition(".")
    if not (whole + fraction).isdecimal() or not (whole + fraction).isascii() or len(digits) > 18:
        raise InvalidSpec("params={!r} must be a number of weights such as 7B or 350M", text[:40])
    count = int(whole or 0) * factor + int(fraction or 0) * factor // 10 ** len(fraction)
    return require_count("params", count)


def model_from_numbers(
    *, params: str, layers: int | None = None, hidden: int | None = None, heads: int | None = None,
    kv_heads: int | None = None, ffn: int | None = None, vocab: int | None = None, divisor: int = 1,
) -> Model:
    """A decoder with RMSNorm, rotary embedding and gated MLP whose weights add up to `params`.

    The feed-forward width closes the sum when it is not given; what was assumed is in the model's notes.

    Args:
        divisor: of the widths that are not given: ranks that share a layer

    Raises: InvalidSpec when the numbers cannot add up
    """
    total = parse_parameters(params)
    if layers is None or hidden is None:
        raise InvalidSpec(
            "params={} needs --layers and --hidden as well, for example --layers 32 --hidden 4096", params
        )
    require_count("layers", layers)
    if not 1 <= hidden <= LARGEST_HIDDEN:
        raise InvalidSpec("hidden={} must be a width from 1 to {}", hidden, LARGEST_HIDDEN)
    for name, number in (("heads", heads), ("kv-heads", kv_heads), ("ffn", ffn), ("vocab", vocab)):
        if number is not None:
            require_count(name, number)
    num_heads = heads or _dividing_heads(hidden, divisor)
    if hidden % num_heads:
        raise InvalidSpec("heads={} does not divide hidden={}; give --heads that does", num_heads, hidden)
    num_kv = kv_heads or num_heads
    if num_heads % num_kv:
        raise InvalidSpec("kv-heads={} does not divide heads={}", num_kv, num_heads)
    attention = Attention(num_heads=num_heads, num_kv_heads=num_kv, head_dim=hidden // num_heads)
    rows, multiple = vocab or round_up(VOCABULARY, divisor), lcm(WIDTH_MULTIPLE, divisor)

    def build(width: int) -> Model:
        layer = Layer(mixer=attention, channel=MLP(width=width, gated=True))
        stack = Stack(name="decoder", hidden=hidden, runs=(Run(count=layers, layer=layer),))
        notes = _notes(ffn, vocab, kv_heads, num_heads, rows, width, multiple)
        return Model(name=f"{params} parameters", family="llama", vocab=rows, stacks=(stack,), notes=notes)

    if ffn is not None:
        return _checked(build(ffn), total, params)
    rest = total - count_parameters(build(1)).total + 3 * hidden * layers
    width = round(rest / (3 * hidden * layers))
    if width < 1:
        raise InvalidSpec(
            "params={} are fewer than attention and embeddings of {} layers at hidden={} take; use fewer layers or a "
            "smaller hidden width", params, layers, hidden
        )
    return build(max(1, round(width / multiple)) * multiple)


def _dividing_heads(hidden: int, divisor: int) -> int:
    """The number of heads nearest to a width of 128 each that divides the hidden width and so many ranks divide; where
    there is none the nearest that divides the hidden width.

    >>> _dividing_heads(10240, 8), _dividing_heads(5000, 4), _dividing_heads(4096, 1)
    (80, 40, 32)
    """
    wanted = max(1, hidden // HEAD_DIM)
    whole = [heads for heads in range(1, min(hidden, MOST_HEADS) + 1) if hidden % heads == 0]
    shared = [heads for heads in whole if heads % divisor == 0]
    return min(shared or whole, key=lambda heads: abs(heads - wanted))


def _checked(model: Model, total: int, params: str) -> Model:
    found = count_parameters(model).total
    if abs(found - total) > 0.05 * total:
        raise InvalidSpec(
            "params={}, but the sizes given make {:,}; leave out --ffn or correct --params", params, found
        )
    return model


def _notes(
    ffn: int | None, vocab: int | None, kv_heads: int | None, num_heads: int, rows: int, width: int, multiple: int
) -> tuple[str, ...]:
    notes = ["described by numbers: taken as a decoder with RMSNorm, rotary embedding and gated MLP, head untied"]
    if ffn is None:
        notes.append(
            Note(
                "feed-forward width of {}, a multiple of {}, chosen so that the parameters nearly add up",
                width, multiple
            )
        )
    if kv_heads is None:
        notes.append(Note("every one of {} heads has keys and values of its own; --kv-heads says otherwise", num_heads))
    if vocab is None:
        notes.append(Note("vocabulary of {} assumed", rows))
    return tuple(notes)
