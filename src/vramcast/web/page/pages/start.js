/** The front page: one question with its verdict, and three doors with live examples. */

import { ask, askOnce } from "../backend.js";
import { heldNow, holdPlace } from "../carried.js";
import { h, refill, settled, uniqueId } from "../dom.js";
import { bytes, count, money } from "../format.js";
import { questionText } from "../hash.js";
import { cardText, gpusText, learnNames } from "../names.js";
import { combo } from "../parts/combo.js";
import { labelled } from "../parts/field.js";
import { cardRows, modelRows } from "../parts/form.js";
import { neededOf, trustLine, verdictBadge, verdictHead } from "../parts/verdict.js";
import questions from "../questions.json" with { type: "json" };

const WAIT_MS = 120;
const PRICED = ["rtx-4090", "l40s", "a100-sxm4-80gb", "h100-sxm-80gb", "h200-sxm-141gb", "b200-180gb"];

let chosen = null; // the mode of the last visit

/** A question of a mode: its command, and the options that make it so beside those given. */
function questionOf(mode, given) {
  const { command, options } = questions.modes[mode];
  return { command, question: { ...options, ...given } };
}

const link = ({ command, question }) => `#/${command}?${questionText(question)}`;

/** The price of one card where it costs least, in the first of the currencies that has any. */
function cheapest(instances, card) {
  const offers = instances.filter(({ gpu, price }) => gpu === card && price?.currency === "USD")
    .map((row) => ({ each: row.price.per_hour / (row.slices_of_a_card ? 1 / row.slices_of_a_card : row.gpus), row }));
  return offers.sort((one, other) => one.each - other.each)[0];
}

class Start {
  #app;
  #at = {};
  #mode;
  #under = null;
  #known;
  #gone = false;
  #ask = settled(() => this.#answer(), WAIT_MS);

  constructor(root, app, known) {
    this.#app = app;
    this.#known = known;
    this.#mode = chosen ?? questions.first.mode;
    this.#lay(root);
    this.#answer();
    this.#live();
  }

  #field(name, label, rows) {
    const { t } = this.#app;
    const { node: shown, control } = combo({ id: uniqueId("field"), name, rows: () => rows, t, changed: () => this.#ask() });
    const field = labelled({ label, control, shown });
    this.#at[name] = control;
    return field.node;
  }

  #lay(root) {
    const { t } = this.#app;
    const { models, gpus, instances } = this.#known;
    const lead = h("p", { class: "soft lead" });
    askOnce("/api/version").then(({ measured }) => { lead.textContent = t("start.lead", { runs: count(measured) }); },
      () => {});
    const verdict = h("div", { class: "start-verdict", "aria-live": "polite" });
    const modes = h("select", { id: uniqueId("field"), name: "mode", onchange: () => { this.#mode = modes.value; this.#ask(); } },
      Object.keys(questions.modes).map((mode) => h("option", { value: mode, selected: mode === this.#mode }, t(`mode.${mode}`))));
    Object.assign(this.#at, { verdict, modes });
    const asking = h("form", { class: "start-ask", "aria-label": t("question"), onsubmit: (event) => {
      event.preventDefault();
      location.hash = link(this.#question()).slice(1);
    } }, labelled({ label: t("start.mode"), control: modes }).node,
    this.#field("model", t("option.model"), modelRows(models)),
    this.#field("gpus", t("card"), cardRows(gpus, instances)));
    const { model, hardware } = heldNow();
    this.#at.model.value = model ?? questions.first.given.model;
    this.#at.gpus.value = hardware ?? questions.first.given.gpus;
    root.append(
      h("h1", { class: "hero" }, t("title.start")),
      lead,
      h("section", { class: "start-first" }, asking, verdict),
      h("div", { class: "doors" }, this.#fit(), this.#rent(instances), this.#crash()),
      h("p", { class: "soft start-drop" }, t("start.drop")));
  }

  #question() {
    const given = { model: this.#at.model.value.trim(), gpus: this.#at.gpus.value.trim() };
    return questionOf(this.#mode, given);
  }

  async #answer() {
    const { t, named } = this.#app;
    const asked = this.#question();
    chosen = this.#mode;
    this.#under?.abort();
    const under = this.#under = new AbortController();
    try {
      const answer = await ask(`/api/${asked.command}`, asked.question, { signal: under.signal });
      if (under.signal.aborted || this.#gone) return;
      holdPlace({ model: asked.question.model, hardware: asked.question.gpus });
      const { class: kind, heading } = verdictHead(answer.verdict, named("verdict", answer.verdict), this.#app);
      refill(this.#at.verdict, h("div", { class: kind }, heading,
        h("p", { class: "number" }, neededOf(answer, t)),
        h("p", { class: "soft" }, gpusText(answer.question.gpus), ", ", answer.question.engine),
        h("a", { class: "go-whole", href: link(asked) }, t("start.whole")), trustLine(answer, this.#app)));
    } catch (error) {
      if (under.signal.aborted || this.#gone) return;
      refill(this.#at.verdict, h("p", { class: "error" }, error.message));
    }
  }

  #door(name, ...children) {
    const { t } = this.#app;
    return h("section", { class: "door" }, h("h2", {}, t(`door.${name}`)), h("p", { class: "soft" }, t(`door.${name}.about`)),
      children);
  }

  #fit() {
    const { t } = this.#app;
    this.#at.examples = questions.examples.map(({ words, mode, given }) => {
      const asked = questionOf(mode, given);
      const badge = h("span", { class: "live" }, h("span", { class: "soft" }, "…"));
      const said = t(words, { model: given.model, gpus: gpusText(given.gpus), users: given.concurrency });
      return { asked, badge, node: h("li", {}, h("a", { href: link(asked) }, said), badge) };
    });
    return this.#door("fit", h("ul", { class: "live-list" }, this.#at.examples.map(({ node }) => node)));
  }

  #rent({ instances }) {
    const { t } = this.#app;
    const rows = PRICED.map((card) => [card, cheapest(instances, card)]).filter(([, offer]) => offer);
    const row = ([card, { each, row: { name, price } }]) => h("li", {},
      h("a", { href: `#/instances?query=${card}` }, cardText(card)),
      h("span", { class: "live number" }, t("start.hour", { price: money(each, price.currency) }),
        h("small", { class: "soft" }, name.split(":")[0])));
    const model = heldNow().model ?? questions.first.given.model;
    const question = { model, on: "any", currency: "USD", goal: "cheapest", context: "8k", concurrency: "16" };
    return this.#door("rent", h("ul", { class: "live-list" }, rows.map(row)),
      h("p", {}, h("a", { class: "go-whole", href: `#/plan/serve?${questionText(question)}` }, t("door.rent.go", { model }))));
  }

  #crash() {
    const { t, go } = this.#app;
    const text = h("textarea", { class: "mono", rows: 6, spellcheck: "false", "aria-label": t("oom.text"),
      placeholder: "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 192.00 MiB. GPU 0 has …" });
    const example = h("a", { href: "#/oom/example" }, t("door.crash.example"));
    const send = () => { if (text.value.trim()) go({ page: "oom", queries: [questionText({ text: text.value })] }); };
    return this.#door("crash", text, h("div", { class: "go" },
      h("button", { type: "button", class: "primary", onclick: send }, t("door.crash.go")), example));
  }

  /** The examples' verdicts, one after the other: each is a question like any other. */
  async #live() {
    for (const { asked, badge } of this.#at.examples) {
      try {
        const answer = await ask(`/api/${asked.command}`, asked.question);
        if (this.#gone) return;
        refill(badge, verdictBadge(answer.verdict, this.#app),
          h("span", { class: "number soft" }, bytes(answer.needed_bytes, 1)));
      } catch {
        refill(badge);
      }
    }
  }

  update() {}

  leave() {
    this.#gone = true;
    this.#under?.abort();
  }
}

/** See pages.js. */
export async function show(root, app) {
  const [models, gpus, instances] = await Promise.all([
    askOnce("/api/models?query="), askOnce("/api/gpus"), askOnce("/api/instances"), learnNames()]);
  return new Start(root, app, { models, gpus, instances });
}
