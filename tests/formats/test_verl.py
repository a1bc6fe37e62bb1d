"""verl's commands and YAML: what each name says, and what is not modelled is refused by its name."""

from pathlib import Path
from typing import Any

import pytest

from vramcast.api.answers import post_training_job_of
from vramcast.catalogue.formats import load_format
from vramcast.formats.reading import Config, sentence
from vramcast.formats.tools import verl

GRPO = (
    "algorithm.adv_estimator=grpo data.train_batch_size=1024 data.max_prompt_length=512 data.max_response_length=1024 "
    "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct actor_rollout_ref.model.use_remove_padding=True "
    "actor_rollout_ref.actor.ppo_mini_batch_size=256 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16 "
    "actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.optim.lr=1e-6 actor_rollout_ref.rollout.n=5 "
    "actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=32 "
    "trainer.logger='[\"console\"]' trainer.n_gpus_per_node=8 trainer.nnodes=2"
)


def of(more: str = "", head: str = "", base: str = GRPO) -> Any:
    return verl.read(Config("run.sh", f"{head}\npython3 -m verl.trainer.main_ppo {base} {more} $@\n", None))


def test_a_command_is_its_whole_question() -> None:
    found = of()
    assert not found.unread
    assert (found.ranks, found.nodes) == (16, 2)
    assert found.weak | found.options == {
        "framework": "verl", "algorithm": "grpo", "sharded-by": "fsdp1", "model": "Qwen/Qwen2.5-7B-Instruct",
        "prompts": 1024, "samples": 5, "prompt-len": 512, "response-len": 1024, "mini-batch": 256, "micro-batch": 16,
        "log-prob-micro-batch": 32, "reference": True, "padded": False, "rollout": "vllm",
    }


@pytest.mark.parametrize("more, option, value", [
    ("actor_rollout_ref.actor.strategy=fsdp2", "sharded-by", "fsdp2"),
    ("+actor_rollout_ref.actor.fsdp_config.model_dtype=bf16", "precision", "pure-bf16"),
    ("actor_rollout_ref.actor.fsdp_config.fsdp_size=8", "shard-group", 8),
    ("actor_rollout_ref.actor.fsdp_config.fsdp_size=16", "shard-group", None),  # of all ranks
    ("actor_rollout_ref.actor.ppo_epochs=2", "epochs", 2),
    ("actor_rollout_ref.actor.entropy_coeff=0.001", "entropy", True),
    ("actor_rollout_ref.actor.entropy_coeff=0", "entropy", False),
    ("actor_rollout_ref.actor.fsdp_config.entropy_from_logits_with_chunking=True", "entropy-kernel", "chunked"),
    ("actor_rollout_ref.rollout.enforce_eager=True", "graphs", False),
    ("actor_rollout_ref.rollout.update_weights_bucket_megabytes=4096", "bucket-mib", 4096),
    ("actor_rollout_ref.model.lora_rank=32", "lora-rank", 32),
    # sizes without _per_gpu are of all ranks, of which `ulysses` share a sequence
    ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=null actor_rollout_ref.actor.ppo_micro_batch_size=64",
     "micro-batch", 4),
    ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=null actor_rollout_ref.actor.ppo_micro_batch_size=64 "
     "actor_rollout_ref.actor.ulysses_sequence_parallel_size=2", "micro-batch", 8),
    ("actor_rollout_ref.actor.use_dynamic_bsz=True", "micro-tokens", 16384),
    ("actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=24000 "
     "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=8000", "log-prob-tokens", 24000),  # of the reference
    ("actor_rollout_ref.actor.use_kl_loss=False actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=64",
     "log-prob-micro-batch", 32),  # nobody asks it
    ("'actor_rollout_ref.rollout.max_num_batched_tokens=${data.max_response_length}'", "batched-tokens", 1024),
    ("'actor_rollout_ref.rollout.max_num_seqs=${oc.select:data.nothing,77}'", "max-sequences", 77),
    ("algorithm.rollout_correction.bypass_mode=True", "reuse-log-prob", True),
    ("actor_rollout_ref.model.path=$HOME/models/Qwen2.5-7B", "model", "Qwen2.5-7B"),
])
def test_names_say(more: str, option: str, value: object) -> None:
    found = of(more)
    assert not found.unread, sentence(found.unread)
    assert found.options.get(option) == value


CRITIC = "algorithm.adv_estimator=gae critic.model.use_remove_padding=True critic.ppo_micro_batch_size_per_gpu=8"
RATED = ("reward_model.enable=True reward_model.use_reward_loop=False reward_model.model.path=org/rm "
         "reward_model.model.use_remove_padding=True reward_model.micro_batch_size_per_gpu=24")
SERVED = ("reward.reward_model.enable=True reward.reward_model.model_path=org/rm "
          "reward.reward_model.rollout.tensor_model_parallel_size=4")
MEGATRON = ("--config-name=ppo_megatron_trainer.yaml actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 "
            "actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=2")
SPLIT_CRITIC = (f"{MEGATRON} algorithm.adv_estimator=gae critic.model.enable_gradient_checkpointing=False "
                "critic.megatron.tensor_model_parallel_size=2 critic.ppo_micro_batch_size_per_gpu=8 ")


@pytest.mark.parametrize("more, options", [
    (CRITIC, {"algorithm": "ppo", "critic-micro-batch": 8}),
    ("actor_rollout_ref.actor.strategy=fsdp2 actor_rollout_ref.actor.fsdp_config.offload_policy=True",
     {"offload-parameters": "cpu", "offload-optimizer": "cpu", "trainer-option": ("steps_on_host=true",)}),
    (RATED, {"reward-model": "org/rm", "reward-micro-batch": 24}),
    (f"{SERVED} reward.reward_model.rollout.gpu_memory_utilization=0.4",
     {"reward-model": "org/rm", "reward-tp": 4, "reward-fraction": 0.4}),
    (f"{RATED} actor_rollout_ref.actor.use_dynamic_bsz=True", {"reward-micro-tokens": 32768}),
    (f"{CRITIC} actor_rollout_ref.actor.use_dynamic_bsz=True", {"critic-micro-tokens": 32768}),
    (f"{CRITIC} critic.fsdp.param_offload=False critic.model.use_remove_padding=True", {"algorithm": "ppo"}),
    (f"{MEGATRON} +actor_rollout_ref.actor.optim.override_optimizer_config.optimizer_cpu_offload=True "
     "+actor_rollout_ref.actor.optim.override_optimizer_config.optimizer_offload_fraction=1.0",
     {"offload-optimizer": "cpu", "trainer-option": ("steps_on_host=true",)}),
    ("model_engine=megatron actor_rollout_ref.actor.optim.use_precision_aware_optimizer=True",
     {"engine": "megatron", "trainer-option": ("precision_aware=true",), "framework": "verl@0.9"}),
    ("trainer.v1.trainer_mode=separate_async actor_rollout_ref.rollout.nnodes=1 "
     "actor_rollout_ref.rollout.n_gpus_per_node=8", {"rollout-gpus": 8, "ahead": True, "framework": "verl@0.9"}),
    ("ray_kwargs.ray_init.runtime_env.py_executable=null", {"framework": "verl@0.10"}),
    ("critic.model.fsdp_config.param_offload=False", {"framework": "verl@0.7"}),  # its name since 0.8 is another
    (MEGATRON, {"engine": "megatron", "tp": 2, "pp": 2, "recompute": "none", "padded": False, "sharded-by": None}),
    (f"{SPLIT_CRITIC}critic.megatron.pipeline_model_parallel_size=2", {"engine": "megatron", "critic-micro-batch": 8}),
    (f"{MEGATRON} actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=null "
     "actor_rollout_ref.actor.ppo_micro_batch_size=16", {"micro-batch": 4}),
    (f"{MEGATRON} +actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity=full",
     {"recompute": "full"}),
    (f"{MEGATRON} actor_rollout_ref.model.mtp.enable=True actor_rollout_ref.model.mtp.enable_train=True "
     "actor_rollout_ref.model.mtp.enable_rollout=True actor_rollout_ref.model.mtp.detach_encoder=True",
     {"trainer-option": ("mtp=true",), "rollout-draft": "mtp", "rollout-draft-tokens": 1}),
])
def test_critics_and_megatron(more: str, options: dict[str, Any]) -> None:
    found = of(more)
    assert not found.unread, sentence(found.unread)
    assert {name: found.options.get(name) for name in options} == options


@pytest.mark.parametrize("more, said", [
    ("actor_rollout_ref.actor.ppo_mini_batchsize=8",
     "actor.ppo_mini_batchsize: verl 0.10.0.dev knows no such name; did you mean actor.ppo_mini_batch_size"),
    ("data.max_promt_length=8", "data.max_promt_length: verl 0.10.0.dev knows no such name"),
    ("reward_model.enable=True reward_model.use_reward_loop=True",
     "serves a reward network by an engine of its own, which is not modelled"),
    (f"{RATED} reward_model.strategy=megatron", "reward_model.strategy: other than actor.strategy"),
    (f"{RATED} reward_model.ulysses_sequence_parallel_size=2", "reward_model.ulysses_sequence_parallel_size: other"),
    ("+actor_rollout_ref.actor.optim.override_optimizer_config.optimizer_cpu_offload=True",
     "optimizer_cpu_offload: is Megatron's own"),
    ("+actor_rollout_ref.model.override_config.attn_implementation=eager", "model.override_config.attn_implementation"),
    ("+actor_rollout_ref.model.override_config.num_hidden_layers=4", "model.override_config.num_hidden_layers"),
    ("actor_rollout_ref.rollout.quantization=fp8", "rollout.quantization: may change memory or time"),
    ("actor_rollout_ref.model.mtp.enable=True", "model.mtp.enable: modules that predict further tokens are modelled"),
    (f"{MEGATRON} actor_rollout_ref.model.mtp.enable=True", "model.mtp.enable_train: is off"),
    ("actor_rollout_ref.rollout.name=trtllm", "rollout.name: 'trtllm' is not one of vllm, sglang"),
    ("trainer.device=npu", "trainer.device: runs on no GPU of NVIDIA or AMD"),
    ("--config-name=my_trainer", "--config-name my_trainer: is a file of its own"),
    ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=null", "is set nowhere"),
    ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=null actor_rollout_ref.actor.ppo_micro_batch_size=64 "
     "trainer.nnodes=$NODES", "is divided by ranks that the file does not count"),
    (f"{CRITIC} critic.strategy=fsdp2", "critic.strategy: other than actor.strategy is not modelled"),
    (f"{CRITIC} critic.model.fsdp_config.param_offload=True", "other than actor.fsdp_config.param_offload"),
    (f"{MEGATRON} actor_rollout_ref.actor.megatron.use_distributed_optimizer=False",
     "actor.megatron.use_distributed_optimizer: may change"),
    (SPLIT_CRITIC, "critic.megatron.pipeline_model_parallel_size: other than"),
    (f"{SPLIT_CRITIC}critic.megatron.pipeline_model_parallel_size=2 critic.megatron.param_offload=True",
     "critic.megatron.param_offload: other than actor.megatron.param_offload"),
    ("algorithm.adv_estimator=gae critic.model.use_remove_padding=False", "critic.model.use_remove_padding: other"),
    (f"{SERVED} reward.reward_model.rollout.max_num_seqs=8", "max_num_seqs: other than 1024 is not modelled"),
    (f"{SERVED} reward.reward_model.rollout.pipeline_model_parallel_size=2", "other than 1 is not modelled"),
    (f"{SERVED} reward.reward_model.rollout.name=sglang", "other than rollout.name is not modelled"),
    ("model_engine=torchtitan actor_rollout_ref.actor.torchtitan.x=8", "model_engine: 'torchtitan' is not one of"),
    ("model_engine=veomni actor_rollout_ref.actor.veomni.expert_parallel_size=2", "experts divided over FSDP's ranks"),
    ("distillation.enabled=True", "distillation.nnodes: is not above 0"),
    ("actor_rollout_ref.rollout.expert_parallel_size=3", "3 must be the 2 ranks of a copy"),
    ("+actor_rollout_ref.actor.optim.override_optimizer_config.optimizer_cpu_offload=True model_engine=megatron",
     "override_optimizer_config.optimizer_offload_fraction: other than 1"),
])
def test_what_is_not_modelled_is_named(more: str, said: str) -> None:
    assert said in sentence(of(more).unread)


@pytest.mark.parametrize(("kernels", "names"), [("XFORMERS", []), ("FLASHINFER", ["$VLLM_ATTENTION_BACKEND"])])
def test_kernels_with_scratch_are_named(kernels: str, names: list[str]) -> None:
    assert [one.name for one in of(head=f"export VLLM_ATTENTION_BACKEND={kernels}").unread] == names


def test_veomni_is_fsdp2_by_names_of_its_own() -> None:
    role = "actor_rollout_ref.actor.veomni."
    found = of(f"model_engine=veomni {role}param_offload=True {role}ulysses_parallel_size=2 {role}fsdp_size=4 "
               f"{role}enable_full_shard=True {role}attn_implementation=flash_attention_2 {role}expert_parallel_size=1")
    assert not found.unread, sentence(found.unread)
    said = {"sharded-by": "fsdp2", "offload-parameters": "cpu", "ulysses": 2, "shard-group": 4}
    assert {name: found.options[name] for name in said} == said


def test_what_the_engine_is_told_says_the_same_as_to_itself() -> None:
    role = "actor_rollout_ref.rollout."
    found = of(f"{role}tensor_model_parallel_size=2 {role}data_parallel_size=4 {role}expert_parallel_size=8 "
               f"+{role}engine_kwargs.vllm.kv_cache_dtype=fp8 "
               f"+{role}engine_kwargs.vllm.compilation_config.cudagraph_mode=FULL_DECODE_ONLY")
    assert not found.unread, sentence(found.unread)
    said = {"rollout-tp": 2, "rollout-dp": 4, "rollout-expert-parallel": True, "rollout-kv-dtype": "fp8"}
    assert {name: found.options[name] for name in said} == said
    assert any("FULL_DECODE_ONLY" in note for note in found.notes)


def test_a_reference_without_weights_of_its_own_has_no_type() -> None:
    lora = "actor_rollout_ref.model.lora_rank=32 actor_rollout_ref.model.target_modules=all-linear"
    named = "actor_rollout_ref.ref.fsdp_config.model_dtype"
    assert not of(f"{lora} {named}=bfloat16").unread
    assert named.removeprefix("actor_rollout_ref.") in sentence(of(f"{named}=bfloat16").unread)


def test_a_teacher_has_cards_of_its_own_and_is_said() -> None:
    found = of("distillation.enabled=True distillation.nnodes=1 distillation.n_gpus_per_node=4")
    assert not found.unread and any("the teacher answers on 4 cards" in note for note in found.notes)


def test_its_own_defaults_are_all_read() -> None:
    named = {name: entry.default for name, entry in load_format("verl").sections["config"].items()}
    found = verl.reading({**named, "rollout.name": "vllm", "critic.model.use_remove_padding": True}, "", checked=True)
    assert [one.name for one in found.unread] == ["actor.ppo_micro_batch_size_per_gpu"]  # where verl stops, too


def test_other_programs_of_verl_are_named() -> None:
    for program in ("main_generation", "main_ppo_split", "fsdp_sft_trainer"):
        found = verl.read(Config("run.sh", f"python3 -m verl.trainer.{program} data.path=x\n", None))
        assert f"{program}: is a program of verl that is not modelled" in sentence(found.unread)


@pytest.mark.parametrize("head, framework", [
    ("# verlai/verl:app-verl0.5-transformers4.55.4-vllm0.10.0", "verl@0.5"), ("pip install verl==0.4.1", "verl@0.4"),
    ("pip install git+https://github.com/volcengine/verl@v0.6.1", "verl@0.6"), ("", None),
])
def test_releases_stand_in_images_and_pins(head: str, framework: str | None) -> None:
    assert of(head=head).options.get("framework") == framework


def test_a_command_wins_over_the_configuration_that_it_names(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "my_grpo.yaml").write_text(
        "defaults: [ppo_trainer, _self_]\ndata: {max_prompt_length: 333, max_response_length: 444}\n"
        "actor_rollout_ref: {rollout: {name: sglang, gpu_memory_utilization: 0.3}}\n", encoding="utf-8")
    script = tmp_path / "run.sh"
    named = GRPO.replace("data.max_prompt_length=512 ", "").replace("actor_rollout_ref.rollout.name=vllm ", "")
    script.write_text(f"python3 -m verl.trainer.main_ppo --config-name='my_grpo' {named}\n", encoding="utf-8")
    job = post_training_job_of({"from": (str(script),), "gpus": "h100-sxm-80gb"})
    assert (job.episodes.prompt_len, job.episodes.response_len, job.cluster.count) == (333, 1024, 16)
    assert (job.rollout_engine, job.rollout.memory_fraction) == ("sglang", 0.3)
