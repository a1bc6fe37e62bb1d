"""Libraries without their compiled modules: enough of them that a simulation takes them for installed."""

import sys

import pytest

PARTS = {
    "apex": ("multi_tensor_apply/__init__.py",),
    "flash_attn": ("flash_attn_interface.py",),
    "transformer_engine": ("pytorch/__init__.py", "pytorch/tensor/__init__.py", "pytorch/tensor/storage/__init__.py"),
}


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Gives a function that makes a library, and those parts that tests name."""

    def install(library, **files):
        root = tmp_path / library
        for name in ("__init__.py", *PARTS.get(library, ())):
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")
        for name, text in files.items():
            (root / name.replace("__", "/")).with_suffix(".py").write_text(text)
        monkeypatch.syspath_prepend(str(tmp_path))
        return root

    before = set(sys.modules)
    yield install
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in PARTS:
            del sys.modules[name]
