"""TransformerEngine: its compiled functions by their public signatures, and the library where it is installed."""

import os
import sys
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace

import pytest
import torch

from vramcast.catalogue.gpus import load_gpu
from vramcast.errors import Unsupported
from vramcast.tracing.session import Session
from vramcast.units import MIB

IS_HERE = find_spec("transformer_engine") is not None
STORAGES = "transformer_engine.pytorch.tensor.storage.float8_tensor_storage"
COMMON = """
import os
if "NVTE_PROJECT_BUILDING" not in os.environ:
    raise RuntimeError("libraries of the card are missing")

def load_framework_extension(framework):
    raise RuntimeError("no shared object")
"""


class Float8TensorStorage:
    """What the library's class takes."""

    def __init__(self, *, data, fp8_scale_inv, fp8_dtype, data_transpose, quantizer, fake_dtype):
        self._data, self._transpose, self._scale_inv = data, data_transpose, fp8_scale_inv
        self.dtype, self.quantizer, self.fp8_dtype = fake_dtype, quantizer, fp8_dtype

    def size(self):
        return self._data.size()


class Float8Quantizer(SimpleNamespace):
    """Scales from the steps before."""


class Float8CurrentScalingQuantizer(SimpleNamespace):
    """A scale from the tensor itself."""


class MXFP8Quantizer(SimpleNamespace):
    """A scale for every 32 numbers."""


@pytest.fixture(autouse=True)
def library(installed, monkeypatch):
    """Enough of TransformerEngine."""
    if IS_HERE:
        pytest.skip("the library itself is tested below")
    root = installed("transformer_engine")
    (root / "common").mkdir()
    (root / "common" / "__init__.py").write_text(COMMON)
    module = ModuleType(STORAGES)
    module.Float8TensorStorage = Float8TensorStorage
    monkeypatch.setitem(sys.modules, STORAGES, module)


def quantizer(kind, *, rows=True, columns=True):
    return kind(rowwise_usage=rows, columnwise_usage=columns, internal=True, dtype=5)


def bf16(*sizes):
    return torch.randn(*sizes, device="cuda", dtype=torch.bfloat16)


def gemm(compiled, a, b, layout, **options):
    given = {"out": None, "quantizer": None, "dtype": None, "bias": None, "gelu": False, "grad": False, **options}
    return compiled.generic_gemm(
        a, layout[0] == "T", b, layout[1] == "T", given["out"], given["quantizer"], given["dtype"], given["bias"],
        compiled.DType.kBFloat16, given["gelu"], None, given["grad"], None, 0, False, False,
    )


def test_importing_loads_no_library_of_the_card_and_leaves_the_environment(session, monkeypatch):
    monkeypatch.delenv("NVTE_PROJECT_BUILDING", raising=False)
    with session.active():
        import transformer_engine.common

        transformer_engine.common.load_framework_extension("torch")
        assert "transformer_engine_torch" in sys.modules
        assert "NVTE_PROJECT_BUILDING" not in os.environ
    assert "transformer_engine.common" not in sys.modules


@pytest.mark.parametrize(("layout", "a", "b", "out"), [
    ("TN", (4096, 1024), (8, 256, 1024), (8, 256, 4096)), ("NN", (4096, 1024), (8, 256, 4096), (8, 256, 1024)),
    ("NT", (2048, 1024), (2048, 4096), (4096, 1024)),
])
def test_a_product_has_the_shape_of_its_layout(running, layout, a, b, out):
    import transformer_engine_torch as compiled

    assert gemm(compiled, bf16(*a), bf16(*b), layout)[0].shape == out


def test_the_gradient_of_a_bias_comes_after_that_of_the_weight(taken):
    import transformer_engine_torch as compiled

    x, grad, bias = bf16(2048, 1024), bf16(2048, 4096), bf16(4096)
    assert taken(lambda: gemm(compiled, x, grad, "NT", bias=bias, grad=True)) == [(8 * MIB, ""), (8192, "")]


@pytest.mark.parametrize(("kind", "parts"), [
    (Float8Quantizer, [(4, ""), (2 * MIB, ""), (2 * MIB, "")]),
    (Float8CurrentScalingQuantizer, [(2 * MIB, ""), (2 * MIB, ""), (4, ""), (4, "largest value"), (4, "scale")]),
])
def test_eight_bit_copies_are_one_by_rows_one_by_columns_and_a_scale(taken, kind, parts):
    import transformer_engine_torch as compiled

    x = bf16(2048, 1024)
    assert taken(lambda: compiled.quantize(x, quantizer(kind))) == parts


def test_blackwell_needs_no_transposed_copy():
    session = Session(load_gpu("b200"))
    with session.active():
        import transformer_engine_torch as compiled

        assert compiled.quantize(bf16(64, 32), quantizer(Float8Quantizer))._transpose is None


def test_scales_by_block_are_refused_in_one_sentence(running):
    import transformer_engine_torch as compiled

    with pytest.raises(Unsupported, match=r"MXFP8Quantizer of TransformerEngine is not known; trace with"):
        compiled.quantize(bf16(64, 32), quantizer(MXFP8Quantizer))


def test_a_norm_keeps_its_statistics_first_and_takes_a_byte_to_work_in(taken):
    import transformer_engine_torch as compiled

    x, weight = bf16(2048, 1024), bf16(1024)
    kind = compiled.DType.kBFloat16
    blocks = taken(lambda: compiled.rmsnorm_fwd(x, weight, 1e-5, None, None, kind, 0, False))
    assert blocks == [(2048 * 4, ""), (4 * MIB, ""), (1, "workspace")]


def test_backward_of_a_norm_is_an_estimate_and_says_so(session, taken):
    import transformer_engine_torch as compiled

    x, weight = bf16(2048, 1024), bf16(1024)
    statistic = torch.randn(2048, device="cuda")
    blocks = taken(lambda: compiled.layernorm_bwd(x, x, statistic, statistic, weight, 0, False))
    assert blocks[-1] == (2 * 108 * 1024 * 4, "sums of the gradient of weights")
    assert any("taken to run one block a multiprocessor" in entry.what for entry in session.assumptions)


@pytest.mark.parametrize(("name", "width"), [("gelu", 1024), ("swiglu", 512)])
def test_a_gated_activation_halves_the_width(running, name, width):
    import transformer_engine_torch as compiled

    x = bf16(64, 1024)
    assert getattr(compiled, name)(x, None).shape == (64, width)
    assert getattr(compiled, f"d{name}")(bf16(64, width), x, None).shape == (64, 1024)


@pytest.mark.parametrize(("layout", "count"), [("NVTE_SB3HD", 1), ("NVTE_SBHD_SB2HD", 2), ("NVTE_SBHD_SBHD_SBHD", 3)])
def test_gradients_of_packed_queries_keys_values_are_packed(running, layout, count):
    import transformer_engine_torch as compiled

    q, starts = bf16(512, 4, 16, 64), torch.zeros(5, dtype=torch.int32, device="cuda")
    form, none = compiled.NVTE_QKV_Format.NVTE_SBHD, compiled.NVTE_QKV_Layout[layout]
    common = (compiled.NVTE_Bias_Type.NVTE_NO_BIAS, compiled.NVTE_Mask_Type.NVTE_CAUSAL_MASK,
              compiled.NVTE_Softmax_Type.NVTE_VANILLA_SOFTMAX, (-1, 0), False)
    out, sums, state = compiled.fused_attn_fwd(
        512, 512, True, 0.125, 0.0, False, none, form, form, *common, starts, starts, q, q, q, torch.bfloat16,
        None, None, None, None, None, None, None, None, None, 4, False, False,
    )
    assert (out.shape, sums.shape, state.shape) == (q.shape, (4, 16, 512, 1), (2,))
    start = len(running.device.tape.blocks)
    gradients = compiled.fused_attn_bwd(
        512, 512, 0.125, 0.0, False, none, form, form, none, form, form, *common, False, starts, starts, q, q, q,
        out, out, torch.bfloat16, [sums, state], None, None, None, None, None, False,
    )
    made = running.device.tape.blocks[start:]
    assert all(gradient.shape == q.shape for gradient in gradients[:3])
    assert gradients[3:] == (None, None)
    assert [block.name for block in made] == [""] * count + ["cuDNN workspace"]
    assert any("cuDNN's attention is taken to work" in entry.what for entry in running.assumptions)


def test_tensors_allocated_together_share_one_block(taken):
    import transformer_engine_torch as compiled
    blocks = taken(lambda: compiled.bulk_allocate([(3,), (4, 4)], [torch.uint8, torch.float32], None, [16, 16]))
    assert blocks == [(16 + 64 + 16, "")]


class TestLibrary:
    """The library itself."""

    @pytest.fixture(autouse=True)
    def library(self):
        if not IS_HERE:
            pytest.skip("TransformerEngine is not installed")

    @pytest.mark.parametrize("recipe", [None, "DelayedScaling", "Float8CurrentScaling"])
    def test_a_layer_trains(self, recipe):
        session = Session(load_gpu("h100-sxm-80gb"))
        with session.active():
            import transformer_engine.common.recipe as recipes
            import transformer_engine.pytorch as te

            layer = te.TransformerLayer(256, 1024, 4, params_dtype=torch.bfloat16)
            x = bf16(128, 2, 256).requires_grad_()
            chosen = getattr(recipes, recipe)() if recipe else None
            with te.autocast(enabled=recipe is not None, recipe=chosen):
                out = layer(x)
            out.sum().backward()
            assert x.grad is not None
        assert not session.simulation.unseen

    def test_a_normed_mlp_keeps_what_its_layers_read(self):
        session = Session(load_gpu("h100-sxm-80gb"))
        with session.active():
            import transformer_engine.pytorch as te

            layer = te.LayerNormMLP(1024, 4096, params_dtype=torch.bfloat16)
            x = bf16(2048, 1024).requires_grad_()
            layer(x)  # has its workspace
            before = torch.cuda.memory_allocated()
            out = layer(x)
            kept = torch.cuda.memory_allocated() - before
        # the norm's output and two statistics a row, before and after GELU, the output
        assert kept == 4 * MIB + 2 * 2048 * 4 + 2 * 16 * MIB + 4 * MIB
        assert out.shape == x.shape
