"""Compiled modules stand in while a simulation runs, and only then."""

import importlib
import sys
from importlib.util import find_spec
from types import ModuleType

import pytest
import torch

from vramcast.api.tracing import trace
from vramcast.domain.trace_job import ScriptJob
from vramcast.errors import InvalidSpec, Unsupported
from vramcast.tracing.script_parts import run_script

pytestmark = pytest.mark.usefixtures("forked")
IS_HERE = find_spec("apex") is not None


def test_a_module_stands_in_where_its_library_is_installed(session, installed):
    installed("apex")
    with session.active():
        import amp_C

        assert callable(amp_C.multi_tensor_adam)
    assert any("amp_C of apex is taken to be built" in entry.what for entry in session.assumptions)


@pytest.mark.skipif(IS_HERE, reason="Apex is installed")
def test_without_the_library_its_modules_are_missing_as_ever(session):
    with session.active(), pytest.raises(ModuleNotFoundError, match="amp_C"):
        importlib.import_module("amp_C")


def test_another_package_of_the_same_name_gets_no_stand_in(session, installed):
    root = installed("apex")
    (root / "multi_tensor_apply" / "__init__.py").unlink()
    (root / "multi_tensor_apply").rmdir()
    with session.active(), pytest.raises(ModuleNotFoundError, match="amp_C"):
        importlib.import_module("amp_C")


def test_a_function_nobody_read_is_refused_in_one_sentence(session, installed):
    installed("apex")
    with session.active():
        import amp_C

        with pytest.raises(Unsupported, match=r"amp_C\.strange is a compiled function of which it is not known"):
            amp_C.strange(1)


def test_tensors_of_the_host_are_refused_as_by_the_compiled_module(session, installed):
    installed("apex")
    with session.active():
        import amp_C

        with pytest.raises(RuntimeError, match="takes tensors of a CUDA device"):
            amp_C.multi_tensor_l2norm(65536, torch.zeros(1), [[torch.zeros(4)]])


def test_a_function_that_outlives_its_simulation_says_so(session, installed):
    installed("apex")
    with session.active():
        import amp_C

        kept = amp_C.multi_tensor_l2norm
    with pytest.raises(Unsupported, match="none runs now"):
        kept(65536, None, [[torch.zeros(1)]])


def test_a_function_that_outlives_its_simulation_finds_the_compiled_one(session, installed, monkeypatch):
    installed("apex")
    with session.active():
        import amp_C

        kept = amp_C.multi_tensor_l2norm
    module = ModuleType("amp_C")
    module.multi_tensor_l2norm = lambda *_: "compiled"
    monkeypatch.setitem(sys.modules, "amp_C", module)
    assert kept(65536) == "compiled"


def test_a_module_that_was_loaded_before_answers_for_the_card_and_is_itself_again(session, monkeypatch):
    module = ModuleType("xentropy_cuda")
    module.forward = forward = object()
    monkeypatch.setitem(sys.modules, "xentropy_cuda", module)
    with session.active():
        logits = torch.randn(8, 100, device="cuda", dtype=torch.float16)
        losses, _ = module.forward(logits, torch.zeros(8, dtype=torch.int64, device="cuda"), 0.0, True)
        assert losses.is_cuda
        assert losses.dtype is torch.float32
    assert module.forward is forward


@pytest.mark.skipif(IS_HERE, reason="Apex is installed")
def test_a_script_without_the_library_is_told_that_its_python_is_enough(session, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("from apex.optimizers import FusedAdam\n")
    with pytest.raises(InvalidSpec, match=r"put apex on the path, its Python alone .*No module named 'apex'"):
        run_script(ScriptJob(path=str(script), gpu=session.gpu))


def test_a_target_that_imports_such_a_library_is_imported_on_the_card(session, installed, monkeypatch):
    root = installed("apex")
    (root.parent / "my_model.py").write_text(
        "import amp_C, apex.multi_tensor_apply, torch\n"
        "assert torch.cuda.is_available()\n"
        "def build():\n    return torch.nn.Linear(8, 8)\n"
    )
    monkeypatch.syspath_prepend(str(root.parent))
    found = trace("my_model:build", input="4x8", loss="sum", gpu="a100-sxm4-80gb")
    assert found.fits
    assert not {"my_model", "amp_C", "apex"} & set(sys.modules)
