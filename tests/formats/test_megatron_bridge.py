"""Megatron-Bridge's recipes: one function is read by its syntax; what only a run would know is named."""

from pathlib import Path

import pytest

from vramcast.api import job_of
from vramcast.domain.job import Job
from vramcast.engines.megatron.options import options_of
from vramcast.errors import SourceError, UnknownName
from vramcast.formats.read import read_files
from vramcast.formats.reading import Given

RECIPE = '''import torch
from megatron.bridge import AutoBridge
from megatron.bridge.recipes.common import _pretrain_common

LENGTH: int = 8192


def llama3_8b() -> ConfigContainer:
    """A recipe."""
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-8B").to_megatron_provider(load_weights=False)
    cfg.tokenizer.tokenizer_model = "meta-llama/Meta-Llama-3-8B"
    cfg.model.tensor_model_parallel_size = 2
    cfg.model.pipeline_model_parallel_size = 2
    cfg.model.virtual_pipeline_model_parallel_size = 4
    cfg.model.pipeline_dtype = torch.bfloat16
    cfg.model.sequence_parallel = True
    cfg.model.seq_length = LENGTH
    cfg.model.cuda_graph_impl = "none"
    cfg.model.cuda_graph_scope = "full"
    cfg.model.attention_backend = None
    cfg.model.cross_entropy_loss_fusion = True
    cfg.model.cross_entropy_fusion_impl = "te"
    cfg.model.recompute_granularity = "full"
    cfg.model.recompute_method = "uniform"
    cfg.model.recompute_num_layers = 1
    cfg.train.global_batch_size = 64
    cfg.train.micro_batch_size = 1
    cfg.optimizer.exp_avg_dtype = torch.float32
    cfg.ddp.use_distributed_optimizer = False
    cfg.ddp.data_parallel_sharding_strategy = "optim_grads_params"
    cfg.mixed_precision = "bf16_mixed"
    if cfg.model.context_parallel_size > 1:
        cfg.dataset.pad = 2
    return cfg
'''


def read(tmp_path: Path, text: str = RECIPE) -> Given:
    (tmp_path / "recipe.py").write_text(text, encoding="utf-8")
    return read_files([tmp_path / "recipe.py"], command="train")


def job(tmp_path: Path, text: str = RECIPE) -> Job:
    assert [one.name for _, one in read(tmp_path, text).unread] == []
    return job_of({"from": (tmp_path / "recipe.py",), "gpus": "8xh100-sxm-80gb"})


def test_gradients_are_reduced_as_the_precision_says(tmp_path: Path) -> None:
    more = '"bf16_mixed"\n    cfg.ddp.grad_reduce_in_fp32 = False'
    assert options_of(job(tmp_path, RECIPE.replace('"bf16_mixed"', more))).accumulate_in_fp32 is not False
    more = '"bf16_mixed"\n    cfg.mixed_precision.grad_reduce_in_fp32 = False'
    assert options_of(job(tmp_path, RECIPE.replace('"bf16_mixed"', more))).accumulate_in_fp32 is False


def test_angles_of_yarn_are_turned_by_no_fused_kernel(tmp_path: Path) -> None:
    more = "    cfg.model.position_embedding_type = 'yarn'\n    cfg.model.yarn_beta_fast = 32\n    return cfg"
    assert [options_of(job(tmp_path, RECIPE.replace("    return cfg", text))).rope_fusion
            for text in (more, "    return cfg")] == [False, True]


@pytest.mark.parametrize(("old", "new", "name"), [
    ("_pretrain_common()", "llama3_70b_config()", "cfg"),
    ("_pretrain_common()", "_sft_common_vlm()", "cfg"),
    ('"bf16_mixed"', '"bf16_with_nvfp4_mixed"', "cfg.mixed_precision"),
    ("= LENGTH", "= os.environ['LENGTH']", "cfg.model.seq_length"),
    ("if cfg.model.context_parallel_size > 1", "if new_card():\n        cfg.model.tp = 4\n    if False", "if new_"),
    ("    return cfg", "    tune(cfg)\n    return cfg", "tune(cfg)"),
    ("LENGTH: int = 8192", "LENGTH = 8192\ndef other():\n    cfg = _sft_common()\n    cfg.model = None", "cfg"),
    ('cuda_graph_impl = "none"', 'cuda_graph_impl = "local"', "--cuda-graph-impl"),
    ("cfg.model.attention_backend = None", "cfg.model.something_new = 1", "--something-new"),
])
def test_what_only_a_run_knows_is_named(tmp_path: Path, old: str, new: str, name: str) -> None:
    assert old in RECIPE
    unread = [one.name for _, one in read(tmp_path, RECIPE.replace(old, new)).unread]
    assert any(each.startswith(name) for each in unread)


MORE = RECIPE + '''

def _precise(cfg, dtype):
    cfg.optimizer.use_precision_aware_optimizer = True
    cfg.optimizer.exp_avg_dtype = dtype
    cfg.optimizer.exp_avg_sq_dtype = dtype


def _layout(pp):
    return {1: None, 2: [["embedding"] + ["decoder"] * 17, ["decoder"] * 15 + ["loss"]]}[pp]


def llama3_8b_peft_8gpu_h100(peft_scheme: str = "lora"):
    cfg = _peft_common()
    path = "meta-llama/Meta-Llama-3-8B"
    cfg.model = AutoBridge.from_hf_pretrained(path).get_model_config()
    cfg.model.pipeline_model_parallel_size = 2
    cfg.model.pipeline_model_parallel_layout = _layout(cfg.model.pipeline_model_parallel_size)
    _precise(cfg, torch.bfloat16)
    if isinstance(peft_scheme, str) and peft_scheme.lower() in ["lora", "dora"]:
        peft_cfg = default_peft_config(peft_scheme)
        peft_cfg.dim = 16
        peft_cfg.target_modules = ["linear_qkv", "linear_proj"]
        cfg.peft = peft_cfg
    else:
        cfg.peft = peft_scheme
    return cfg


def llama3_8b_longer():
    cfg = llama3_8b()
    cfg.tokenizer.tokenizer_type = "NullTokenizer"
    cfg.tokenizer.vocab_size = DEFAULT_NULL_TOKENIZER_VOCAB_SIZE
    cfg.model.seq_length = 2 * LENGTH
    return cfg
'''


def named(tmp_path: Path, recipe: str, gpus: str = "h100-sxm-80gb") -> Job:
    (tmp_path / "recipe.py").write_text(MORE, encoding="utf-8")
    return job_of({"from": (tmp_path / "recipe.py",), "gpus": gpus, "args": recipe})


def test_one_of_several_recipes_is_named(tmp_path: Path) -> None:
    assert named(tmp_path, "llama3_8b", "8xh100-sxm-80gb").workload.seq_len == 8192
    with pytest.raises(UnknownName, match="llama3_8b_peft_8gpu_h100"):
        named(tmp_path, "llama3_8b_peft")


def test_adapters_functions_and_layouts_of_the_file_are_followed(tmp_path: Path) -> None:
    found = named(tmp_path, "llama3_8b_peft_8gpu_h100")
    assert found.plan.peft is not None
    assert (found.plan.peft.method, found.plan.peft.rank) == ("lora", 16)
    assert found.plan.peft.targets == ("attention.q", "attention.k", "attention.v", "attention.out")
    options = options_of(found)
    assert (options.stage_layers, options.moments, options.vocab_divisor) == ("17-15", "bf16", 1)
    assert (found.cluster.count, found.workload.seq_len) == (8, 2048)


NO_PYTHON = ("def f(:\n cfg.model = 1 # megatron.bridge", "# megatron.bridge cfg.model\n" + "(" * 5000)


@pytest.mark.parametrize("text", NO_PYTHON)
def test_what_is_no_python_is_said_to_be_none(tmp_path: Path, text: str) -> None:
    with pytest.raises(SourceError, match="not Python"):
        read(tmp_path, text)


def test_a_function_of_another_file_of_recipes_is_followed_with_its_own_constants(tmp_path: Path) -> None:
    folder = tmp_path / "megatron" / "bridge" / "recipes" / "llama" / "h100"
    folder.mkdir(parents=True)
    (folder / "llama3.py").write_text(RECIPE, encoding="utf-8")
    there = "from megatron.bridge.recipes.llama.h100.llama3 import llama3_8b\n\nLENGTH = 1\n\n\n"
    lines = ("def again():", "    cfg = llama3_8b()", "    cfg.model.tensor_model_parallel_size = 1", "    return cfg")
    text = there + "\n".join(lines)
    path = folder.parent / "mine.py"
    path.write_text(text, encoding="utf-8")
    found = job_of({"from": (path,), "gpus": "8xh100-sxm-80gb"})
    assert (found.model.name, found.workload.seq_len, found.plan.tp, found.plan.pp) == ("llama-3-8b", 8192, 1, 2)


def test_a_precision_says_which_layers_stay_in_bf16(tmp_path: Path) -> None:
    text = RECIPE.replace('"bf16_mixed"', '"nemotron_h_bf16_with_fp8_current_scaling_mixed"')
    text = text.replace('recompute_granularity = "full"', "recompute_granularity = None")
    text = "\n".join(line for line in text.splitlines() if "recompute_method" not in line and "num_layers" not in line)
    found = options_of(job(tmp_path, text))
    assert (found.bf16_at_start, found.bf16_at_end, found.fp8_recipe) == (2, 2, "tensorwise")
