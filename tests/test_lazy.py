"""What is made when it is first asked for."""

import re
import subprocess
import sys

from vramcast.lazy import lazy_pattern

DEFERRED = """
import sys
from vramcast.lazy import defer
defer("json")
import json
assert "json.decoder" not in sys.modules and json.__name__ == "json"
assert json.loads("[1]") == [1] and not hasattr(json, "nothing")
assert "json.decoder" in sys.modules and type(json) is type(sys)
defer("json")
from json import dumps
assert sys.modules["json"] is json and dumps is json.dumps
"""


def test_a_module_is_loaded_when_something_of_it_is_asked_for() -> None:
    done = subprocess.run([sys.executable, "-c", DEFERRED], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_an_expression_is_what_re_compiles() -> None:
    lazy, eager = lazy_pattern(r"(?P<count>\d+)x", re.IGNORECASE), re.compile(r"(?P<count>\d+)x", re.IGNORECASE)
    assert lazy.fullmatch("8X") is not None and lazy.sub("-", "a4xb") == eager.sub("-", "a4xb") == "a-b"
    assert (lazy.pattern, lazy.flags, lazy.groups) == (eager.pattern, eager.flags, eager.groups)


def test_a_question_loads_none_of_what_help_texts_are_cleaned_with() -> None:
    code = (
        "import sys; sys.modules['typing_extensions'] = None  # which needs them itself, where it is there\n"
        "from vramcast.cli.main import answered; answered(['gpus', 'h100-sxm-80gb'], 'vramcast');"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0 and not {"ast", "dis", "tokenize"} & set(done.stderr.split())
