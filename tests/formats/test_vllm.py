"""Commands of vLLM: every form of an argument that changes memory is read, or refused by its name."""

from pathlib import Path
from typing import Any

import pytest

import vramcast
from tests.formats.test_readers import refusal
from vramcast.api import serve_job_of
from vramcast.catalogue.formats import conditions, harmless
from vramcast.engines.vllm.settings import settings_of
from vramcast.formats.merged import with_configs
from vramcast.formats.paths import Configs
from vramcast.formats.read import read_files
from vramcast.formats.write import files_of

HEAD = "vllm serve Qwen/Qwen3-8B "


def options(line: str) -> dict[str, Any]:
    """What a command says of a plan, beside the engine and the model; what it leaves unread fails."""
    given = read_files([], command="serve", line=line)
    assert refusal(given) == ""
    return {name: value for name, value in given.options.items() if name not in ("engine", "model", "tp")}


def unread(line: str) -> str:
    return refusal(read_files([], command="serve", line=line))


def with_network(line: str) -> dict[str, Any]:
    """The options once the network of the command is known; what is left unread raises."""
    return with_configs({"gpus": "8xh200-sxm-141gb"}, Configs(line=line), command="serve")[0]


@pytest.mark.parametrize(("arguments", "said"), [
    ("--max-cudagraph-capture-size 64", ("largest-graph=64",)),
    ("--cuda-graph-sizes 64", ("largest-graph=64",)),
    ("--enable-chunked-prefill=false", ("chunked-prefill=false",)),
    ("--no-enable-chunked-prefill", ("chunked-prefill=false",)),
    ("--enable-chunked-prefill", ("chunked-prefill=true",)),
    ("--cuda-graph-sizes 1 2 4", ("graph-sizes=3",)),
    ("--attention-backend flashinfer", ("attention-backend=FLASHINFER",)),
    ("--attention-config.backend TRITON_ATTN_VLLM_V1", ("attention-backend=TRITON_ATTN",)),
    ("--cudagraph-capture-sizes 1 2 4 8", ("graph-sizes=4",)),
    ("-cc.max_cudagraph_capture_size=32", ("largest-graph=32",)),
    ("--compilation-config.cudagraph_capture_sizes '[1, 2]'", ("graph-sizes=2",)),
    ("""-O '{"cudagraph_capture_sizes": [1, 2, 4]}'""", ("graph-sizes=3",)),
    ("""--compilation-config '{"level": 3, "cudagraph_mode": "FULL_AND_PIECEWISE"}'""", ()),
    ("--mm-encoder-tp-mode data", ("mm-encoder-tp-mode=data",)),
    ("""--limit-mm-per-prompt '{"image": 2, "video": 0}'""", ("images=2", "videos=0")),
    ("--limit-mm-per-prompt.image 3", ("images=3",)),
    ("""--max-model-len 131072 --hf-overrides '{"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}'""",
     ("allow-long=true",)),
])
def test_forms_that_become_engine_options(arguments: str, said: tuple[str, ...]) -> None:
    assert options(HEAD + arguments).get("engine-option", ()) == said


def test_trls_server_is_vllms_class_with_names_of_its_own() -> None:
    line = "trl vllm-serve --model Qwen/Qwen3-8B --tensor_parallel_size 2 --log_level error --vllm_model_impl"
    given = read_files([], command="serve", line=f"{line} vllm")
    assert given.options["engine-option"] == ("offline=true",) and given.options["tp"] == 2
    assert refusal(given) == "" and "model_impl" in unread(f"{line} transformers")


@pytest.mark.parametrize(("arguments", "context"), [
    ("""--rope-scaling '{"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":32768}'""", 131072),
    ("""--hf-overrides '{"max_position_embeddings": 65536}'""", 65536),
    ("""--hf-overrides '{"text_config": {"rope_parameters": {"rope_type": "yarn", "factor": 2.0,
        "original_max_position_embeddings": 40960}}}'""", 81920),
])
def test_a_stretched_network_serves_its_new_length(arguments: str, context: int) -> None:
    assert options(HEAD + arguments)["context"] == context


@pytest.mark.parametrize(("arguments", "draft"), [
    ("--speculative-model [ngram] --num-speculative-tokens 5 --ngram-prompt-lookup-max 4", ("ngram", 5)),
    ("--speculative-model Qwen/Qwen3-0.6B --num-speculative-tokens 3", ("Qwen/Qwen3-0.6B", 3)),
    ("--spec-method mtp --spec-tokens 2", ("mtp", 2)),
    ("""--speculative-config '{"model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "num_speculative_tokens": 3}'""",
     ("eagle3", 3)),
    ("""--speculative-config '{"model": "me/m-speculator.eagle3", "num_speculative_tokens": 3}'""", ("eagle3", 3)),
    ("""--speculative-config '{"method": "qwen3_next_mtp", "num_speculative_tokens": 2}'""", ("mtp", 2)),
])
def test_forms_of_drafts(arguments: str, draft: tuple[str, int]) -> None:
    found = options(HEAD + arguments)
    assert (found["draft"], found["draft-tokens"]) == draft


@pytest.mark.parametrize(("arguments", "said"), [
    ("""--compilation-config '{"cudagraph_mode": "PIECEWISE"}'""", "compilation_config.cudagraph_mode: PIECEWISE"),
    ("""--compilation-config '{"pass_config": {"fuse_allreduce_rms": true}}'""", "compilation_config.pass_config"),
    ("--compilation-config 7", "compilation_config.level"), ("--compilation-config zz", "is not a table"),
    ("""--hf-overrides '{"num_hidden_layers": 4}'""", "hf_overrides.num_hidden_layers"),
    ("""--hf-overrides '{"rope_scaling": {"rope_type": "llama3", "factor": 8}}'""", "give --max-model-len"),
    ("--cpu-offload-gb 10", "cpu_offload_gb"), ("--quantization zz", "quantization"), ("--max-model-len", "True"),
    ("""--kv-transfer-config '{"kv_connector": "LMCacheConnectorV1"}'""", "kv_transfer_config"),
    ("--num-scheduler-steps 8", "num_scheduler_steps: may change"), ("--attention-backend FLEX_ATTENTION", "FLEX_A"),
    ("""--additional-config '{"x": 1}'""", "additional_config"), ("--logits-processors my.module:Own", "logits_proc"),
    ("--enable-lora --fully-sharded-loras", "fully_sharded_loras"),
])
def test_what_may_change_memory_is_refused_by_its_name(arguments: str, said: str) -> None:
    assert said in unread(HEAD + arguments)


@pytest.mark.parametrize("arguments", [
    "--enable-sleep-mode --max-logprobs 50 --long-prefill-token-threshold 4096 --tokenizer-pool-size 4",
    "--disable-custom-all-reduce --fully-sharded-loras --additional-config '{}' --quantization compressed-tensors",
    "--logits-processors vllm.model_executor.models.deepseek_ocr:NGramPerReqLogitsProcessor",
])
def test_what_changes_nothing_is_passed_over(arguments: str) -> None:
    assert options(HEAD + arguments) == {}


@pytest.mark.parametrize("arguments", [
    "--language-model-only", "--limit-mm-per-prompt image=0", "--mm-encoder-tp-mode data", "--runner auto",
    "--mamba-ssm-cache-dtype float32",
])
def test_options_about_a_part_are_passed_over_where_the_network_has_none(arguments: str) -> None:
    assert "engine-option" not in with_network(HEAD + arguments)


def test_a_pooling_runner_is_that_of_networks_that_answer_nothing() -> None:
    assert with_network("vllm serve BAAI/bge-m3 --task embed")["engine"] == "vllm"
    with pytest.raises(vramcast.errors.VramcastError, match="runner"):
        with_network(HEAD + "--runner pooling")


@pytest.mark.parametrize("name", ["VLLM_ROCM_USE_AITER", "VLLM_USE_TRITON_FLASH_ATTN"])
def test_variables_of_rocm_are_asked_about_on_its_cards_alone(name: str) -> None:
    line = Configs(line=f"{name}=1 {HEAD}")
    assert with_configs({"gpus": "h100"}, line, command="serve")[0]["engine"] == "vllm"
    with pytest.raises(vramcast.errors.Unsupported, match=name):
        with_configs({"gpus": "mi300x"}, line, command="serve")


def test_the_variable_that_chose_kernels_is_the_argument() -> None:
    found = read_files([], command="serve", line=f"VLLM_ATTENTION_BACKEND=FLASH_ATTN {HEAD}")
    assert found.options["engine-option"] == ("attention-backend=FLASH_ATTN",)


def weights_of_towers(*pairs: str) -> int:
    answer = vramcast.serve("qwen2.5-vl-7b", gpus="2xh100", engine="vllm", context=8192, engine_option=pairs)
    return sum(entry.num_bytes for entry in answer.fullest.ledger if "vision" in entry.path and "weights" in entry.path)


def test_towers_that_share_the_images_are_whole_on_every_rank() -> None:
    whole = weights_of_towers("mm-encoder-tp-mode=data")
    assert 1.8 * weights_of_towers() < whole <= 2.05 * weights_of_towers()


def test_no_name_is_both_harmless_and_about_a_part() -> None:
    assert not harmless("vllm", "EngineArgs") & conditions("vllm", "EngineArgs").keys()


@pytest.mark.parametrize(("engine", "chunks", "said"), [
    ("vllm@0.5.2", "false", None), ("vllm@0.7.3", "false", "--enable-chunked-prefill false"),
    ("vllm@0.7.3", "true", "--enable-chunked-prefill"), ("vllm@0.8.4", "false", "--enable-chunked-prefill false"),
    ("vllm@0.8.5", "false", "--no-enable-chunked-prefill"), ("vllm@0.19", "true", "--enable-chunked-prefill"),
])
def test_whether_prompts_are_cut_is_written_as_the_version_takes_it(
    engine: str, chunks: str, said: str | None, tmp_path: Path
) -> None:
    options = {"gpus": "h100", "engine": engine}
    job = serve_job_of(options | {"model": "llama-3.1-8b", "engine-option": f"chunked-prefill={chunks}"})
    script = next(file.text for file in files_of(job)[0] if file.name == "serve.sh")
    written = [line.partition("#")[0].strip(" \\\t") for line in script.splitlines() if "chunked-prefill" in line]
    assert written == ([] if said is None else [said])
    (tmp_path / "serve.sh").write_text(script, encoding="utf-8")
    again = serve_job_of(options | {"from": (str(tmp_path / "serve.sh"),)})
    assert settings_of(again).chunks == settings_of(job).chunks
    assert settings_of(again).batched_tokens == settings_of(job).batched_tokens
