/** A recording of memory, played again: the timeline, its peak, and what was live there. */

import { ask } from "../backend.js";
import { h, refill, uniqueId } from "../dom.js";
import { bytes } from "../format.js";
import { handed } from "../handed.js";
import { questionOf, questionText } from "../hash.js";
import { dropPlace } from "../parts/drop.js";
import { button } from "../parts/part.js";
import { recordingParts } from "../parts/recording.js";
import { defineMarks } from "../parts/scale.js";
import { saved, savedJson } from "../parts/take.js";
import { refusal, UnderWay } from "../parts/working.js";
import questions from "../questions.json" with { type: "json" };
import { LARGEST_RECORDING, argument } from "../uploads.js";

const TEXTS = ["alloc-conf", "capacity"]; // options that are typed
const MARKS = ["leaks", "all-confs"]; // options that are on or off
let kept = { file: null, answer: null, options: {}, device: null }; // of the last visit; the file stays with the browser

class Replay {
  #app;
  #at;
  #controls = {};
  #under;
  #frame = ""; // address of the page in the frame

  constructor(root, app) {
    this.#app = app;
    this.#lay(root);
    if (kept.answer) this.#show(kept.answer);
  }

  #lay(root) {
    const { t } = this.#app;
    const places = ["notice", "take", "body", "whole"].map((name) => [name, h("div", { class: name })]);
    this.#at = Object.fromEntries(places);
    this.#under = new UnderWay(this.#at.notice, t);
    this.#at.take.hidden = true;
    const name = h("p", { class: "soft chosen-file" });
    this.#at.name = name;
    const form = h("form", { class: "question replay-form", "aria-label": t("title.replay"), onsubmit: (event) => {
      event.preventDefault();
      this.#again();
    } },
    dropPlace({ title: t("replay.choose"), hint: t("replay.drop", { most: bytes(LARGEST_RECORDING, 0) }),
      taken: (file) => this.#taken(file) }),
    name, h("div", { class: "replay-options" }, TEXTS.map((option) => this.#typed(option)),
      h("div", { class: "checks" }, MARKS.map((option) => this.#marked(option))),
      h("button", { type: "submit" }, t("replay.again")),
      button(t("example.use"), () => this.#example(), { class: "link" })));
    const { notice, take, body, whole } = this.#at;
    root.append(h("div", { class: "titled" }, h("h1", {}, t("title.replay"))), form,
      h("div", { class: "answered" }, notice, take, body, whole));
    if (!kept.answer) refill(body, h("p", { class: "soft" }, t("replay.first")));
  }

  #typed(option) {
    const id = uniqueId("option");
    const input = h("input", { id, name: option, type: "text", autocomplete: "off", spellcheck: "false",
      placeholder: this.#app.t(`replay.${option}.example`), onchange: () => this.#set(option, input.value.trim()) });
    this.#controls[option] = (value) => { input.value = value ?? ""; };
    return h("div", { class: "field" }, h("label", { for: id }, this.#app.t(`replay.${option}`)), input);
  }

  #marked(option) {
    const id = uniqueId("option");
    const input = h("input", { id, name: option, type: "checkbox",
      onchange: () => this.#set(option, input.checked ? "1" : "") });
    this.#controls[option] = (value) => { input.checked = Boolean(value); };
    return h("label", { class: "check", for: id }, input, this.#app.t(`replay.${option}`));
  }

  /** Options are in the address; the file is not. */
  #set(option, value) {
    kept.options = { ...kept.options, [option]: value };
    const query = questionText(kept.options);
    this.#app.go({ page: "replay", queries: query ? [query] : [] }, { replace: true });
  }

  /** A reckoned training step, in the form in which torch records one. */
  async #example() {
    const { mode, given } = questions.step;
    const body = { question: { ...questions.modes[mode].options, ...given }, format: "pickle" };
    const request = (signal) => ask("/api/step", body, { signal, as: "blob" });
    const { answer, error } = await this.#under.asked(request, "replaying", { comesIntoView: false }) ?? {};
    if (error) this.#refuse(error.message);
    if (answer) this.#taken(new File([answer], `${mode}-${given.model}.pickle`));
  }

  #taken(file) {
    kept = { ...kept, file, device: null };
    this.#clear();
    this.#again();
  }

  #query(more = {}) {
    const given = [...TEXTS, ...MARKS].map((option) => [option, kept.options[option]]).filter(([, value]) => value);
    return new URLSearchParams({ ...Object.fromEntries(given), name: kept.file.name, ...more });
  }

  /** What is shown is of another file, and would stand below this one's name. */
  #clear() {
    kept = { ...kept, answer: null };
    refill(this.#at.body);
    refill(this.#at.whole);
    this.#at.take.hidden = true;
  }

  /** Reads the file; its size is looked at before anything of it is read. */
  #again() {
    const { t } = this.#app;
    const { file } = kept;
    if (!file) return this.#refuse(t("replay.first"));
    this.#at.name.textContent = t("replay.file", { name: file.name, size: bytes(file.size, 1) });
    if (file.size <= LARGEST_RECORDING) return this.#asked();
    this.#under.stop();
    this.#clear();
    const sizes = { name: file.name, size: bytes(file.size, 1), most: bytes(LARGEST_RECORDING, 0) };
    return this.#refuse(t("upload.large", sizes), `vramcast replay ${argument(file.name)}`);
  }

  async #asked() {
    const { t, say } = this.#app;
    const request = (signal) => ask(`/api/replay?${this.#query({ top: 40, blocks: 1 })}`, kept.file, { signal });
    const { answer, error } = await this.#under.asked(request, "replaying", { comesIntoView: false }) ?? {};
    if (error) this.#refuse(error.message, error.status === 504 || error.status === 413
      ? `vramcast replay ${argument(kept.file.name)}` : null);
    if (!answer) return;
    this.#show(answer);
    const device = answer.devices[kept.device];
    say(device ? t("replay.said", { size: bytes(device.peak.reserved_bytes ?? device.peak.allocated_bytes),
      count: device.num_ooms })
      : t("replay.empty"));
  }

  #refuse(message, command = null) {
    refill(this.#at.notice, refusal(message, command, this.#app.t("upload.elsewhere")));
  }

  #show(answer) {
    const { t } = this.#app;
    const { devices, warnings, main_device: main } = answer;
    kept = { ...kept, answer, device: kept.device ?? Math.max(0, devices.findIndex(({ device }) => device === main)) };
    const tab = ({ device }, index) => button(t("replay.device", { device }),
      () => { kept.device = index; this.#show(answer); },
      { "aria-pressed": String(index === kept.device), "data-key": `device ${index}` });
    const shown = devices[kept.device] ?? devices[0];
    this.#at.take.hidden = false;
    refill(this.#at.take, this.#buttons(answer));
    refill(this.#at.body,
      devices.length > 1 ? h("div", { class: "kinds", role: "group", "aria-label": t("replay.devices") },
        devices.map(tab)) : null,
      shown ? recordingParts(shown, warnings, this.#app) : h("p", {}, t("replay.empty")));
    this.#framed();
  }

  #buttons(answer) {
    const { t } = this.#app;
    const tried = (act) => () => act().catch((error) => this.#refuse(error.message));
    const report = (format) => tried(async () => saved(`vramcast-replay.${format}`, await this.#report(format)));
    return h("div", { class: "buttons" },
      button(t("download.json"), tried(() => savedJson("replay", answer))),
      button(t("download.html"), report("html")), button(t("download.md"), report("md")));
  }

  #report(format) {
    return ask(`/api/replay?${this.#query({ format })}`, kept.file, { as: "blob" });
  }

  /** The report of the command line, in a frame that may do nothing but show itself; made when it is opened. */
  #framed() {
    const { t } = this.#app;
    const place = h("div");
    const details = h("details", { class: "part folded", ontoggle: async () => {
      if (!details.open || place.childElementCount) return;
      refill(place, h("p", { class: "soft" }, t("loading")));
      try {
        URL.revokeObjectURL(this.#frame);
        this.#frame = URL.createObjectURL(await this.#report("html"));
        refill(place, h("iframe", { class: "report", sandbox: "allow-scripts", src: this.#frame,
          title: t("replay.report") }));
      } catch (error) {
        refill(place, h("p", { class: "error", role: "alert" }, error.message));
      }
    } }, h("summary", {}, h("h2", {}, t("replay.report"))), h("p", { class: "soft" }, t("replay.report.hint")), place);
    refill(this.#at.whole, details);
  }

  update({ rest: [name], queries: [query = ""] }) {
    const file = handed("replay");
    if (file) this.#taken(file);
    else if (name === "example") this.#example();
    kept.options = { ...kept.options, ...questionOf(query) };
    for (const [option, set] of Object.entries(this.#controls)) set(kept.options[option]);
    if (kept.file) this.#at.name.textContent = this.#app.t("replay.file",
      { name: kept.file.name, size: bytes(kept.file.size, 1) });
  }

  leave() {
    this.#under.stop();
    URL.revokeObjectURL(this.#frame);
  }
}

/** See pages.js. */
export async function show(root, app, route) {
  defineMarks();
  const view = new Replay(root, app);
  view.update(route);
  return view;
}
