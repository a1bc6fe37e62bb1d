"""Logs and recordings on the page: read, explained, drawn; what is too large is refused before it is read."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from vramcast.units import format_bytes
from vramcast.web.limits import LARGEST_SNAPSHOT, LARGEST_TEXT
from vramcast.web.service import answered

from .conftest import REPOSITORY, Opened
from .test_answers import downloaded

EXAMPLES = REPOSITORY / "docs" / "examples"
LOG = (EXAMPLES / "oom.log").read_text(encoding="utf-8")
BINARY = {"content-type": "application/octet-stream"}
FORM = ".drop"
HOSTILE = '<img src=x onerror="alert(1)">'


def diagnosed(**body: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answered(
        "POST", "/api/oom", "", {"content-type": "application/json"}, json.dumps(body).encode()).body)
    return found


def replayed(name: str, query: str = "") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        answered("POST", "/api/replay", query, BINARY, (EXAMPLES / name).read_bytes()).body)
    return found


def asked(opened: Opened, text: str, **settings: Any) -> Any:
    page = opened("#/oom", wait=FORM, **settings)
    page.locator(".log").fill(text)
    page.locator(".primary").click()
    page.wait_for_selector(".finding, .error-box")
    return page


def shown(opened: Opened, name: str, view: str = "#/replay", **settings: Any) -> Any:
    page = opened(view, wait=FORM, **settings)
    page.set_input_files("input[type=file]", str(EXAMPLES / name))
    page.wait_for_selector(".verdict, .error-box")
    return page


def sparse(folder: Path, name: str, size: int) -> str:
    """A file of that size which takes no room on the disk."""
    path = folder / name
    with path.open("wb") as file:
        file.write(b"\x80\x04")
        file.truncate(size)
    return str(path)


def test_a_log_comes_to_its_cause_evidence_figures_and_fixes(opened: Opened) -> None:
    page = asked(opened, LOG)
    [finding] = diagnosed(text=LOG)["findings"]
    assert page.locator(".cause h2").inner_text().lower() == finding["text"].lower()
    assert page.locator(".finding .texts li").all_inner_texts() == finding["why"]
    assert page.locator(".setting code").all_inner_texts() == [
        fix["setting"] for fix in finding["fixes"] if "setting" in fix
    ]
    page.locator(".finding summary", has_text="Figures of the message").click()
    figures = page.locator(".finding details table").inner_text()
    for name, text in finding["meaning"].items():
        if name in finding["numbers"]:
            assert text in figures
    held = page.locator(".card-held").inner_text()
    total = finding["numbers"]["total_bytes"]
    parts = ("allocated_bytes", "unallocated_bytes", "free_bytes")
    for size in (total, *(finding["numbers"][name] for name in parts)):
        assert format_bytes(size) in held
    assert "text" not in page.url


def test_with_the_job_every_fix_is_computed(opened: Opened) -> None:
    page = opened("#/oom", wait=FORM)
    page.locator(".log").fill(LOG)
    page.locator("details.group summary").click()
    job = (EXAMPLES / "oom-job.toml").read_text(encoding="utf-8")
    page.locator("details.group textarea").fill(job)
    page.locator(".primary").click()
    page.wait_for_selector(".gains .badge.good")
    assert page.locator(".gains").first.inner_text().startswith("saves")
    page.locator("details.group textarea").fill("no-such-option = 1")
    page.locator(".primary").click()
    page.wait_for_selector(".error-box")
    assert "no-such-option" in page.locator(".error-box").inner_text()
    assert page.locator(".log").input_value() == LOG


def test_a_recording_says_why_it_ran_out(opened: Opened) -> None:
    page = opened("#/oom", wait=FORM)
    page.set_input_files("input[type=file]", str(EXAMPLES / "fragmented.pickle"))
    page.wait_for_selector(".finding")
    assert "in pieces" in page.locator(".cause").inner_text()
    assert "expandable_segments:True" in page.locator(".setting").first.inner_text()


def test_a_log_file_is_shown_and_read_and_a_text_without_failure_says_so(opened: Opened, tmp_path: Path) -> None:
    page = opened("#/oom", wait=FORM)
    page.set_input_files("input[type=file]", str(EXAMPLES / "oom.log"))
    page.wait_for_selector(".finding .cause")
    assert page.locator(".log").input_value() == LOG
    page.locator(".log").fill("all is well\n")
    page.locator(".primary").click()
    page.wait_for_function("() => document.querySelector('.finding h2').textContent.startsWith('Nothing in it')")


def test_a_long_log_is_read_at_its_beginning_and_end(opened: Opened, tmp_path: Path) -> None:
    path = tmp_path / "long.log"
    path.write_text("step 1 loss 2.0\n" * (LARGEST_TEXT // 12) + LOG, encoding="utf-8")
    assert path.stat().st_size > LARGEST_TEXT
    page = opened("#/oom", wait=FORM)
    page.set_input_files("input[type=file]", str(path))
    page.wait_for_selector(".finding .cause")
    assert "its beginning and its end" in page.locator(".notice").inner_text()


def test_markup_in_a_log_stays_text(opened: Opened) -> None:
    page = asked(opened, f"{HOSTILE}\n{LOG.replace('train.py', HOSTILE)}")
    assert page.locator("#main img").count() == 0


def test_failures_of_many_ranks_are_one_finding_with_a_table(opened: Opened) -> None:
    ranks = "\n".join(LOG.replace("rank0", f"rank{rank}").replace("123.44", f"12{rank}.44") for rank in range(8))
    page = asked(opened, ranks)
    count = len(diagnosed(text=ranks)["findings"])
    assert count > 1
    assert page.locator(".finding").count() == 1
    page.locator(".finding summary", has_text=f"{count} failures").click()
    assert page.locator(".finding details").last.locator("tbody tr").count() == count


def test_a_text_is_in_a_link_only_at_a_wish(opened: Opened) -> None:
    page = asked(opened, LOG, permissions=["clipboard-read", "clipboard-write"])
    assert "OutOfMemory" not in page.url
    page.get_by_role("button", name="Copy a link with this text").click()
    page.wait_for_function("async () => (await navigator.clipboard.readText()).includes('#/oom?text=')")
    link = page.evaluate("navigator.clipboard.readText()")
    other = opened(link[link.index("#"):], wait=".finding")
    assert other.locator(".log").input_value() == LOG


def test_a_text_is_kept_while_another_page_or_language_is_looked_at(opened: Opened) -> None:
    page = asked(opened, LOG)
    page.get_by_role("link", name="GPUs", exact=True).click()
    page.wait_for_selector(".page-gpus .data")
    page.get_by_role("link", name="OOM").click()
    page.wait_for_selector(".finding")
    assert page.locator(".log").input_value() == LOG


def test_a_recording_is_drawn_with_its_peak_and_what_was_live(opened: Opened) -> None:
    page = shown(opened, "crash.pickle.gz")
    [device] = replayed("crash.pickle.gz", "top=40")["devices"]
    assert page.locator(".needed b").inner_text() == format_bytes(device["peak"]["reserved_bytes"])
    live = page.locator(".pair-live").inner_text()
    for group in device["peak"]["categories"]:
        assert format_bytes(group["bytes"]) in live
    for line in device["peak"]["lines"]:
        assert line["name"] in live
    page.locator("summary", has_text="Largest blocks").click()
    blocks = page.locator("details[open] tbody tr")
    assert blocks.count() == len(device["peak"]["blocks"])
    assert page.locator("div.failure").count() == device["num_ooms"]


def test_the_timeline_is_looked_at_closely_by_button_and_by_key(opened: Opened) -> None:
    page = shown(opened, "crash.pickle.gz")
    [device] = replayed("crash.pickle.gz")["devices"]
    line = page.locator(".timeline")
    whole = int(line.get_attribute("aria-valuemax"))
    page.get_by_role("button", name="Around the peak").click()
    assert int(line.get_attribute("aria-valuemax")) < whole
    peak = device["peak"]
    assert f"event {peak['event']:,}" in line.get_attribute("aria-valuetext")
    assert format_bytes(peak["allocated_bytes"]) in page.locator(".told").inner_text()
    line.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function(
        "event => !document.querySelector('.timeline').getAttribute('aria-valuetext').includes(event)",
        arg=f"event {peak['event']:,}:",
    )
    assert page.evaluate("document.activeElement.classList.contains('timeline')")
    page.get_by_role("button", name="Whole").click()
    assert int(line.get_attribute("aria-valuemax")) == whole


def test_the_timeline_stacks_the_kinds_of_memory_as_the_report_does(opened: Opened) -> None:
    page = shown(opened, "crash.pickle.gz")
    [device] = replayed("crash.pickle.gz", "top=40")["devices"]
    kinds = {name for point in device["timeline"] for name in point["by_category"]}
    page.wait_for_selector("svg.timeline .cat")
    drawn = page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll('svg.timeline .cat')].map((path) =>
          [path.getAttribute('class').split('cat-')[1], path.getBBox().height]))"""
    )
    assert set(drawn) == {name.replace(" ", "-") for name in kinds} | {"slack"}
    peak = max(device["timeline"], key=lambda point: point["allocated_bytes"])
    assert sum(peak["by_category"].values()) <= peak["allocated_bytes"]
    lowest = device["peak"]["categories"][0]["name"]
    share = max(point["by_category"].get(lowest, 0) for point in device["timeline"]) / peak["allocated_bytes"]
    assert drawn[lowest] / drawn["slack"] == pytest.approx(share, abs=0.01)
    assert page.evaluate("document.getElementById('marks') !== null")
    assert page.locator(".chart ~ .legend .swatch").count() == len(drawn)


def test_labels_of_the_peak_and_of_failures_do_not_cover_each_other_on_a_phone(opened: Opened) -> None:
    page = shown(opened, "crash.pickle.gz", viewport={"width": 390, "height": 844})
    page.wait_for_selector(".timeline .mark text")
    boxes = page.locator(".timeline .mark text").evaluate_all(
        "(texts) => texts.map((text) => { const { x, y, width, height } = text.getBBox();"
        " return [x, y, x + width, y + height]; })")
    assert len(boxes) > 1
    for (left, top, right, bottom), (other, above, end, below) in combinations(boxes, 2):
        assert right < other or end < left or bottom <= above or below <= top


def test_settings_and_leaks_are_looked_for_at_a_wish_and_stand_in_the_address(opened: Opened) -> None:
    page = shown(opened, "crash.pickle.gz", "#/replay?leaks=1&all-confs=1")
    [device] = replayed("crash.pickle.gz", "leaks=1&all-confs=1")["devices"]
    text = page.locator(".body").inner_text()
    for variant in device["variants"][1:]:
        assert variant["conf"] in text
    assert "probe.py:12 keep" in text
    assert f"{device['advice']['conf']} avoids the failure" in page.locator(".verdict").inner_text()
    assert page.locator("[name=leaks]").is_checked()


def test_the_whole_report_stands_in_a_frame_that_is_shut_in(opened: Opened) -> None:
    page = shown(opened, "fragmented.pickle")
    page.locator(".whole summary").click()
    frame = page.locator("iframe")
    assert frame.get_attribute("sandbox") == "allow-scripts"
    inside = page.frame_locator("iframe").locator("h1")
    assert inside.inner_text() == "Replay of fragmented.pickle"
    assert downloaded(page, "Report (HTML)").startswith("<!doctype html>")


@pytest.mark.parametrize(("view", "command"), [("#/replay", "replay"), ("#/oom", "oom")])
def test_a_file_of_two_gigabytes_is_refused_kindly_and_never_read(
    opened: Opened, tmp_path: Path, view: str, command: str
) -> None:
    page = opened(view, wait=FORM)
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    page.set_input_files("input[type=file]", sparse(tmp_path, "my run.pickle", 2 << 30))
    page.wait_for_selector(".error-box")
    said = page.locator(".error-box").inner_text()
    assert "my run.pickle has 2.0 GiB; files up to 128 MiB are read here" in said
    assert page.locator(".error-box pre").inner_text() == f"vramcast {command} 'my run.pickle'"
    assert not sent


def test_what_is_no_recording_is_refused_in_a_sentence(opened: Opened, tmp_path: Path) -> None:
    path = tmp_path / "broken.pickle"
    path.write_bytes(b"\x80\x04nothing of the kind")
    page = opened("#/replay", wait=FORM)
    page.set_input_files("input[type=file]", str(path))
    page.wait_for_selector(".error-box")
    assert "broken.pickle" in page.locator(".error-box").inner_text()
    page.set_input_files("input[type=file]", str(EXAMPLES / "fragmented.pickle"))
    page.wait_for_selector(".verdict")
    assert not page.locator(".error-box").count()


@pytest.mark.parametrize(("view", "answer"), [("#/replay", ".verdict"), ("#/oom", ".finding")])
def test_a_refused_file_is_not_shown_with_the_answer_of_the_one_before(
    opened: Opened, tmp_path: Path, view: str, answer: str
) -> None:
    page = opened(view, wait=FORM)
    page.set_input_files("input[type=file]", str(EXAMPLES / "fragmented.pickle"))
    page.wait_for_selector(answer)
    path = tmp_path / "other.json"
    path.write_text('{"a": 1}')
    page.set_input_files("input[type=file]", str(path))
    page.wait_for_selector(".error-box")
    assert page.locator(answer).count() == 0
    assert not page.get_by_role("button", name="Report (HTML)").is_visible()


def test_a_file_is_dropped(opened: Opened) -> None:
    page = opened("#/oom", wait=FORM)
    transfer = page.evaluate_handle(
        "text => { const given = new DataTransfer(); given.items.add(new File([text], 'run.log')); return given; }", LOG
    )
    page.dispatch_event(".drop", "drop", {"dataTransfer": transfer})
    page.wait_for_selector(".finding .cause")


def test_the_page_knows_the_limits_of_the_service(opened: Opened) -> None:
    page = opened("#/gpus", wait=".data")
    known = page.evaluate(
        "async () => { const { LARGEST_RECORDING, LARGEST_TEXT } = await import('/uploads.js');"
        " return [LARGEST_RECORDING, LARGEST_TEXT]; }"
    )
    assert known == [LARGEST_SNAPSHOT, LARGEST_TEXT]


def test_a_long_log_is_asked_about_without_standing_in_the_box(opened: Opened, tmp_path: Path) -> None:
    """A browser takes seconds to lay out some MB of text, again with every key."""
    page = opened("#/oom", wait=FORM)
    line = "step 1 loss 2.31 tokens/s 12345\n"
    path = tmp_path / "train.log"
    path.write_text(line * (LARGEST_TEXT // len(line) + 1000) + LOG, encoding="utf-8")
    page.set_input_files("input[type=file]", str(path))
    page.wait_for_selector(".finding")
    assert page.locator(".log").input_value() == ""
    assert "train.log, 8." in page.locator(".chosen-file").inner_text()
    assert "line 1 from the end" in page.locator(".finding").inner_text()
    page.locator(".primary").click()  # asks about the file again
    page.wait_for_selector(".finding")
    assert page.locator(".error-box").count() == 0
    page.locator(".log").fill(LOG)  # what is typed takes the file's place
    assert page.locator(".chosen-file").inner_text() == ""


def test_a_chosen_recording_is_asked_about_again_with_other_marks(opened: Opened) -> None:
    page = opened("#/oom", wait=FORM)
    page.set_input_files("input[type=file]", str(EXAMPLES / "crash.pickle.gz"))
    page.wait_for_selector(".finding")
    page.get_by_label("Check the stability of training too").check()
    page.locator(".primary").click()
    page.wait_for_selector("h2:text('Checks')")
    assert "crash.pickle.gz" in page.locator(".chosen-file").inner_text()


def test_a_diagnosis_of_a_text_is_taken_away_as_a_report(opened: Opened) -> None:
    page = asked(opened, LOG, accept_downloads=True)
    for name, begins in (("Report (HTML)", "<!doctype html>"), ("Report (Markdown)", "# Why memory ran out: a text")):
        assert downloaded(page, name).lower().startswith(begins.lower())


def test_a_recording_is_diagnosed_with_its_job_and_taken_away_as_a_report(opened: Opened) -> None:
    job = {"model": "llama-3.2-1b", "gpus": "rtx-4090", "micro-batch": "8"}
    page = opened("#/oom", wait=FORM, accept_downloads=True)
    page.locator("details.group summary").click()
    page.locator("details.group textarea").fill("\n".join(f'{name} = "{value}"' for name, value in job.items()))
    page.set_input_files("input[type=file]", str(EXAMPLES / "fragmented.pickle"))
    page.wait_for_selector(".finding .gains")
    query = urlencode({"name": "fragmented.pickle", "job": json.dumps(job)})
    known = json.loads(
        answered("POST", "/api/oom", query, BINARY, (EXAMPLES / "fragmented.pickle").read_bytes()).body)
    assert json.loads(downloaded(page, "Answer (JSON)")) == known
    settings = [fix["setting"] for fix in known["findings"][0]["fixes"] if "setting" in fix]
    assert page.locator(".setting code").all_inner_texts() == settings
    assert downloaded(page, "Report (HTML)").startswith("<!doctype html>")
    assert downloaded(page, "Report (Markdown)").startswith("# Why memory ran out: fragmented.pickle")
    page.locator("details.group textarea").fill("no-such-option = 1")
    page.locator(".primary").click()
    page.wait_for_selector(".error-box")
    assert "no-such-option" in page.locator(".error-box").inner_text()


def test_a_replay_is_a_report_in_both_formats(opened: Opened) -> None:
    page = shown(opened, "fragmented.pickle", accept_downloads=True)
    assert downloaded(page, "Report (HTML)").startswith("<!doctype html>")
    assert downloaded(page, "Report (Markdown)").startswith("# Memory recording: fragmented.pickle")


def test_the_answers_of_a_chinese_page_are_saved_as_the_command_line_prints_them(opened: Opened) -> None:
    page = opened("#/oom", wait=FORM, locale="zh-CN", accept_downloads=True)
    page.locator(".log").fill(LOG)
    page.locator(".primary").click()
    page.wait_for_selector(".finding")
    assert page.locator(".cause h2").inner_text() == diagnosed(text=LOG, lang="zh")["findings"][0]["text"]
    assert json.loads(downloaded(page, "答案（JSON）")) == diagnosed(text=LOG, checks=False)
    page = shown(opened, "crash.pickle.gz", locale="zh-CN", accept_downloads=True)
    saved = json.loads(downloaded(page, "答案（JSON）"))
    assert saved == replayed("crash.pickle.gz", "top=40&name=crash.pickle.gz")
