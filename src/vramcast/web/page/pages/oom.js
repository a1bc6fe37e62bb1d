/** Why memory ran out: a log, a message or a recording in, causes and fixes out. The text stays in the page. */

import { ask } from "../backend.js";
import { h, refill, uniqueId } from "../dom.js";
import { bytes } from "../format.js";
import { handed } from "../handed.js";
import { questionOf, questionText, written } from "../hash.js";
import { dropPlace } from "../parts/drop.js";
import { diagnosisParts } from "../parts/findings.js";
import { button } from "../parts/part.js";
import { saved, savedJson } from "../parts/take.js";
import { refusal, UnderWay } from "../parts/working.js";
import { LARGEST_RECORDING, LONGEST_SHOWN, argument, isRecording, textOf } from "../uploads.js";

const LONGEST_LINK = 8000; // characters of an address that other programs still take
const JOB_LINE = /^\s*(?:--)?([\w-]+)\s*[=:]\s*(.*?)\s*,?\s*$/;
const EXAMPLE = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 192.00 MiB. GPU 0 has a total capacity "
  + "of 14.56 GiB of which 123.44 MiB is free. Including non-PyTorch memory, this process has 14.44 GiB memory in use. "
  + "Of the allocated memory 13.92 GiB is allocated by PyTorch, and 401.03 MiB is reserved by PyTorch but unallocated.";

/**
 * Of the last visit. `file`, where one is asked about and not the text in the box: { name, size }, with `recording`
 * (the File) or `text` and `counted`, see `textOf`. `answer` is the answer to `asked`, see `requestOf`.
 */
let kept = { text: "", job: "", checks: false, file: null, answer: null, asked: null, counted: undefined };

/** Lines of a job file, name = value, as options. */
export function jobOf(text) {
  const lines = text.split("\n").filter((line) => line.trim() && !/^\s*[#[]/.test(line));
  const pair = (line) => {
    const [, name, value] = JOB_LINE.exec(line) ?? [null, line.trim(), ""];
    return [name, value.replace(/^(["'])(.*)\1$/, "$2")];
  };
  const options = Object.fromEntries(lines.map(pair));
  const plain = ([name, value]) => [name, value === "true" || value === "false" ? value === "true" : value];
  return lines.length ? Object.fromEntries(Object.entries(options).map(plain)) : undefined;
}

/**
 * A question as it is sent: a text stands in the body with all that belongs to it; a recording is the body, and the
 * rest stands in the address.
 *
 * @param {{text?: string, recording?: File, name?: string, job?: object, checks: boolean, format?: string}} asked
 *   `format`: of a report
 * @returns {{path: string, body: object|File}}
 */
function requestOf({ text, recording, name, job, checks, format }) {
  const beside = recording ? { snapshot: 1, name, ...(job && { job: JSON.stringify(job) }), ...(checks && { checks: 1 }) }
    : {};
  const query = new URLSearchParams({ ...beside, ...(format && { format }) }).toString();
  return { path: query ? `/api/oom?${query}` : "/api/oom", body: recording ?? { text, job, checks } };
}

class Failures {
  #app;
  #at;
  #under;

  constructor(root, app) {
    this.#app = app;
    this.#lay(root);
    if (kept.answer) this.#show(kept.answer);
  }

  #lay(root) {
    const { t } = this.#app;
    const id = uniqueId("log");
    const text = h("textarea", {
      id, class: "log mono", rows: 11, spellcheck: "false", autocapitalize: "off", placeholder: EXAMPLE,
      oninput: () => { kept.text = text.value; this.#choose(null); },
    });
    const chosen = h("p", { class: "soft chosen-file" });
    const job = h("textarea", { id: uniqueId("job"), class: "mono", rows: 5, spellcheck: "false",
      placeholder: 'model = "llama-3.1-8b"\ngpus = "8xh100-sxm-80gb"\nmicro-batch = 4',
        oninput: () => { kept.job = job.value; } });
    const checks = h("input", { type: "checkbox", id: uniqueId("checks"), checked: kept.checks,
      onchange: () => { kept.checks = checks.checked; } });
    text.value = kept.text;
    job.value = kept.job;
    const [notice, take, body] = [h("div", { class: "notice" }), h("div", { class: "take", hidden: true }),
      h("div", { class: "body" })];
    this.#at = { text, chosen, job, checks, notice, take, body };
    this.#under = new UnderWay(notice, t);
    const asking = h("form", { class: "question", "aria-label": t("title.oom"), onsubmit: (event) => {
      event.preventDefault();
      this.#asked();
    } },
    h("label", { class: "over", for: id }, t("oom.text")), text,
    dropPlace({ title: t("drop.choose"), hint: t("oom.drop"), taken: (file) => this.#file(file) }), chosen,
    h("details", { class: "group", open: Boolean(kept.job) }, h("summary", {}, t("oom.job")),
      h("p", { class: "soft" }, t("oom.job.hint")), h("label", { class: "over", for: job.id }, t("oom.job.lines")),
        job),
    h("label", { class: "check", for: checks.id }, checks, t("oom.every_check")),
    h("div", { class: "go" }, h("button", { type: "submit", class: "primary" }, t("oom.ask")),
      button(t("example.use"), () => this.#example(), { class: "link" })));
    this.#choose(kept.file);
    root.append(h("div", { class: "titled" }, h("h1", {}, t("title.oom"))),
      h("div", { class: "asks even" }, h("div", {}, asking, h("p", { class: "soft private" }, t("oom.private"))),
        h("div", { class: "answered" }, notice, take, body)));
    if (!kept.answer) refill(body, h("p", { class: "soft" }, t("oom.first")));
  }

  /** The file that is asked about; null for what stands in the box. */
  #choose(file) {
    const { t } = this.#app;
    kept.file = file;
    if (file) kept.text = this.#at.text.value = "";
    refill(this.#at.chosen, file ? [t("file.chosen", { name: file.name, size: bytes(file.size, 1) }), " ",
      button(t("file.remove"), () => this.#choose(null), { class: "link" })] : null);
  }

  #buttons() {
    const { t } = this.#app;
    const tried = (act) => () => act().catch((error) => this.#refuse(error));
    const report = (format) => tried(async () => {
      const { path, body } = requestOf({ ...kept.asked, format });
      saved(`vramcast-oom.${format}`, await ask(path, body, { as: "blob" }));
    });
    refill(this.#at.take, h("div", { class: "buttons" },
      button(t("download.json"), tried(() => savedJson("oom", kept.answer))),
      button(t("download.html"), report("html")), button(t("download.md"), report("md")),
      button(t("oom.link"), () => this.#link())));
  }

  async #copy(text) {
    const { t, say } = this.#app;
    try {
      await navigator.clipboard.writeText(text);
      say(t("copied"));
    } catch {
      refill(this.#at.notice, h("p", { class: "soft" }, t("copy.failed")), h("pre", { tabindex: "0" }, text));
    }
  }

  /** The address with the text in it, only at a wish: logs tell more than their writer thinks. */
  #link() {
    const { t } = this.#app;
    const query = questionText({ text: kept.text, job: kept.job });
    if (kept.file || !kept.text || query.length > LONGEST_LINK)
      return refill(this.#at.notice, h("p", { class: "soft", role: "status" },
        t(kept.file ? "oom.link.none" : "oom.link.long")));
    return this.#copy(location.href.split("#")[0] + written({ page: "oom", queries: [query] }));
  }

  #example() {
    this.#choose(null);
    this.#at.text.value = kept.text = EXAMPLE;
    this.#asked();
  }

  async #asked() {
    const { t } = this.#app;
    const { file } = kept;
    const beside = { job: jobOf(this.#at.job.value), checks: this.#at.checks.checked };
    if (file?.recording) return this.#send({ ...beside, recording: file.recording, name: file.name });
    const text = file?.text ?? kept.text;
    if (!text.trim()) return this.#refuse({ message: t("oom.first") });
    await this.#send({ ...beside, text });
    if (file?.counted && kept.file === file) this.#at.notice.append(h("p", { class: "soft" },
      t("oom.halves", { name: file.name })));
  }

  /** Takes a file; its size is looked at before anything of it is read, and a long text stands in no box. */
  async #file(chosen) {
    const { t } = this.#app;
    const { name, size } = chosen;
    try {
      if (await isRecording(chosen)) {
        if (size > LARGEST_RECORDING) {
          const sizes = { name, size: bytes(size, 1), most: bytes(LARGEST_RECORDING, 0) };
          this.#refuse({ message: t("upload.large", sizes) }, `vramcast oom ${argument(name)}`);
          return;
        }
        this.#choose({ name, size, recording: chosen });
      } else {
        const { text, counted } = await textOf(chosen);
        this.#choose(text.length > LONGEST_SHOWN ? { name, size, text, counted } : null);
        if (!kept.file) this.#at.text.value = kept.text = text;
      }
    } catch (error) {
      this.#refuse(error);
      return;
    }
    kept.answer = null; // that of another file would stand beside this one's name
    this.#at.take.hidden = true;
    refill(this.#at.body);
    await this.#asked();
  }

  async #send(asked) {
    const { t, say } = this.#app;
    const { path, body } = requestOf(asked);
    const { file } = kept;
    const { answer, error } = await this.#under.asked((signal) => ask(path, body, { signal }), "reading") ?? {};
    if (error) this.#refuse(error);
    if (!answer) return;
    kept = { ...kept, asked, counted: file?.counted };
    this.#show(answer);
    if (this.#at.body.getBoundingClientRect().top > innerHeight / 2) this.#at.body.scrollIntoView();
    say(answer.findings[0]?.text ?? t("oom.nothing"));
  }

  #refuse({ message }, command = null) {
    refill(this.#at.notice, refusal(message, command, this.#app.t("upload.elsewhere")));
  }

  #show(answer) {
    kept.answer = answer;
    this.#at.take.hidden = false;
    this.#buttons();
    const { counted } = kept;
    refill(this.#at.body, diagnosisParts(answer, { ...this.#app, counted, copy: (text) => this.#copy(text) }));
  }

  /** A link may hold a text; it is asked at once, as its sender meant. */
  update({ rest: [name], queries: [query] }) {
    const file = handed("oom");
    if (file) this.#file(file);
    else if (name === "example") this.#example();
    if (file || name === "example" || !query) return;
    const { text = "", job = "" } = questionOf(query);
    if (!text || (text === kept.text && kept.answer)) return;
    this.#choose(null);
    kept = { ...kept, text, job };
    this.#at.text.value = text;
    this.#at.job.value = job;
    this.#asked();
  }

  leave() {
    this.#under.stop();
  }
}

/** See pages.js. */
export async function show(root, app, route) {
  const view = new Failures(root, app);
  view.update(route);
  return view;
}
