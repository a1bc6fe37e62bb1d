"""Whatever a config holds, reading it ends in a model or in an error of ours."""

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vramcast.blocks.parameters.model import count_parameters
from vramcast.errors import VramcastError
from vramcast.families import FAMILIES, model_from_config
from vramcast.families.fields import SPELLINGS, all_defaults

OTHER_KEYS = [
    "layer_types", "layer_types_counts", "moe_layer_freq", "mlp_only_layers", "attn_config", "vision_config",
    "text_config", "block_configs", "architectures", "torch_dtype", "linear_attn_config", "quantization_config",
    "hybrid_override_pattern", "id2label", "compress_ratios", "attn_type_list", "pos_att_type", "norm_rel_ebd",
    "num_nextn_predict_layers", "partial_rotary_factor", "mlp_ratio", "expansion_ratio", "sliding_window_pattern",
    "full_attn_layers", "deepstack_visual_indexes", "supported_aspect_ratios", "kv_channels", "position_buckets",
]
KEYS = sorted({key for values in all_defaults().values() for key in values} | set(SPELLINGS) | set(OTHER_KEYS))
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 300),
    st.integers(-(2**40), 2**40),
    st.just(10**4000),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["full_attention", "gated-gelu", "auto", "float16", "M-*E", "qwen2", "llama"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=4), inner, max_size=5)
    ),
    max_leaves=12,
)


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(family=st.sampled_from(sorted(FAMILIES)), changes=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6))
def test_hostile_values_never_escape_as_foreign_errors(family: str, changes: dict[str, Any]) -> None:
    base: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 100}
    try:
        model = model_from_config({**base, **changes, "model_type": family}, name="fuzzed")
    except VramcastError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 400
        return
    count = count_parameters(model)
    assert 0 < count.active <= count.total
    assert count.trainable > 0
