"""A text encoder's forward over one prompt: layers of a transformer without cache or loss.

[t5] transformers models/t5/modeling_t5.py: scores and positions are materialised; [clip] models/clip/modeling_clip.py
"""

from __future__ import annotations

from vramcast.blocks.diffusion.common import feed_forward, heads_of, merged, projections, swiglu
from vramcast.domain.model import MLP, Attention, Layer, Model, Norm
from vramcast.operators.eager import Array, Tape
from vramcast.units import FP32

SOURCE = "transformers models/t5/modeling_t5.py, models/clip/modeling_clip.py and kin"


def forward(tape: Tape, model: Model, *, batch: int, tokens: int, itemsize: int) -> Array:
    """Hidden states of a batch of prompts. Mixture layers and state spaces occur in no encoder of a pipeline."""
    states = [tape.embedded("hidden", (batch, tokens, model.hidden), itemsize, model.vocab * model.hidden)]
    for run in model.main.runs:

        def layer(x: Array, layer: Layer = run.layer) -> tuple[Array, ...]:
            return (_layer(tape, layer, x),)

        tape.repeat(run.count, layer, states)
    return _norm(tape, states[0], model.main.final_norm or Norm.PLAIN)


def _layer(tape: Tape, layer: Layer, x: Array) -> Array:
    if isinstance(layer.mixer, Attention):
        normed = _norm(tape, x, layer.norm)
        x = tape.add(x, _attention(tape, layer.mixer, normed), name="attended")
    if isinstance(layer.channel, MLP):
        normed = _norm(tape, x, layer.norm)
        run = swiglu if layer.channel.gated else feed_forward
        x = tape.add(x, run(tape, normed, layer.channel.width), name="hidden")
    return x


def _norm(tape: Tape, x: Array, kind: Norm) -> Array:
    return tape.rms_norm(x) if kind is Norm.RMS else tape.layer_norm(x)


def _attention(tape: Tape, spec: Attention, x: Array) -> Array:
    width = spec.num_heads * spec.head_dim
    q, k, v = projections(tape, x, width)
    if spec.position_bias == "relative":
        batch, length = x.shape[:2]
        scores = tape.new("scores", (batch, spec.num_heads, length, length), x.width)
        scores = tape.add(scores, name="scores with positions")
        wide = tape.cast(scores, FP32, "scores.fp32")
        probabilities = tape.cast(tape.activation(wide, "softmax"), x.width, "probabilities")
        del scores, wide
        y = tape.like("context", q)
        del probabilities
    else:
        y = merged(tape.attention(*(heads_of(part, spec.num_heads) for part in (q, k, v))))
    del k, v
    return tape.linear(y, x.shape[-1], "out")
