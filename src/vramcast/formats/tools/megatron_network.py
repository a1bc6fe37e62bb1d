"""A network as Megatron-LM's arguments, written and read.

[mlm] Megatron-LM megatron/training/arguments.py at d98e8a64; hybrid patterns:
core/models/hybrid/hybrid_layer_allocation.py
[GDN] core/models/gpt/experimental_attention_variant_module_specs.py, core/ssm/gated_delta_net/gdn.py
"""

from __future__ import annotations

import ast
import re
from itertools import groupby
from typing import Any, Final

from vramcast.catalogue.index import MODELS
from vramcast.catalogue.models import read_entry
from vramcast.domain.device import Cluster
from vramcast.domain.job import Job, Workload
from vramcast.domain.model import (
    MLP,
    Attention,
    Channel,
    Head,
    Layer,
    LinearAttention,
    Mamba,
    Mixer,
    Model,
    MoE,
    MultiLatentAttention,
    Norm,
    Run,
    Stack,
)
from vramcast.errors import Unsupported
from vramcast.formats.lines import Line, Table, when
from vramcast.formats.table import lines_of, read_values
from vramcast.formats.tools import megatron_model as reader
from vramcast.formats.tools.megatron_model import (
    EXPERTS,
    LATENT_ATTENTION,
    LATENT_EXPERTS,
    MAMBA,
    NORMS,
    REFUSED,
    ROTARY,
    TOP_K,
    Arguments,
    count_vocabulary,
    engine_options_of,
    first_batch,
    plan_of,
)

GATED: Final = ("silu",)


def entry_script(model: Model) -> str:
    """The script of Megatron-LM that trains the network."""
    return "pretrain_hybrid.py" if is_hybrid(model) else "pretrain_gpt.py"


def is_hybrid(model: Model) -> bool:
    """Whether layers are single mixers or channels in a pattern."""
    return any(layer.mixer is None or layer.channel is None or isinstance(layer.mixer, Mamba)
               for layer in (run.layer for run in model.main.runs))


def model_arguments(model: Model, *, seq_len: int) -> Table:
    """Every argument that describes the network.

    Args:
        model: the network
        seq_len: positions of a sample, which it must have room for [tokens]

    Raises: Unsupported for networks that Megatron-LM's decoder scripts do not build
    """
    if len(model.stacks) > 1 or model.head is not Head.LM or not model.main.causal:
        raise Unsupported("{}: Megatron arguments are written for decoders; use --engine huggingface", model.name)
    layers = model.main.layers
    mixers = [layer.mixer for layer in layers if layer.mixer is not None]
    channels = [layer.channel for layer in layers if layer.channel is not None]
    lines = [Line("hidden-size", model.hidden), *_depth(model)]
    lines += _attention(model, [mixer for mixer in mixers if not isinstance(mixer, Mamba)])
    lines += _mamba(model, [mixer for mixer in mixers if isinstance(mixer, Mamba)])
    lines += _channels(model, channels)
    lines += _norms(model, layers)
    return (*lines, *_ends(model, seq_len))


def _depth(model: Model) -> list[Line]:
    if is_hybrid(model):
        return [Line("hybrid-layer-pattern", "".join(_letter(layer, model) for layer in model.main.layers),
                     "M mamba, * attention, - feed-forward, E experts")]
    return [Line("num-layers", model.num_layers)]


def _letter(layer: Layer, model: Model) -> str:
    part = layer.mixer if layer.channel is None else layer.channel if layer.mixer is None else None
    for kind, letter in ((Mamba, "M"), (Attention, "*"), (MLP, "-"), (MoE, "E")):
        if isinstance(part, kind):
            return letter
    raise Unsupported("{}: Megatron's hybrid patterns have single mixers or channels only", model.name)


def _attention(model: Model, mixers: list[Any]) -> list[Line]:
    kinds = {type(mixer) for mixer in mixers}
    if not mixers:
        return [Line("num-attention-heads", 1, "asked for, not used")]
    if len(kinds) > 1 or not kinds <= {Attention, MultiLatentAttention}:
        raise Unsupported("{}: Megatron arguments are written for one kind of attention", model.name)
    return _latent(model, mixers[0]) if MultiLatentAttention in kinds else _grouped(model, mixers)


def _grouped(model: Model, mixers: list[Attention]) -> list[Line]:
    shapes = {(m.num_heads, m.num_kv_heads, m.head_dim, m.qkv_bias, m.out_bias, m.qk_norm) for m in mixers}
    if len(shapes) > 1:
        raise Unsupported("{}: its layers have different heads, which Megatron arguments cannot say", model.name)
    first = mixers[0]
    return [
        Line("num-attention-heads", first.num_heads), Line("kv-channels", first.head_dim, "width of a head"),
        *when(first.num_kv_heads != first.num_heads, Line("group-query-attention", True),
              Line("num-query-groups", first.num_kv_heads)),
        *when(first.qkv_bias and not first.out_bias, Line("add-qkv-bias", True)),
        *when(first.qk_norm != "none", Line("qk-layernorm", True, "queries and keys are normed per head")),
        *when(first.sinks, Line("softmax-type", "learnable", "one learned logit per head")),
        *when(first.output_gate, Line("attention-output-gate", True)),
    ]


def _latent(model: Model, mixer: MultiLatentAttention) -> list[Line]:
    if mixer.indexer_heads:
        raise Unsupported("{}: sparse attention has an indexer that these arguments do not say", model.name)
    return [
        Line("multi-latent-attention", True),
        Line("num-attention-heads", mixer.num_heads),
        *lines_of(reader.LATENT_ATTENTION, mixer),
        Line("qk-layernorm", True, "the compressed queries and keys are normed"),
    ]


def _mamba(model: Model, mixers: list[Mamba]) -> list[Line]:
    if not mixers:
        return []
    if any(mixer.version != 2 for mixer in mixers):
        raise Unsupported("{}: Megatron has Mamba 2 only", model.name)
    return lines_of(reader.MAMBA, mixers[0])


def _channels(model: Model, channels: list[Channel]) -> list[Line]:
    dense = [channel for channel in channels if isinstance(channel, MLP)]
    sparse = [channel for channel in channels if isinstance(channel, MoE)]
    if len({mlp.width for mlp in dense}) > 1 or len({moe.num_experts for moe in sparse}) > 1:
        raise Unsupported("{}: its layers have different widths, which Megatron arguments cannot say", model.name)
    one = dense[0] if dense else sparse[0].expert if sparse else None
    lines = [Line("ffn-hidden-size", one.width)] if one is not None else []
    lines += _activation(model, one)
    return lines + (_experts(sparse[0], channels) if sparse else [])


def _activation(model: Model, mlp: MLP | None) -> list[Line]:
    if mlp is None or (not mlp.gated and "gelu" in mlp.activation):
        return []
    if mlp.gated and mlp.activation in GATED:
        return [Line("swiglu", True)]
    if not mlp.gated and mlp.activation == "relu2":
        return [Line("squared-relu", True)]
    raise Unsupported(
        "{}: Megatron has no argument for activation {} (gated: {})", model.name, mlp.activation, mlp.gated
    )


def _experts(moe: MoE, channels: list[Channel]) -> list[Line]:
    flags = [int(isinstance(channel, MoE)) for channel in channels]
    runs = [f"[{flag}]*{len(list(equal))}" for flag, equal in groupby(flags)]
    return [
        Line("num-experts", moe.num_experts),
        *lines_of((reader.TOP_K,), moe),
        Line("moe-ffn-hidden-size", moe.expert.width, "width of an expert"),
        *lines_of(reader.EXPERTS, moe),
        *when(moe.score_bias, Line("moe-router-score-function", "sigmoid", "the bias needs it")),
        *lines_of((reader.LATENT_EXPERTS,), moe),
        *when(not all(flags), Line("moe-layer-freq", f"({'+'.join(runs)})", "1: layers with experts")),
    ]


def _norms(model: Model, layers: tuple[Layer, ...]) -> list[Line]:
    norm = layers[0].norm
    if norm not in reader.NORMS:
        raise Unsupported("{}: Megatron has no norm {}", model.name, norm.value)
    biased = any(isinstance(layer.mixer, Attention) and layer.mixer.out_bias for layer in layers)
    epsilon = _config(model).get("rms_norm_eps") or _config(model).get("layer_norm_epsilon")
    return [
        Line("normalization", reader.NORMS[norm]),
        *when(isinstance(epsilon, float), Line("norm-epsilon", epsilon, "from the model's own config")),
        *when(not biased, Line("disable-bias-linear", True)),
    ]


def _ends(model: Model, seq_len: int) -> list[Line]:
    mixers = [layer.mixer for layer in model.main.layers if isinstance(layer.mixer, (Attention, MultiLatentAttention))]
    rope = any(getattr(mixer, "rope", True) for mixer in mixers)
    kind = "learned_absolute" if model.main.positions else "rope" if rope else "none"
    if model.main.positions and model.main.positions < seq_len:
        raise Unsupported("{} has {} learned positions; use --seq-len up to that", model.name, model.main.positions)
    context = model.main.positions or max(model.context or 0, seq_len)
    return [
        Line("vocab-size", model.vocab), Line("position-embedding-type", kind),
        Line("max-position-embeddings", context, "longest position trained"),
        *(_rotary(model) if kind == "rope" else ()),
        *when(not model.tied, Line("untie-embeddings-and-output-weights", True, "the head has weights of its own")),
        *when(model.mtp_layers, Line("mtp-num-layers", len(model.mtp_layers), "multi-token prediction")),
    ]


def _rotary(model: Model) -> list[Line]:
    first = next((layer.mixer for layer in model.main.layers if isinstance(layer.mixer, Attention)), None)
    config = _config(model)
    nested = config.get("rope_parameters")
    base = config.get("rope_theta") or (nested.get("rope_theta") if isinstance(nested, dict) else None)
    turned = 1.0 if first is None else first.rope_fraction
    return [
        *when(turned != 1.0, Line("rotary-percent", turned)),
        *(when(True, Line("rotary-base", int(base), "from the model's own config"))
          if isinstance(base, (int, float)) else ()),
    ]


def _config(model: Model) -> dict[str, Any]:
    """The config fields of a catalogue model; empty for another."""
    own = MODELS.aliases.get(model.name.split(" cut to ")[0].lower())
    return read_entry(own).config if own is not None else {}


def unsaid_features(model: Model) -> tuple[str, ...]:
    """What the network has and the arguments do not say: it changes results, not memory in first order."""
    found: dict[str, None] = {}
    for layer in (run.layer for run in model.main.runs):
        mixer = layer.mixer
        if isinstance(mixer, Attention):
            checks = (("sliding windows", mixer.window), ("capped scores", mixer.softcap),
                      ("position biases", mixer.position_bias != "none"))
            found |= {name: None for name, is_there in checks if is_there}
        more = (("norms behind each part", layer.post_norms), ("parallel attention and feed-forward", layer.parallel),
                ("further weights", bool(layer.extra)))
        found |= {name: None for name, is_there in more if is_there}
    turned = {run.layer.mixer.rope for run in model.main.runs if isinstance(run.layer.mixer, Attention)}
    if len(turned) > 1:
        found["layers without a rotary embedding"] = None
    if _rotary_unknown(model):
        found["a rotary embedding of a base that the plan does not know"] = None
    return tuple(found)


def _rotary_unknown(model: Model) -> bool:
    """A config that names no base has transformers' default of 10,000, which is Megatron's too."""
    rope = any(isinstance(run.layer.mixer, Attention) and run.layer.mixer.rope for run in model.main.runs)
    return rope and not model.main.positions and not _config(model)


def job_from_arguments(arguments: Arguments, *, family: str, cluster: Cluster, env: dict[str, str]) -> Job:
    """The question a Megatron-LM command line asks.

    Args:
        arguments: `--name` -> value, True for flags
        family: gpt, moe, bert, t5, hybrid ...: which entry script runs
        cluster: cards of the run
        env: memory-relevant environment

    Raises: Unsupported for arguments that are not modelled
    """
    for name, reason in REFUSED.items():
        if arguments.get(name):
            raise Unsupported(reason)
    plan, workload = plan_of(arguments), None
    data_parallel = plan.data_parallel(cluster.count)
    workload = _workload(arguments, data_parallel)
    return Job(
        model=model_of(arguments, family),
        workload=workload,
        plan=plan,
        cluster=cluster,
        engine="megatron",
        engine_options=engine_options_of(arguments, family),
        alloc_conf=env.get("PYTORCH_CUDA_ALLOC_CONF", ""),
        env=env,
    )


def _workload(arguments: Arguments, data_parallel: int) -> Workload:
    micro = int(arguments.get("--micro-batch-size", 1))
    total = int(arguments.get("--global-batch-size") or first_batch(arguments) or micro * data_parallel)
    return Workload(
        seq_len=int(arguments.get("--encoder-seq-length") or arguments["--seq-length"]),
        decoder_seq_len=arguments.get("--decoder-seq-length"),
        micro_batch=micro,
        grad_accum=max(1, total // (micro * data_parallel)),
    )


def _norm(arguments: Arguments) -> Norm:
    return Norm.RMS if arguments.get("--normalization") == NORMS[Norm.RMS] else Norm.LAYER


def _mixer(arguments: Arguments) -> Mixer:
    hidden, heads = int(arguments["--hidden-size"]), int(arguments["--num-attention-heads"])
    bias = not arguments.get("--disable-bias-linear")
    if arguments.get("--multi-latent-attention"):
        return MultiLatentAttention(num_heads=heads, **read_values(LATENT_ATTENTION, arguments))
    grouped = arguments.get("--group-query-attention")
    return Attention(
        num_heads=heads,
        num_kv_heads=int(arguments["--num-query-groups"]) if grouped else heads,
        head_dim=int(arguments.get("--kv-channels") or hidden // heads),
        qkv_bias=bias or bool(arguments.get("--add-qkv-bias")),
        out_bias=bias,
        qk_norm="head" if arguments.get("--qk-layernorm") else "none",
        qk_norm_kind=_norm(arguments),
        sinks=arguments.get("--softmax-type") == "learnable",
        output_gate=bool(arguments.get("--attention-output-gate")),
        rope=_positions(arguments) in ROTARY,
        rope_fraction=float(arguments.get("--rotary-percent", 1.0)),
    )


def _positions(arguments: Arguments) -> str:
    """Where positions come from, older names too."""
    kind = str(arguments.get("--position-embedding-type", "learned_absolute"))
    without = arguments.get("--no-position-embedding") and kind == "learned_absolute"
    if arguments.get("--use-rotary-position-embeddings"):
        return "rope"
    return "none" if without else kind


def _mlp(arguments: Arguments, width: int | None = None) -> MLP:
    gated = bool(arguments.get("--swiglu"))
    hidden = int(arguments["--hidden-size"])
    default = int((4 * hidden * 2 / 3) / 64) * 64 if gated else 4 * hidden
    return MLP(
        width=width or int(arguments.get("--ffn-hidden-size") or default),
        gated=gated,
        activation="silu" if gated else "relu2" if arguments.get("--squared-relu") else "gelu",
        bias=not arguments.get("--disable-bias-linear"),
    )


def _moe(arguments: Arguments) -> MoE:
    return MoE(
        num_experts=int(arguments["--num-experts"]),
        expert=_mlp(arguments, arguments.get("--moe-ffn-hidden-size")),
        score_bias_is_parameter=False,
        **read_values((TOP_K, *EXPERTS, LATENT_EXPERTS), arguments),
    )


def _mamba_of(arguments: Arguments) -> Mamba:
    found = read_values(MAMBA, arguments)
    head = found["head_dim"]
    heads = int(found.pop("num_heads") or 2 * int(arguments["--hidden-size"]) // head)
    return Mamba(version=2, inner_dim=heads * head, num_heads=heads, **found)


def _layers(arguments: Arguments) -> list[Layer]:
    norm = _norm(arguments)
    if pattern := arguments.get("--hybrid-layer-pattern"):
        return _hybrid_layers(arguments, str(pattern).split("/")[0].replace("|", ""))
    count = int(arguments["--num-layers"])
    kinds = zip(_moe_layers(arguments, count), _linear_layers(arguments, count), strict=True)
    return [
        Layer(mixer=_delta_net(arguments) if linear else _mixer(arguments),
              channel=_moe(arguments) if moe else _mlp(arguments), norm=norm)
        for moe, linear in kinds
    ]


def _linear_layers(arguments: Arguments, count: int) -> list[bool]:
    """Which layers are gated delta nets: of each group of so many all but the last, or as a list says [GDN]."""
    if arguments.get("--experimental-attention-variant") not in ("gated_delta_net", "gdn"):
        return [False] * count
    frequency = str(arguments.get("--linear-attention-freq"))
    if frequency.isdecimal() and int(frequency):
        return [(place + 1) % int(frequency) != 0 for place in range(count)]
    return _flags("linear-attention-freq", frequency)


def _delta_net(arguments: Arguments) -> LinearAttention:
    if arguments.get("--deterministic-mode"):
        raise Unsupported("gated delta nets in deterministic mode are written out in operators of PyTorch, which is "
                          "not modelled; leave --deterministic-mode out")
    return LinearAttention(**read_values(reader.DELTA_NET, arguments))


def _moe_layers(arguments: Arguments, count: int) -> list[bool]:
    if not arguments.get("--num-experts"):
        return [False] * count
    frequency = arguments.get("--moe-layer-freq")
    if frequency is None:
        return [True] * count
    text = str(frequency)
    if text.isdecimal() and int(text):  # every so manieth, from the first
        return [place % int(text) == 0 for place in range(count)]
    return _flags("moe-layer-freq", text)


def _flags(name: str, text: str) -> list[bool]:
    """A list as arguments write one: ([0]*1+[1]*15)."""
    if not re.fullmatch(r"[\[\]()*+,\d\s]+", text):
        raise Unsupported("{}={!r} is not a list expression", name, text)
    parts = re.findall(r"\[([\d,\s]+)\]\s*(?:\*\s*(\d+))?", text)
    return [bool(flag) for body, times in parts for flag in list(ast.literal_eval(f"[{body}]")) * int(times or 1)]


def _hybrid_layers(arguments: Arguments, pattern: str) -> list[Layer]:
    norm = _norm(arguments)

    def one(letter: str) -> Layer:
        mixer: Mixer | None = None
        channel: Channel | None = None
        match letter:
            case "M":
                mixer = _mamba_of(arguments)
            case "*":
                mixer = _mixer(arguments)
            case "-":
                channel = _mlp(arguments)
            case "E":
                channel = _moe(arguments)
            case _:
                raise Unsupported("hybrid layer {!r} is not modelled", letter)
        return Layer(mixer=mixer, channel=channel, norm=norm)

    return [one(letter) for letter in pattern]


def _mtp(arguments: Arguments) -> tuple[Layer, ...]:
    count = int(arguments.get("--mtp-num-layers") or 0)
    _, *modules = str(arguments.get("--hybrid-layer-pattern", "")).split("/")
    if modules:  # the pattern says how many [arguments.py `inferred_mtp_num_layers`]
        return tuple(_hybrid_module(arguments, pattern) for pattern in modules)
    return (_layers(arguments)[-1],) * count if count else ()


def _stack(name: str, arguments: Arguments, layers: list[Layer], *, causal: bool = True) -> Stack:
    positions = _positions(arguments) == "learned_absolute"
    return Stack(
        name=name,
        hidden=int(arguments["--hidden-size"]),
        runs=tuple(Run(count=1, layer=layer) for layer in layers),
        final_norm=_norm(arguments),
        positions=int(arguments["--max-position-embeddings"]) if positions else 0,
        token_types=2 if name == "bert" else 0,
        causal=causal,
    )


def _t5_stacks(arguments: Arguments) -> tuple[Stack, ...]:
    plain = Layer(mixer=_mixer(arguments), channel=_mlp(arguments), norm=_norm(arguments))
    mixer = _mixer(arguments)
    assert isinstance(mixer, Attention)
    decoder = Layer(mixer=mixer, channel=_mlp(arguments), norm=_norm(arguments), cross_attention=mixer)
    encoder = _stack("encoder", arguments, [plain] * int(arguments["--encoder-num-layers"]), causal=False)
    positions = Stack(
        name="decoder", hidden=encoder.hidden, final_norm=encoder.final_norm,
        runs=(Run(count=int(arguments["--decoder-num-layers"]), layer=decoder),),
    )
    return encoder, positions


def model_of(arguments: Arguments, family: str) -> Model:
    """The network that the arguments describe."""
    stacks = _t5_stacks(arguments) if family == "t5" else (
        _stack(family, arguments, _layers(arguments), causal=family != "bert"),
    )
    return Model(
        name=family,
        family=family,
        vocab=count_vocabulary(arguments, family),
        stacks=stacks,
        tied=not arguments.get("--untie-embeddings-and-output-weights"),
        head=Head.MLM if family == "bert" else Head.LM,
        head_bias=family in ("bert", "t5"),
        num_labels=2 if family == "bert" else 0,
        pooler=family == "bert" and not arguments.get("--bert-no-binary-head"),
        mtp_layers=_mtp(arguments),
        hidden_dropout=float(arguments.get("--hidden-dropout", 0.1)),
        attention_dropout=float(arguments.get("--attention-dropout", 0.1)),
        context=int(arguments["--max-position-embeddings"]),
    )


def _hybrid_module(arguments: Arguments, pattern: str) -> Layer:
    """A mixer and what follows it, each behind a norm of its own, as one layer of attention and experts has them."""
    parts = _hybrid_layers(arguments, pattern)
    if len(parts) != 2 or parts[0].mixer is None or parts[1].channel is None:
        raise Unsupported("multi-token prediction over hybrid layers is modelled for a mixer and a feed-forward part, "
                          "as *E, not for {}", pattern[:20])
    return Layer(mixer=parts[0].mixer, channel=parts[1].channel, norm=parts[0].norm)
