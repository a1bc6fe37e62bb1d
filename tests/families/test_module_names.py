"""Names of weights: every vocabulary means the same weights, and a word that means nothing is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.api import job_of
from vramcast.blocks.parameters.model import named_parameters
from vramcast.blocks.parameters.targets import check_targets, parts_of, places_of
from vramcast.catalogue.index import MODELS
from vramcast.catalogue.models import load_model
from vramcast.domain.job import Peft
from vramcast.engines.eager.question import recipe_of
from vramcast.engines.eager.recipe import elements, weights
from vramcast.errors import InvalidSpec, UnknownName, Unsupported, VramcastError
from vramcast.estimate.techniques import with_plan
from vramcast.estimate.training import answer, live_bytes
from vramcast.families.module_names import names_of, read_targets, saved_modules, targets
from vramcast.families.modules import known_families, modules_of
from vramcast.formats.tools.unsloth import LINEAR, layers_pattern

ALL = ("attention.q", "attention.k", "attention.v", "attention.out", "mlp.gate", "mlp.up", "mlp.down")
NAMES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

WITHOUT_CODE = {"bailing_moe", "deepseek", "deepseek_ref", "deepseek_v4", "kimi_vl", "minimax_m3", "minimax_m3_vl",
                "minimax_m3_vl_text", "muse_glimmer", "step3p5", "step3p7", "step3p7_text"}
"""Families that no engine trains here."""


def adapted(model: str, *words: str, engine: str = "") -> tuple[str, ...]:
    return targets(load_model(model), words, engine=engine)


@pytest.mark.parametrize("words", [
    NAMES, ("all-linear",), ("all",), ALL,
    ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"),
    ("wq", "wk", "wv", "wo", "w1", "w2", "w3"),
    ("query", "key", "value", "projection", "mlp"),
    ("q_proj", "k_proj", "v_proj", "output_proj", "mlp"),
    (r"model\.layers\.\d+\.(self_attn|mlp)\..*_proj",),
    ("self_attn.q_proj", "self_attn.k_proj", "decoder.attention.v", "decoder.layers.0-31.attention.out", "mlp"),
])
def test_every_vocabulary_means_the_same_weights(words: tuple[str, ...]) -> None:
    assert set(adapted("llama-3.1-8b", *words)) == set(ALL)


@pytest.mark.parametrize(("model", "word", "said"), [
    ("llama-3.1-8b", "foo", "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, or all-linear"),
    ("llama-3.1-8b", "attention.o", "o_proj"),
    ("phi-3-mini", "q_proj", "qkv_proj, o_proj, gate_up_proj, down_proj"),
    ("gpt-oss-20b", "gate_proj", "gate_up_proj"),
    ("bert-base-uncased", "mlp.gate", "query, key, value, dense"),
    ("llama-3.1-8b", "decoder.layers.32.attention.q", "q_proj"),
    ("llama-3.1-8b", "", "q_proj"),
])
def test_a_word_that_means_nothing_is_refused_with_what_there_is(model: str, word: str, said: str) -> None:
    with pytest.raises(UnknownName, match=f"no weight of {model} is called .*{said}"):
        adapted(model, word)


@pytest.mark.parametrize(("model", "words", "found", "lacking"), [
    ("gpt-oss-20b", list(NAMES), ["attention.q", "attention.k", "attention.v", "attention.out"],
     ["gate_proj", "up_proj", "down_proj"]),
    ("gpt-oss-20b", ["attention.q", "mlp.gate"], ["attention.q"], ["mlp.gate"]),
    ("bge-m3", ["attention.q", "mlp.gate", "mlp.up"], ["attention.q", "mlp.up"], ["mlp.gate"]),
    ("phi-3-mini", ["q_proj", "o_proj", "up_proj", "down_proj"], ["attention.out", "mlp.down"],
     ["q_proj", "up_proj"]),
    ("llama-3.2-1b", ["q_proj", "W_pack"], ["attention.q"], ["W_pack"]),
])
def test_a_list_of_modules_serves_models_that_lack_some(
    model: str, words: list[str], found: list[str], lacking: list[str]
) -> None:
    assert read_targets(load_model(model), words) == (tuple(found), tuple(lacking))


@pytest.mark.parametrize(("model", "words", "said"), [
    ("llama-3.1-8b", ["q_proj$"], "matches no whole module name .* such as model.layers.0.self_attn.q_proj"),
    ("llama-3.1-8b", ["(q_proj"], "no regular expression"),
    ("mixtral-8x7b", ["w1"], "w1 and w3 of the experts in one tensor"),
    ("mamba-130m", ["all-linear"], "no out_proj of mamba"),
])
def test_what_peft_refuses_is_refused(model: str, words: list[str], said: str) -> None:
    with pytest.raises(InvalidSpec, match=said):
        adapted(model, *words)


@pytest.mark.parametrize("surface", ["targets", "saved"])
@given(word=st.text(max_size=12), model=st.sampled_from(("llama-3.2-1b", "gpt2", "qwen3-30b-a3b", "qwen2.5-vl-3b")))
def test_any_text_adapts_something_or_is_refused(surface: str, word: str, model: str) -> None:
    try:
        found = adapted(model, word) if surface == "targets" else saved_modules(load_model(model), [word])
    except VramcastError as error:
        assert str(error).count("\n") == 0
        return
    assert found
    if surface == "targets":
        check_targets(load_model(model), found)


def test_engines_refuse_paths_that_the_model_lacks_wherever_they_come_from() -> None:
    job = job_of({"model": "llama-3.2-1b", "gpus": "h100", "peft": "lora", "seq-len": 128})
    with pytest.raises(UnknownName, match=r"called 'q_proj'; it has attention\.q"):
        answer(with_plan(job, peft=Peft(targets=("q_proj",))))


def test_every_family_has_names_and_they_lead_back_to_its_weights() -> None:
    for model in sorted({load_model(name).family: name for name in MODELS.names()}.values()):
        network = load_model(model)
        if network.family in WITHOUT_CODE:
            continue
        assert network.family in known_families(), model
        found = {path for module in modules_of(network) if module.stack for path in parts_of(module.path)}
        inside = {
            owned.parameter.path for owned in named_parameters(network)
            if ".layers." in owned.owner and owned.parameter.kind == "matrix"
        }
        assert found == inside, model
        for module in modules_of(network):
            if module.stack and module.kind == "linear":
                words = (f"{module.stack}.{module.path}",)
                try:
                    named = names_of(network, words)
                except Unsupported:
                    continue  # BERT's output.dense is attention.output.dense, too
                if module.path == "mamba.out":
                    continue  # PEFT refuses some of them
                again = targets(network, (*named.modules, *named.parameters))
                assert places_of(network, again) and set(again) <= {*words, module.path}, model


def test_a_head_that_is_the_embedding_is_trained_in_a_copy_of_its_own() -> None:
    def learning(saved: str) -> int:
        job = job_of({"model": "llama-3.2-1b", "gpus": "h100", "peft": "lora", "seq-len": 64, "modules-to-save": saved})
        return elements(weights(recipe_of(job)), learning_only=True)

    alone = learning("lm_head")
    assert alone == learning("embed_tokens") == learning("head") > 128_256 * 2048
    assert learning("embedding,lm_head") == alone + 128_256 * 2048


@pytest.mark.parametrize("model", sorted({load_model(name).family: name for name in MODELS.names()}.values()))
def test_every_module_of_every_family_can_be_adapted_or_is_refused(model: str) -> None:
    network = load_model(model)
    words = dict.fromkeys(module.last for module in modules_of(network) if module.kind in ("linear", "parameters"))
    layers = min(8, network.num_layers)
    for word in ("all-linear", *words):
        asked = {"model": model, "gpus": "h200-sxm-141gb", "engine": "pytorch", "peft": "lora", "lora-targets": word,
                 "precision": "bf16", "seq-len": 64, "layers": layers}
        try:
            found = live_bytes(job_of(asked))
        except (InvalidSpec, UnknownName):
            continue  # an engine does not build the model, PEFT refuses the module, or no layer of the cut has it
        assert found > 0


@pytest.mark.parametrize(("engine", "model", "trainable"), [  # what Unsloth printed as trainable, rank 8
    ("unsloth@2025.11.3", "ernie-4.5-21b-a3b", 177_545_216),  # 64 experts of three linear layers, transformers 4.56
    ("unsloth@2026.4.4", "gemma-4-26b-a4b", 9_292_800),  # experts beside the MLP are passed over until 2026.4.5
])
def test_unsloth_adapts_experts_as_its_release_does(engine: str, model: str, trainable: int) -> None:
    words = ",".join(LINEAR) if "ernie" in model else layers_pattern({"finetune_vision_layers": False})
    job = job_of({"model": model, "gpus": "b200", "engine": engine, "peft": "lora", "lora-rank": 8, "seq-len": 64,
                  "lora-targets": words})
    assert elements(weights(recipe_of(job)), learning_only=True) == trainable
