"""The front page, the one question of a visit, and files dropped anywhere."""

import base64
import json
from typing import Any

from vramcast.sources.resolve import config_of

from .conftest import EXAMPLES, LOG, Opened, asked, comes_to, go, needed

VERDICT = ".start-verdict h2"
DROPPED = """([name, text]) => {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)), carried = new DataTransfer();
  carried.items.add(new File([bytes], name));
  for (const kind of ["dragenter", "drop"])
    document.body.dispatchEvent(new DragEvent(kind, { dataTransfer: carried, bubbles: true, cancelable: true }));
}"""


def drop(page: Any, name: str, content: bytes) -> None:
    page.evaluate(DROPPED, [name, base64.b64encode(content).decode()])


def test_the_front_page_answers_as_it_is_typed_and_its_examples_are_computed(opened: Opened) -> None:
    page = opened("", wait=VERDICT)
    page.wait_for_function("() => document.querySelectorAll('.live .badge').length === 4")
    expected = asked("train", {"model": "llama-3.1-8b", "gpus": "2xa100-sxm4-40gb", "seq-len": "2k"})
    assert needed(expected) in page.locator(".live-list").first.inner_text()
    page.locator("[name=gpus]").fill("8xh100-sxm-80gb")
    page.locator("[name=mode]").select_option("train")
    whole = needed(asked("train", {"model": "llama-3.1-8b", "gpus": "8xh100-sxm-80gb"}))
    page.wait_for_function("text => document.querySelector('.start-verdict').textContent.includes(text)", arg=whole)
    assert "measured runs most like this" in page.locator(".start-verdict .trust").inner_text()
    page.locator(".go-whole").first.click()
    page.wait_for_selector(".verdict")
    assert whole in page.locator(".verdict").inner_text()


def test_one_question_holds_for_all_pages(opened: Opened) -> None:
    page = opened("#/train?model=qwen3-8b&gpus=4xh200-sxm-141gb&seq-len=2k")
    value = "([name]) => document.querySelector(`[name=${name}]`)?.value"
    for tab, wanted in (
        ("serve", {"model": "qwen3-8b", "gpus": "h200-sxm-141gb"}),
        ("plan", {"model": "qwen3-8b", "on": "4xh200-sxm-141gb", "seq-len": "2k"}),
        ("start", {"model": "qwen3-8b", "gpus": "4xh200-sxm-141gb"}),
    ):
        page.locator(f"[data-page={tab}]").click()
        page.wait_for_selector(f".page-{tab} [name={list(wanted)[-1]}]")
        comes_to(page, lambda names=tuple(wanted): [page.evaluate(value, [name]) for name in names], [*wanted.values()])
    page.locator("[data-page=serve]").click()
    page.locator("[name=model]").fill("qwen3-0.6b")
    page.locator("[data-page=train]").click()
    page.wait_for_selector(".page-train [name=model]")
    comes_to(page, lambda: page.evaluate(value, ["model"]), "qwen3-0.6b")


LLAMA = json.dumps(config_of("llama-3.1-8b")).encode()
SNAPSHOT = (EXAMPLES / "crash.pickle.gz").read_bytes()


DROPS = [
    ("config.json", LLAMA, ".page-train .verdict", "llama-3.1-8b"),
    ("run.log", LOG.encode(), ".page-oom .finding", ""),
    ("snap.pickle.gz", SNAPSHOT, ".page-replay .body", ""),
    ("axolotl.yml", b"base_model: x", ".told-box pre", "vramcast train --from axolotl.yml"),
    ("ds.json", b'{"zero_optimization": {"stage": 3}}', ".told-box pre", "--from ds.json"),
    ("config.json", b'{"model_type": "<img src=x onerror=alert(1)>"}', ".told-box .error", "unknown model type"),
    ("cut.gguf", b"GGUF\x03\0\0\0", ".told-box .error", "cut short"),
]


def test_a_file_dropped_anywhere_goes_where_it_belongs(opened: Opened) -> None:
    page = opened("#/gpus", wait=".data tbody tr")
    for name, content, shown, text in DROPS:
        go(page, "#/gpus")
        page.wait_for_selector(".page-gpus .data tbody tr")
        drop(page, name, content)
        comes_to(page, lambda shown=shown, text=text: page.locator(shown, has_text=text).count() > 0, True)
