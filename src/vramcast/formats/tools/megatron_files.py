"""Megatron-LM's arguments in YAML: a table of them alone, or the `model_config.yaml` of its functional tests.

[run] Megatron-LM tests/functional_tests/shell_test_utils/_run_training.sh at d98e8a64

Alibaba's Pai-Megatron-Patch: Megatron-LM's arguments, its own entry scripts, tokenizers and a few names more.

[pai] alibaba/Pai-Megatron-Patch at a098ca5a: megatron_patch/arguments.py `get_patch_args`, megatron_patch/tokenizer/
__init__.py `build_tokenizer`, examples/*/pretrain_*.py
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from vramcast.errors import Note
from vramcast.formats.reading import Command, Unread, plain, table
from vramcast.formats.unread import unread_environment
from vramcast.formats.watched import Known, Watched, is_unset

ARGUMENTS: Final = "MODEL_ARGS"

VARIABLES: Final = "ENV_VARS"

MODES: Final = {
    "inference": "no step of training is taken; vramcast serve answers for serving",
    "rl": "generation and training take turns on the same cards; vramcast rl answers for that",
}
"""What a `model_config.yaml` may start beside pre-training."""

ABOUT_TIME: Final = (
    "--use-tp-pp-dp-mapping", "--ddp-num-buckets", "--ddp-pad-buckets-for-high-nccl-busbw",
    "--ddp-average-in-collective", "--overlap-param-gather-with-optimizer-step", "--moe-router-fusion",
    "--moe-router-padding-for-quantization", "--moe-router-padding-for-fp8",
    "--no-scatter-gather-tensors-in-pipeline", "--empty-unused-memory-level", "--align-grad-reduce",
    "--no-align-grad-reduce", "--align-param-gather", "--no-align-param-gather", "--tp-comm-overlap-cfg",
    "--disable-tp-comm-overlap-ag", "--disable-tp-comm-overlap-rs", "--tp-comm-overlap-rs-dgrad",
    "--disable-tp-comm-bulk-dgrad", "--disable-tp-comm-bulk-wgrad", "--disable-tp-comm-split-ag",
    "--disable-tp-comm-split-rs", "--delay-wgrad-compute", "--use-sharp", "--moe-use-legacy-grouped-gemm",
    "--disable-bf16-reduced-precision-matmul",
)
"""Arguments that say when or where something is sent, or pad what is held by a few tokens."""

OF_FLEX: Final = (
    "--moe-enable-deepep", "--moe-deepep-num-sms", "--moe-hybridep-num-sms", "--moe-flex-dispatcher-num-sms",
    "--moe-hybridep-num-sms-preprocessing",
)
"""What says how many multiprocessors DeepEP and HybridEP take."""

VARIABLES_ABOUT_TIME: Final = (
    "CUDA_LAUNCH_BLOCKING", "NCCL_ALGO", "NCCL_PROTO", "NCCL_NVLS_ENABLE", "NCCL_P2P_NET_CHUNKSIZE",
    "NCCL_P2P_PXN_LEVEL", "NCCL_COLLNET_ENABLE", "NCCL_GRAPH_REGISTER", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_CTAS", "NCCL_CTA_POLICY", "NCCL_IB_SPLIT_DATA_ON_QPS", "NCCL_NET_SHARED_BUFFERS", "NCCL_TUNER_PLUGIN",
    "TORCH_NCCL_HIGH_PRIORITY", "NVTE_FWD_LAYERNORM_SM_MARGIN", "NVTE_BWD_LAYERNORM_SM_MARGIN",
    "NVTE_NORM_FWD_USE_CUDNN", "NVTE_NORM_BWD_USE_CUDNN", "TORCHINDUCTOR_WORKER_START", "CUDA_SCALE_LAUNCH_QUEUES",
)
"""Variables that do the same."""

KERNELS: Final = {("1", "0"): "flash", ("0", "1"): "fused", ("0", "0"): "unfused"}
"""NVTE_FLASH_ATTN and NVTE_FUSED_ATTN -> the attention that is left
[Megatron-LM core/models/common/language_module/language_module.py `_set_attention_backend`]."""


def dashed(name: str) -> str:
    """An argument as Megatron-LM's documents write it.

    >>> dashed("num_layers"), dashed("--num-layers")
    ('--num-layers', '--num-layers')
    """
    return f"--{name.removeprefix('--').replace('_', '-')}"


def given_by_table(values: Mapping[str, Any]) -> tuple[Command, dict[str, Any]]:
    """The command of a table, and its arguments: `--name` -> value."""
    inner = values.get(ARGUMENTS)
    if inner is None:
        return Command(()), {dashed(name): value for name, value in values.items()}
    mode = str(values.get("MODE", "pretraining"))
    unread = (Unread(f"MODE {mode[:40]}", MODES[mode]),) if mode in MODES else ()
    variables = {str(name): str(value) for name, value in table(values.get(VARIABLES)).items()}
    given = {dashed(str(name)): _word(value) for name, value in table(inner).items()}
    return Command((), (), unread, variables), given


def family_of(values: Watched) -> str:
    """The network of arguments whose entry script nobody names, by what only one of the scripts takes.

    Source: examples/bert/pretrain_bert.py `args_defaults`: its tokenizer takes a vocabulary alone; that of
    pretrain_gpt.py has its merges in a second file
    """
    given = values.keys()  # where only a run knows a value, too
    if "--hybrid-layer-pattern" in given:
        return "hybrid"
    if "--encoder-num-layers" in given:
        return "t5"
    words = "--vocab-file" in given and not given & {"--merge-file", "--tokenizer-type", "--vocab-size"}
    return "bert" if words or "--bert-no-binary-head" in given else "gpt"


def read_environment(variables: Mapping[str, str], values: Watched) -> tuple[dict[str, Any], list[Unread]]:
    """Arguments that variables stand for, and the variables that nobody here reads.

    Of a deterministic run the variables are those that it sets itself [Megatron-LM megatron/training/determinism.py
    `DETERMINISM_ENV_VAR_DEFAULTS`]. Without dropout, and where the attention is named, it takes the same kernels.
    """
    found: dict[str, Any] = {}
    read = set(VARIABLES_ABOUT_TIME)
    backend = str(values.get("--attention-backend", "auto"))
    kernel = KERNELS.get((variables.get("NVTE_FLASH_ATTN", "1"), variables.get("NVTE_FUSED_ATTN", "1")))
    if kernel is not None and backend in ("auto", kernel):
        found["--attention-backend"] = backend = kernel
        read |= {"NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN"}
    same_kernels = backend != "auto" or values.get("--attention-dropout", 0.1) == 0
    repeats = variables.get("NVTE_ALLOW_NONDETERMINISTIC_ALGO") == "0"
    workspace = variables.get("CUBLAS_WORKSPACE_CONFIG") == ":4096:8"
    if "--deterministic-mode" in values or same_kernels or (repeats and workspace):
        read |= {"NVTE_ALLOW_NONDETERMINISTIC_ALGO"}
        if workspace:
            found["--deterministic-mode"] = True
            read |= {"CUBLAS_WORKSPACE_CONFIG"}
    return found, [one for one in unread_environment(variables) if one.name.removeprefix("$") not in read]


def notes_of(variables: Mapping[str, str], values: Watched) -> Iterator[str]:
    """What the answer is without."""
    timed = [name for name in ABOUT_TIME if values.get(name) not in (None, False)]
    timed += [f"${name}" for name in VARIABLES_ABOUT_TIME if name in variables]
    if values.get("--moe-token-dispatcher-type") == "flex":
        library = {"hybridep": "HybridEP"}.get(str(values.get("--moe-flex-dispatcher-backend")), "DeepEP")
        values.ignore(*OF_FLEX)
        yield (Note(
            "--moe-token-dispatcher-type flex: {}'s own buffers, which lie beside the allocator, are not counted",
            library
        ))
    if timed:
        yield Note("{}: may change the time, which is answered without", ", ".join(timed))


def _word(value: Any) -> Any:
    """A value as the words of a command line have it [run]: `[a b]` is a list, as is one of YAML."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text[:1] + text[-1:] == "[]":
        return [plain(word.strip(",")) for word in text[1:-1].split()]
    found = plain(text)
    return "none" if found is None else found


NAMES: Final = Known("pai-megatron", "arguments")

TOKENIZER: Final = "--patch-tokenizer-type"

EXTRA: Final = "--extra-vocab-size"

SCRIPTS: Final = {
    "pretrain_qwen.py": "gpt", "pretrain_qwen2_moe.py": "gpt", "pretrain_mcore_qwen.py": "gpt",
    "pretrain_llama.py": "gpt", "pretrain_mcore_llama.py": "gpt", "pretrain_llama_mcore070.py": "gpt",
    "finetune_mcore_llama_withGA.py": "gpt", "pretrain_mcore_mistral.py": "gpt", "pretrain_deepseek.py": "gpt",
    "pretrain_deepseek_250624.py": "gpt",
}
"""Entry scripts that build Megatron-Core's GPT from its arguments; those of images and sound, of linear attention and
of Megatron's older layers (pretrain_megatron_*.py) build others."""

OLDER: Final = "builds Megatron's older layers, which are not modelled; the patch's scripts run_mcore_*.sh are"
"""Why pretrain_megatron_*.py and finetune_megatron_*.py are not read."""

WORDS: Final = {
    "Qwen2Tokenizer": 151643, "Qwen3Tokenizer": 151643, "QwenTokenizer": 151851, "LLama2Tokenizer": 32000,
    "LLamaTokenizer": 32000, "MixtralTokenizer": 32000, "LLama3Tokenizer": 128000,
}
"""Tokenizer -> its words without those that are added [pai `build_tokenizer`, the models' own tokenizer files]."""

OF_DEEPSEEK: Final = {2400: 102400, 467: 129280, 0: 163840}
"""DeepSeekV2Tokenizer is that of three models, which differ in what they add: DeepSeek-V2, DeepSeek-V3, Moonlight."""

LATENT: Final = {
    "--qk-nope-head-dim": ("--qk-head-dim", 128), "--qk-rope-head-dim": ("--qk-pos-emb-head-dim", 64),
}
"""The patch's own names of widths -> what Megatron-Core reads instead, and where nobody says it."""

SAMPLES: Final = {"JSON-SFT": "--max-padding-length", "MMAP": "--seq-length"}
"""--dataset -> what says how long a sample is."""


def is_patched(arguments: Mapping[str, Any]) -> bool:
    """Whether arguments are those of the patch."""
    return TOKENIZER in arguments


def vocabulary(arguments: Mapping[str, Any]) -> int:
    """Words of the vocabulary, which is not padded any further; 0: not known."""
    tokenizer, extra = str(arguments.get(TOKENIZER)), arguments.get(EXTRA, 0)
    if not isinstance(extra, int):
        return 0
    if tokenizer == "DeepSeekV2Tokenizer":
        return OF_DEEPSEEK.get(extra, 0)
    words = WORDS.get(tokenizer, 0)
    return words + extra if words else 0


def translated(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], list[Unread], list[str]]:
    """Arguments in Megatron-LM's words, what of them is not understood, and what was filled in."""
    found = dict(arguments)
    tokenizer, extra = found.get(TOKENIZER), found.get(EXTRA)
    notes: list[str] = []
    unread = list(_own_network(found))
    if found.get("--padded-vocab-size") in (None, 0):
        if words := vocabulary(found):
            found["--padded-vocab-size"] = words
            notes.append(Note("--patch-tokenizer-type {}: {:,} words are taken", tokenizer, words))
        elif not is_unset(extra):
            why = Note("the vocabulary of {} is not known here; name the model", str(tokenizer)[:40])
            unread.append(Unread(TOKENIZER, why, "model", of_network=True))
    shared = found.pop("--shared-moe-ffn-hidden-size", None)
    if found.pop("--enable-shared-expert", None):  # its output is weighed by a gate [pai model/qwen1_5/moe]
        found |= {"--moe-shared-expert-intermediate-size": shared, "--moe-shared-expert-gate": True}
    dense, layers = found.get("--moe-layer-freq"), found.get("--num-layers")
    if tokenizer == "DeepSeekV2Tokenizer" and isinstance(dense, int) and isinstance(layers, int):
        # so many layers are dense [pai megatron_patch/model/deepseek_v2/transformer_layer.py]
        found["--moe-layer-freq"] = f"([0]*{dense}+[1]*{max(0, layers - dense)})"
    if found.get("--moe-layer-recompute"):
        if "--recompute-granularity" in found:
            unread.append(Unread("--moe-layer-recompute", "stands beside --recompute-granularity; keep one"))
        else:  # its newer name [Megatron-LM core/transformer/transformer_config.py `moe_layer_recompute`]
            found |= {"--recompute-granularity": "selective", "--recompute-modules": ["moe"]}
    unread += _lengths(found)
    for name in list(found):
        if NAMES.is_harmless(name) or name in (TOKENIZER, EXTRA, "--moe-layer-recompute", "--max-padding-length",
                                               "--dataset", "--sliding-window"):
            del found[name]
    return found, unread, notes


def _own_network(arguments: dict[str, Any]) -> list[Unread]:
    """What says that another network is built than Megatron-Core's own."""
    found = []
    for name, (read, usual) in LATENT.items():
        if arguments.pop(name, None) not in (None, arguments.get(read, usual)):
            found.append(Unread(name, Note(
                "is not what Megatron-Core reads, which is {}; give that", read
            ), of_network=True))
    if "VL" in str(arguments.get(TOKENIZER)):
        why = "is of a network that sees or hears, which is not modelled for megatron"
        found.append(Unread(f"{TOKENIZER} {arguments[TOKENIZER]}", why, of_network=True))
    return found


def _lengths(arguments: Mapping[str, Any]) -> list[Unread]:
    """Where samples are shorter or longer than the sequence, or attention sees less of it."""
    length = arguments.get("--seq-length")
    padded, window = arguments.get("--max-padding-length"), arguments.get("--sliding-window")
    found = []
    if arguments.get("--dataset") == "JSON-SFT" and padded != length:
        found.append(Unread("--max-padding-length", "is the length of a sample and not that of --seq-length; keep one"))
    if isinstance(window, int) and isinstance(length, int) and window < length:
        found.append(Unread("--sliding-window", "is shorter than --seq-length, which is not modelled for megatron"))
    return found


def exact_vocabulary(values: Watched) -> None:
    """A vocabulary that is given padded is not padded again [Megatron-LM megatron/training/arguments.py]."""
    if values.get("--padded-vocab-size") is not None and "--make-vocab-size-divisible-by" not in values:
        dict.__setitem__(values, "--make-vocab-size-divisible-by", 1)
