"""What stands in for packages that this Python does not have."""

import sys

import pytest

from vramcast.tracing.packages import IDLE, NotInstalled, StandIns, named_missing, stand_in_for


@pytest.fixture
def finders():
    before, loaded = list(sys.meta_path), set(sys.modules)
    yield
    sys.meta_path[:] = before
    for name in set(sys.modules) - loaded:
        del sys.modules[name]


def test_what_draws_comes_to_nothing_in_every_form_of_use():
    plots = NotInstalled("matplotlib.pyplot")
    figure, (left, right) = plots.subplots(1, 2)
    left.imshow([[0]])
    assert [*right] == [*zip(plots, "ab", strict=False)] == [] and figure is not None
    assert "a" + plots.colored("b") + "c" == "ac" and f"{plots.rate:.2f}" == "" and plots.count / 1e9 is not None


def test_a_module_that_a_project_writes_when_installed_is_known_by_its_name(finders, tmp_path, monkeypatch):
    (tmp_path / "ownproject").mkdir()
    (tmp_path / "ownproject" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError) as raised:
        from ownproject.version import __version__
    name = named_missing(raised.value)
    assert name == "ownproject.version"
    assert "is written where the project is installed" in str(next(stand_in_for([name], tmp_path)))
    from ownproject.version import __gitsha__, __version__
    assert __version__ == __gitsha__ == "0.0.0"


def test_no_package_whose_work_changes_memory_is_among_them():
    assert not {"torch", "numpy", "scipy", "pandas", "torchvision", "apex", "bitsandbytes"} & {*IDLE}
    assert StandIns(["wandb"]).find_spec("wandb_of_others", None) is None
