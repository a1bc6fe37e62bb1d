"""Commands that documents show, and what counts tool files asks of them."""

import argparse
from pathlib import Path

from truth.documented import commands_in, laid, scripted
from truth.tool_files import asked, questions_of

DOCUMENT = """Write

```yaml
# sft.yaml
model_name_or_path: Qwen/Qwen3-0.6B
```

and run

```bash
export RATE=1e-5  # of yours
$ cd folder
trl sft \\
    --config sft.yaml --learning_rate $RATE  # slow
trl dpo
  --bf16
```

```python
trl sft
```
"""


def test_commands_have_their_lines_their_variables_and_the_files_above_them() -> None:
    first, second = commands_in(DOCUMENT, r"^trl ")
    assert first.command == "trl sft --config sft.yaml --learning_rate $RATE"
    assert second.command == "trl dpo --bf16"
    assert {first.variables, second.variables} == {"RATE=1e-5; "}
    assert first.files == {"sft.yaml": "model_name_or_path: Qwen/Qwen3-0.6B"}


def test_files_of_a_document_lie_beside_those_of_the_checkout(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    (checkout / "other.yaml").write_text("x: 1")
    folder = laid({"sft.yaml": "y: 2"}, checkout, tmp_path / "drafts" / "0")
    assert {one.name: one.read_text() for one in folder.iterdir()} == {"other.yaml": "x: 1", "sft.yaml": "y: 2"}
    assert laid({}, checkout, tmp_path / "drafts" / "1") == checkout


def test_a_script_of_the_shell_beside_the_document_is_asked_with_its_words(tmp_path: Path) -> None:
    (tmp_path / "run.sh").touch()
    assert scripted("sh run.sh dsw 7B 1", tmp_path) == ("--from", "run.sh", "--args", "dsw 7B 1")
    assert scripted("sh other.sh dsw", tmp_path) == scripted("trl sft", tmp_path) == ()


def test_what_a_document_shows_is_answered_and_asked_again_with_more_cards(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(DOCUMENT)
    given = argparse.Namespace(command="train", each=None, lines="^trl sft")
    options = ("--gpus", "2xh100-sxm-80gb", "--micro-batch", "1", "--global-batch", "7")
    drafts = tmp_path / "drafts"
    questions = questions_of([tmp_path / "README.md"], tmp_path, given, options, drafts)
    assert [asked(one)[1] for one in questions] == [2]  # 2 does not divide 7
    assert [asked(one, ["--gpus 1xh100-sxm-80gb"])[1] for one in questions] == [0]
