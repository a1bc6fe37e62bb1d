"""Logs and recordings on the page: read, explained, drawn; what is too large is refused before it is read."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import vramcast
from vramcast.web.exchange import LARGEST_TEXT
from vramcast.web.service import answered
from vramcast.web.static_site import QUESTIONS

from .conftest import EXAMPLES, LOG, PHONE, Opened, downloaded, go, sizes

BINARY = {"content-type": "application/octet-stream"}
FORM = ".drop"
HOSTILE = '<img src=x onerror="alert(1)">'
FRAGMENTED, CRASH = EXAMPLES / "fragmented.pickle", EXAMPLES / "crash.pickle.gz"


def diagnosed(**body: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answered(
        "POST", "/api/oom", "", {"content-type": "application/json"}, json.dumps(body).encode()).body)
    return found


def replayed(path: Path, query: str = "", route: str = "replay") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answered("POST", f"/api/{route}", query, BINARY, path.read_bytes()).body)
    return found


def given(page: Any, path: Path, wait: str) -> None:
    """A file, and what it comes to."""
    page.set_input_files("input[type=file]", str(path))
    page.wait_for_selector(wait)


def ask(page: Any, text: str, wait: str = ".finding, .error-box") -> None:
    page.locator(".log").fill(text)
    page.locator(".primary").click()
    page.wait_for_selector(wait)


def reports(page: Any, title: str) -> None:
    """Both reports are saved."""
    assert downloaded(page, "Report (HTML)").startswith("<!doctype html>")
    assert downloaded(page, "Report (Markdown)").startswith(f"# {title}")


def wrong_job(page: Any) -> None:
    """What is no job is refused by name."""
    page.locator("details.group textarea").fill("no-such-option = 1")
    page.locator(".primary").click()
    page.wait_for_selector(".error-box")
    assert "no-such-option" in page.locator(".error-box").inner_text()


def refused(page: Any, folder: Path, answer: str) -> None:
    """A file that is none is refused in a sentence, and not shown with the answer of the one before."""
    for name, text in (("broken.pickle", b"\x80\x04nothing of the kind"), ("other.json", b'{"a": 1}')):
        (folder / name).write_bytes(text)
        given(page, folder / name, f".error-box:has-text('{name}')")
        assert page.locator(answer).count() == 0
        assert not page.get_by_role("button", name="Report (HTML)").is_visible()
    given(page, FRAGMENTED, answer)
    assert not page.locator(".error-box").count()


def test_a_log_comes_to_its_cause_evidence_figures_and_fixes_and_is_in_a_link_at_a_wish(opened: Opened) -> None:
    page = opened("#/oom", wait=FORM, permissions=["clipboard-read", "clipboard-write"], accept_downloads=True)
    ask(page, LOG)
    [finding] = diagnosed(text=LOG)["findings"]
    assert page.locator(".cause").inner_text().lower() == finding["text"].lower()
    assert page.locator(".finding .texts li").all_inner_texts() == finding["why"]
    assert page.locator(".setting code").all_inner_texts() == [
        fix["setting"] for fix in finding["fixes"] if "setting" in fix
    ]
    page.locator(".finding summary", has_text="Figures of the message").click()
    figures = page.locator(".finding details table").inner_text()
    for name, text in finding["meaning"].items():
        assert name not in finding["numbers"] or text in figures
    held = page.locator(".card-held").inner_text()
    written = sizes(finding["numbers"]["total_bytes"])
    for name in ("total_bytes", "allocated_bytes", "unallocated_bytes", "free_bytes"):
        assert written(finding["numbers"][name]) in held
    reports(page, "Why memory ran out: a text")
    page.get_by_role("link", name="GPUs", exact=True).click()
    page.wait_for_selector(".page-gpus .data")
    page.get_by_role("link", name="OOM").click()
    page.wait_for_selector(".finding")
    assert page.locator(".log").input_value() == LOG
    assert "OutOfMemory" not in page.url and "text" not in page.url
    page.get_by_role("button", name="Copy a link with this text").click()
    page.wait_for_function("async () => (await navigator.clipboard.readText()).includes('#/oom?text=')")
    link = page.evaluate("navigator.clipboard.readText()")
    other = opened(link[link.index("#"):], wait=".finding")
    assert other.locator(".log").input_value() == LOG


def test_with_the_job_every_fix_is_computed(opened: Opened) -> None:
    page = opened("#/oom", wait=FORM)
    page.locator("details.group summary").click()
    page.locator("details.group textarea").fill((EXAMPLES / "oom-job.toml").read_text(encoding="utf-8"))
    ask(page, LOG, ".gains .badge.good")
    assert page.locator(".gains").first.inner_text().startswith("saves")
    wrong_job(page)
    assert page.locator(".log").input_value() == LOG


def test_a_recording_says_why_it_ran_out_with_its_job_and_is_taken_away_as_a_report(
    opened: Opened, tmp_path: Path
) -> None:
    page = opened("#/oom", wait=FORM, accept_downloads=True)
    given(page, FRAGMENTED, ".finding")
    assert "in pieces" in page.locator(".cause").inner_text()
    assert "expandable_segments:True" in page.locator(".setting").first.inner_text()
    refused(page, tmp_path, ".finding")
    job = {"model": "llama-3.2-1b", "gpus": "rtx-4090", "micro-batch": "8"}
    page.locator("details.group summary").click()
    page.locator("details.group textarea").fill("\n".join(f'{name} = "{value}"' for name, value in job.items()))
    given(page, FRAGMENTED, ".finding .gains")
    known = replayed(FRAGMENTED, urlencode({"name": FRAGMENTED.name, "job": json.dumps(job)}), "oom")
    assert json.loads(downloaded(page, "Answer (JSON)")) == known
    settings = [fix["setting"] for fix in known["findings"][0]["fixes"] if "setting" in fix]
    assert page.locator(".setting code").all_inner_texts() == settings
    reports(page, "Why memory ran out: fragmented.pickle")
    wrong_job(page)


def test_texts_are_read_from_a_file_a_drop_and_the_box(opened: Opened) -> None:
    page = opened("#/oom", wait=FORM)
    given(page, EXAMPLES / "oom.log", ".finding .cause")
    assert page.locator(".log").input_value() == LOG
    ask(page, "all is well\n", ".finding h2:has-text('Nothing in it')")
    transfer = page.evaluate_handle(
        "text => { const given = new DataTransfer(); given.items.add(new File([text], 'run.log')); return given; }", LOG
    )
    page.dispatch_event(".drop", "drop", {"dataTransfer": transfer})
    page.wait_for_selector(".finding .cause")
    ranks = "\n".join(LOG.replace("rank0", f"rank{rank}").replace("123.44", f"12{rank}.44") for rank in range(8))
    count = len(diagnosed(text=ranks)["findings"])
    assert count > 1
    ask(page, ranks, f".finding summary:has-text('{count} failures')")
    assert page.locator(".finding").count() == 1  # failures of many ranks are one finding with a table
    page.locator(".finding summary", has_text=f"{count} failures").click()
    assert page.locator(".finding details").last.locator("tbody tr").count() == count
    ask(page, f"{HOSTILE}\n{LOG.replace('train.py', HOSTILE)}")
    page.wait_for_timeout(200)
    assert page.locator("#main img").count() == 0


def test_a_long_log_is_read_at_its_beginning_and_end_without_standing_in_the_box(
    opened: Opened, tmp_path: Path
) -> None:
    """A browser takes seconds to lay out some MB of text, again with every key."""
    line = "step 1 loss 2.31 tokens/s 12345\n"
    path = tmp_path / "train.log"
    path.write_text(line * (LARGEST_TEXT // len(line) + 1000) + LOG, encoding="utf-8")
    page = opened("#/oom", wait=FORM)
    given(page, path, ".finding .cause")
    assert "its beginning and its end" in page.locator(".notice").inner_text()
    assert page.locator(".log").input_value() == ""
    assert "train.log, 8." in page.locator(".chosen-file").inner_text()
    assert "line 1 from the end" in page.locator(".finding").inner_text()
    page.locator(".primary").click()  # asks about the file again
    page.wait_for_selector(".finding")
    assert page.locator(".error-box").count() == 0
    page.locator(".log").fill(LOG)  # what is typed takes the file's place
    assert page.locator(".chosen-file").inner_text() == ""


def test_a_recording_is_drawn_with_its_peak_what_was_live_and_the_kinds_of_memory(opened: Opened) -> None:
    page = opened("#/replay", wait=FORM)
    given(page, CRASH, ".verdict")
    [device] = replayed(CRASH, "top=40")["devices"]
    peak = device["peak"]
    assert page.locator(".needed b").inner_text() == sizes(peak["reserved_bytes"])(peak["reserved_bytes"])
    live = page.locator(".pair-live").inner_text()
    written = sizes(max(group["bytes"] for group in peak["categories"]))
    for group in peak["categories"]:
        assert written(group["bytes"]) in live
    for row in peak["lines"]:
        assert row["name"] in live
    page.locator("summary", has_text="Largest blocks").click()
    assert page.locator("details[open] tbody tr").count() == len(peak["blocks"])
    assert page.locator("div.failure").count() == device["num_ooms"]

    page.wait_for_selector(".blocks")
    kinds = {name for point in device["timeline"] for name in point["by_category"]}
    assert page.locator(".block-picture ~ .legend .swatch").count() == len(kinds) + 1  # and slack
    assert page.evaluate("document.getElementById('marks') !== null")

    line = page.locator(".blocks")  # looked at closely, by button and by key
    assert int(line.get_attribute("aria-valuemax")) == device["events"] - 1
    page.get_by_role("button", name="Around the peak").click()
    assert f"event {peak['event']:,}" in line.get_attribute("aria-valuetext")
    assert sizes(peak["allocated_bytes"])(peak["allocated_bytes"]) in page.locator(".told").inner_text()
    line.focus()
    page.keyboard.press("Enter")  # what was live then
    for group in peak["categories"]:
        assert f"{group['blocks']:,}" in page.locator(".moment").inner_text()
    page.keyboard.press("ArrowRight")
    assert int(line.get_attribute("aria-valuenow")) == peak["event"] + 1
    assert page.evaluate("document.activeElement.classList.contains('blocks')")
    box = line.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 335 - BELOW)
    page.wait_for_selector(".block-tip:not([hidden])")
    assert "weights" in page.locator(".block-tip").inner_text()  # they lie at the bottom


DRAWN = """() => { // the texts of a frame, and whether they have the colour that text of the page has now
  const texts = new Map();
  const write = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
    texts.set(`${text} at ${rest[1]}`, this.fillStyle);
    write.call(this, text, ...rest);
  };
  const begin = CanvasRenderingContext2D.prototype.createImageData;
  CanvasRenderingContext2D.prototype.createImageData = function (...size) {
    texts.clear();
    return begin.call(this, ...size);
  };
  window.written = () => [...texts.keys()].map((text) => text.split(" at ")[0]);
  window.inked = (seen) => {
    const pen = document.createElement("canvas").getContext("2d");
    pen.fillStyle = getComputedStyle(document.body).color;
    return pen.fillStyle !== seen && [...texts].some(([text, ink]) => text.startsWith("peak") && ink === pen.fillStyle)
      && pen.fillStyle;
  };
}"""


def test_the_example_is_a_reckoned_step_and_is_kept_as_any_recording(opened: Opened, tmp_path: Path) -> None:
    """What the page shows is what it says of the same file when somebody brings it."""
    page = opened("#/replay/example", wait="canvas", accept_downloads=True)
    questions = json.loads((Path(vramcast.__file__).parent / QUESTIONS).read_text())
    mode, given_ = questions["step"]["mode"], questions["step"]["given"]
    body = {"question": questions["modes"][mode]["options"] | given_, "format": "pickle"}
    recording = answered("POST", "/api/step", "", {"content-type": "application/json"}, json.dumps(body).encode())
    (tmp_path / "step.pickle").write_bytes(recording.body)
    [device] = replayed(tmp_path / "step.pickle")["devices"]
    shown = json.loads(downloaded(page, "Answer (JSON)"))["devices"][0]["peak"]
    assert shown["reserved_bytes"] == device["peak"]["reserved_bytes"]
    assert given_["model"] in page.locator(".chosen-file").inner_text()


def test_the_picture_has_the_colours_of_the_page_whenever_they_change(opened: Opened) -> None:
    page = opened("#/replay", wait=FORM)
    given(page, CRASH, ".blocks")
    page.evaluate(DRAWN)
    page.get_by_role("button", name="Whole", exact=True).click()
    ink = page.evaluate("inked()")
    for change in (lambda: page.emulate_media(color_scheme="dark"),
                   lambda: page.get_by_label("Colours").select_option("light"),
                   lambda: page.get_by_label("Colours").select_option("dark")):
        change()
        ink = page.wait_for_function("(seen) => inked(seen)", arg=ink).json_value()


def test_what_is_pointed_at_is_told_while_the_wheel_turns_and_heights_are_told_apart(opened: Opened) -> None:
    page = opened("#/replay", wait=FORM)
    given(page, CRASH, ".blocks")
    page.evaluate(DRAWN)
    line, tip = page.locator(".blocks"), page.locator(".block-tip")
    line.scroll_into_view_if_needed()
    box = line.bounding_box()
    place = (round(box["x"] + box["width"] / 2), round(box["y"] + 250))
    page.mouse.move(*place)
    for held, turned in ((None, -6000), ("Shift", -5000)):
        if held:
            page.keyboard.down(held)
        page.mouse.wheel(0, turned)
        page.wait_for_timeout(200)
        if held:
            page.keyboard.up(held)
        shown = line.get_attribute("aria-valuenow"), tip.inner_text()
        page.mouse.move(place[0] + 1, place[1])
        page.mouse.move(*place)
        assert (line.get_attribute("aria-valuenow"), tip.inner_text()) == shown
    heights = [text for text in page.evaluate("written()") if text.endswith("iB")]
    assert len(set(heights)) == len(heights) > 1
    line.focus()
    page.evaluate("""() => { window.kept = []; document.addEventListener("keydown", (event) => {
      if (event.defaultPrevented) kept.push(event.key); }); }""")
    for key in ("Control+-", "Alt+ArrowLeft", "ArrowLeft"):
        line.dispatch_event("keydown", {"key": key.split("+")[-1], "ctrlKey": key.startswith("Control"),
                                        "altKey": key.startswith("Alt"), "bubbles": True, "cancelable": True})
    assert page.evaluate("kept") == ["ArrowLeft"]


def test_two_fingers_show_less_of_the_run_and_one_that_scrolls_leaves_it(opened: Opened) -> None:
    page = opened("#/replay", wait=FORM, viewport=PHONE, has_touch=True)
    given(page, CRASH, ".blocks")
    page.evaluate(DRAWN)
    line = page.locator(".blocks")
    line.evaluate("one => one.scrollIntoView({ block: 'center' })")
    box = line.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + 200
    session = page.context.new_cdp_session(page)

    def touched(kind: str, *places: tuple[float, float]) -> None:
        points = [{"x": at, "y": height, "id": number} for number, (at, height) in enumerate(places)]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    shown = "() => written().filter((text) => /^[0-9,]+$/.test(text)).map((text) => Number(text.replaceAll(',', '')))"
    touched("touchStart", (x - 20, y), (x + 20, y))
    for step in range(1, 9):
        touched("touchMove", (x - 20 - 10 * step, y), (x + 20 + 10 * step, y))
    touched("touchEnd")
    page.wait_for_function(f"() => {{ const seen = ({shown})(); return seen.length && seen.at(-1) - seen[0] < 3000; }}")
    assert min(page.evaluate(shown)) > 2000  # what lay between the fingers stays there
    touched("touchStart", (x, y))
    for step in range(1, 12):
        touched("touchMove", (x, y - 12 * step))
    touched("touchEnd")
    page.wait_for_timeout(300)
    before = page.evaluate(shown)
    page.mouse.move(x, y)
    page.mouse.move(x + 60, y)
    page.wait_for_timeout(100)
    assert page.evaluate(shown) == before


def test_a_profile_without_addresses_is_drawn_by_its_totals(opened: Opened, tmp_path: Path) -> None:
    events = [{"ph": "i", "name": "[memory]", "ts": 1000 + place, "pid": 1, "tid": 1, "args": {
        "Bytes": size, "Device Id": 0, "Device Type": 1, "Total Allocated": total, "Total Reserved": 1 << 24}}
        for place, (size, total) in enumerate([(1 << 20, 1 << 20), (1 << 21, 3 << 20), (-1 << 20, 2 << 20)])]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    page = opened("#/replay", wait=FORM)
    given(page, tmp_path / "trace.json", ".blocks")
    assert "3.0 MiB allocated" in page.locator(".told").inner_text()
    assert page.locator(".block-picture ~ .legend").inner_text().split() == ["unknown", "reserved"]
    page.locator(".blocks").focus()
    page.keyboard.press("Enter")
    assert "3.0 MiB" in page.locator(".moment").inner_text()
    assert "not listed" in page.locator(".moment").inner_text()
    page.locator(".whole summary").click()
    whole = page.frame_locator("iframe")
    assert whole.locator(".figure").last.inner_text().split("\n")[0] == "-"  # no address was compared
    assert whole.locator(".blocks").count() == 1


BELOW = 12  # pixels above the axis of the picture
STACKED = """async (data) => {
  const { Blocks } = await import("/parts/blocks.js");
  const blocks = new Blocks(data);
  const wrong = [];
  for (const [first, last] of [[0, blocks.events], [100, 900], [blocks.events - 9, blocks.events]]) {
    const moments = blocks.moments([first, last], 97);
    const sums = new Float64Array(97);
    blocks.stacked(moments, 1e-6, {
      large: (block, from, to) => { for (let at = from; at < to; at += 1) sums[at] += blocks.sizes[block]; },
      small: (kind, sizes) => sums.forEach((_, at) => { sums[at] += sizes[at]; }),
    });
    moments.forEach((event, at) => {
      const live = blocks.at(event).kinds.reduce((sum, { size }) => sum + size, 0);
      if (live !== sums[at] || live > blocks.allocatedAt(event)) wrong.push([event, live, sums[at]]);
    });
  }
  return { wrong, peak: blocks.at(blocks.peak).kinds };
}"""


def test_each_column_of_the_picture_holds_what_was_live_at_its_moment(opened: Opened) -> None:
    page = opened("#/replay", wait=FORM)
    for path in (CRASH, FRAGMENTED):
        [device] = replayed(path, "top=40&blocks=1")["devices"]
        found = page.evaluate(STACKED, device["blocks"])
        assert found["wrong"] == []
        assert {one["name"]: one["number"] for one in found["peak"]} == {
            group["name"]: group["blocks"] for group in device["peak"]["categories"]}


def test_settings_and_leaks_are_looked_for_at_a_wish_and_stand_in_the_address(opened: Opened) -> None:
    page = opened("#/replay?leaks=1&all-confs=1", wait=FORM)
    given(page, CRASH, ".verdict")
    [device] = replayed(CRASH, "leaks=1&all-confs=1")["devices"]
    text = page.locator(".body").inner_text()
    for variant in device["variants"][1:]:
        assert variant["conf"] in text
    assert "probe.py:12 keep" in text
    assert f"{device['advice']['conf']} avoids the failure" in page.locator(".verdict").inner_text()
    assert page.locator("[name=leaks]").is_checked()


def test_the_whole_report_stands_in_a_frame_that_is_shut_in(opened: Opened, tmp_path: Path) -> None:
    page = opened("#/replay", wait=FORM, accept_downloads=True)
    given(page, FRAGMENTED, ".verdict")
    page.locator(".whole summary").click()
    assert page.locator("iframe").get_attribute("sandbox") == "allow-scripts"
    assert page.frame_locator("iframe").locator("h1").inner_text() == "Replay of fragmented.pickle"
    reports(page, "Memory recording: fragmented.pickle")
    refused(page, tmp_path, ".verdict")


def test_a_file_of_two_gigabytes_is_refused_kindly_and_never_read(opened: Opened, tmp_path: Path) -> None:
    path = tmp_path / "my run.pickle"
    with path.open("wb") as file:  # which takes no room on the disk
        file.write(b"\x80\x04")
        file.truncate(2 << 30)
    page = opened("#/oom", wait=FORM)
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    for command in ("oom", "replay"):
        go(page, f"#/{command}")
        page.wait_for_selector(f".page-{command} {FORM}")
        sent.clear()  # but what the page itself is made of
        given(page, path, f".page-{command} .error-box")
        said = page.locator(".error-box").inner_text()
        assert "my run.pickle has 2.0 GiB; files up to 128 MiB are read here" in said
        assert page.locator(".error-box pre").inner_text() == f"vramcast {command} 'my run.pickle'"
        assert not sent


def test_a_chosen_recording_is_asked_about_again_with_other_marks(opened: Opened) -> None:
    page = opened("#/oom", wait=FORM)
    given(page, CRASH, ".finding")
    page.get_by_label("Check the stability of training too").check()
    page.locator(".primary").click()
    page.wait_for_selector("h2:text('Checks')")
    assert "crash.pickle.gz" in page.locator(".chosen-file").inner_text()


def test_the_answers_of_a_chinese_page_are_saved_as_the_command_line_prints_them(opened: Opened) -> None:
    page = opened("#/oom", wait=FORM, locale="zh-CN", accept_downloads=True)
    ask(page, LOG, ".finding")
    assert page.locator(".cause").inner_text() == diagnosed(text=LOG, lang="zh")["findings"][0]["text"]
    assert json.loads(downloaded(page, "答案（JSON）")) == diagnosed(text=LOG, checks=False)
    page.evaluate("() => { location.hash = '#/replay'; }")
    page.wait_for_selector(".page-replay .drop")
    given(page, CRASH, ".verdict")
    assert json.loads(downloaded(page, "答案（JSON）")) == replayed(CRASH, "top=40&name=crash.pickle.gz")
