/** Which plan is best: a search over plans of training or deployments of serving. */

import { ask, askOnce } from "../backend.js";
import { carried, hold } from "../carried.js";
import { h, refill, uniqueId } from "../dom.js";
import { questionOf, questionText } from "../hash.js";
import { learnNames } from "../names.js";
import { answerParts } from "../parts/answer.js";
import { applied } from "../parts/changes.js";
import { combo } from "../parts/combo.js";
import { labelled } from "../parts/field.js";
import { SPECIAL, cardRows, form, modelRows } from "../parts/form.js";
import { frontPart } from "../parts/front_picture.js";
import { part } from "../parts/part.js";
import { adviceParts, foundHead, listed, nearestPart, plansTable, soFar } from "../parts/plans.js";
import { defineMarks } from "../parts/scale.js";
import { commandOf, takePart } from "../parts/take.js";
import { verdictPart } from "../parts/verdict.js";
import { refusal, UnderWay } from "../parts/working.js";
import { costOf, gpusOf, planQuestion, pointsOf } from "../plan_question.js";
import { assumedBySearch, blamedOption, bodyOf } from "../question_state.js";

const FIRST = {
  train: ["goal", "max-gpus", "seq-len", "global-batch", "tokens", "headroom", "engine", "precision", "allow",
    "forbid"],
  serve: ["goal", "max-gpus", "context", "concurrency", "input-len", "output-len", "ttft", "per-user", "weights",
    "engine"],
};
const EXAMPLES = {
  train: { model: "llama-3.1-8b", on: "8xh100-sxm-80gb,8xa100-sxm4-80gb", "seq-len": "8k" },
  serve: { model: "llama-3.1-70b", on: "8xh100-sxm-80gb,8xl40s", context: "8k", concurrency: "16" },
};
const ELSEWHERE = new Set([413, 503, 504]); // what the command line, which has no limits, still answers
const BEFORE = /^(?:.*,)?\s*(?:\d+x)*/; // what stands before the name that is typed

const kept = {}; // by command: { question, answer } of the last visit

/** What to look at: cards and machines, several of them, with suggestions for the one that is typed. */
function onField({ rows, help, t, changed }) {
  const typed = () => BEFORE.exec(control.value)[0];
  const { node: shown, control } = combo({
    id: uniqueId("field"), name: "on", t,
    rows: () => rows().map(({ name, ...row }) => ({ ...row, name: typed() + name })),
    changed: (value, done) => changed("on", value.trim(), done),
  });
  const field = labelled({ label: t("option.on"), help, control, shown });
  field.node.classList.add("wide");
  const set = (value) => { if (control.value.trim() !== value) control.value = value; };
  return { ...field, set, assumed: () => {} };
}

async function known(command, language) {
  const [search, one, models, gpus, instances] = await Promise.all([
    askOnce(`/api/options/plan-${command}?lang=${language}`), askOnce(`/api/options/${command}?lang=${language}`),
    askOnce("/api/models?query="), askOnce("/api/gpus"), askOnce("/api/instances"),
  ]);
  await learnNames();
  const [named, cards] = [modelRows(models), cardRows(gpus, instances)];
  return { options: search.options, names: one.options.map(({ name }) => name),
    cards: new Map(instances.instances.map(({ name, gpus: number }) => [name, number])),
    rows: { model: () => named, on: () => cards } };
}

class Search {
  #command;
  #app;
  #known;
  #kinds;
  #question = {};
  #answer = null;
  #under;
  #form;
  #at = {};

  constructor(command, given, root, app) {
    this.#command = command;
    this.#app = app;
    this.#known = given;
    this.#kinds = Object.fromEntries(given.options.map(({ name, kind }) => [name, kind]));
    this.#form = form({
      ...given, first: FIRST[command], special: { model: SPECIAL.model, on: onField }, t: app.t,
      changed: (name, value) => this.#changed(name, value),
    });
    this.#lay(root);
  }

  #lay(root) {
    const { t } = this.#app;
    const [notice, body] = ["notice", "body"].map((name) => h("div", { class: name }));
    const take = takePart({ command: `plan ${this.#command}`, current: () => this.#taken() }, this.#app);
    const go = h("button", { type: "submit", class: "primary" }, t("search"));
    this.#at = { notice, body, take, stale: h("p", { class: "old", role: "status" }) };
    this.#under = new UnderWay(notice, t);
    this.#form.node.querySelector("h2.more").before(h("div", { class: "go" }, go,
      h("span", { class: "soft" }, t("search.hint"))));
    this.#form.node.addEventListener("submit", () => this.#search());
    refill(root, h("div", { class: "titled" }, h("h1", {}, t(`title.plan.${this.#command}`)), this.#at.stale,
      this.#tabs()),
      h("div", { class: "asks" }, h("div", { class: "asking" }, this.#form.node),
        h("div", { class: "answered" }, notice, take.node, body)));
  }

  #tabs() {
    const { t } = this.#app;
    const tab = (command) => h("a", {
      href: `#/plan/${command}`, "aria-current": command === this.#command ? "page" : null }, t(`page.${command}`));
    return h("nav", { class: "switch", "aria-label": t("plan.what") }, Object.keys(FIRST).map(tab));
  }

  #taken() {
    return { question: this.#question, answer: this.#answer, kinds: this.#kinds,
      body: bodyOf(this.#question, this.#kinds) };
  }

  #changed(name, value) {
    if ((this.#question[name] ?? "") === value) return;
    this.#ask(applied(this.#question, { [name]: value === "" ? null : value }), { replace: true });
  }

  /** Another question; the answer that stands is then that of the last one. */
  #ask(question, how) {
    this.#question = question;
    hold(`plan ${this.#command}`, question);
    this.#app.go({ page: "plan", rest: [this.#command], queries: [questionText(question)] }, how);
    this.#form.show(question);
    this.#form.blame(null, "");
    this.#at.take.clear();
    this.#stale();
  }

  /** Says where the plans that are shown are those of another question. */
  #stale() {
    const last = kept[this.#command];
    const is = this.#answer && questionText(last.question) !== questionText(this.#question);
    refill(this.#at.stale, is ? this.#app.t("plans.stale") : null);
  }

  async #search() {
    const { t, say } = this.#app;
    this.#form.blame(null, "");
    say(t("searching.said"));
    this.#at.body.classList.add("waits");
    const body = bodyOf(this.#question, this.#kinds);
    const request = (signal, counted) => ask(`/api/plan/${this.#command}`, body, {
      signal, looked: ({ looked, front }) => { counted(looked); this.#soFar(front); } });
    const { answer, error } = await this.#under.asked(request, "searching") ?? {};
    if (answer) this.#found(answer);
    if (error) this.#failed(error); // what was found until then stays
    this.#at.body.classList.remove("waits");
    delete this.#at.body.dataset.soFar;
  }

  /** Shows what a search has found until now in the place of the answer. */
  #soFar(front) {
    if (!front.length || this.#at.body.dataset.soFar === String(front.length)) return;
    const points = pointsOf(front, []).map((point) => ({ ...point, row: true }));
    const [href, { t }] = [this.#hrefs(this.#question), this.#app];
    this.#at.take.node.hidden = true;
    this.#at.body.dataset.soFar = front.length;
    this.#at.body.classList.remove("waits");
    refill(this.#at.body, soFar(points, href, this.#app),
      points.length > 1 ? frontPart(points, { t, href, chosen: () => {} }) : null);
  }

  /** Of a plan that was found for a question: its address on the page of one plan. */
  #hrefs(asked) {
    const names = ["model", ...this.#known.names];
    return ({ options }) => `#/${this.#command}?${questionText(planQuestion(asked, options, names))}`;
  }

  #found(answer) {
    const { t, say } = this.#app;
    this.#answer = answer;
    kept[this.#command] = { question: this.#question, answer, language: this.#app.language };
    this.#stale();
    this.#render();
    const found = answer.labels?.[0] ?? answer.found?.what;
    if (this.#at.body.getBoundingClientRect().top > innerHeight / 2) this.#at.body.scrollIntoView();
    say(found ? `${t("plans.found")}: ${found}` : t("plans.none"));
  }

  /** Why there is no answer; where a page cannot search, the command line can. */
  #failed(error) {
    const blamed = blamedOption(error.sentence ?? "", ["gpus", ...Object.keys(this.#kinds)]);
    const elsewhere = ELSEWHERE.has(error.status) || /NumPy/.test(error.message);
    if (error.status === 422 && !elsewhere) this.#form.blame(blamed === "gpus" ? "on" : blamed, error.message);
    const command = commandOf(`plan ${this.#command}`, this.#question, this.#kinds);
    refill(this.#at.notice, refusal(error.message, elsewhere ? command : null, this.#app.t("search.elsewhere")));
  }

  #render() {
    const answer = this.#answer;
    this.#at.take.node.hidden = !answer;
    this.#form.assume(assumedBySearch(answer, this.#kinds, this.#app.t));
    this.#at.take.clear();
    refill(this.#at.body, answer ? this.#parts(answer) : h("p", { class: "soft" }, this.#app.t("search.first")));
  }

  #parts(answer) {
    if (answer.ranks) return this.#single(answer);
    const { t } = this.#app;
    const asked = kept[this.#command]?.question ?? this.#question;
    const question = (options) => planQuestion(asked, options, ["model", ...this.#known.names]);
    const href = this.#hrefs(asked);
    const rows = this.#rows(answer, question);
    const plans = rows.length ? plansTable(rows, this.#command, this.#app) : null;
    const points = pointsOf(answer.front, rows);
    const apply = (change) => { this.#ask(applied(this.#question, change.apply)); this.#search(); };
    return [
      foundHead(answer, this.#app), listed(t("warnings"), answer.warnings, "warnings"), plans?.node,
      points.length > 1 ? frontPart(points, { t, href, chosen: ({ label }) => plans.choose(label) }) : null,
      listed(t("plans.reasons"), answer.reasons), nearestPart(answer, { ...this.#app, apply }),
      adviceParts(answer, this.#app), listed(t("assumptions"), answer.assumptions, "assumptions"),
      answer.command ? part(t("plans.command"), h("pre", { tabindex: "0" }, answer.command)) : null,
    ];
  }

  /** The plans of a search with what the table shows of them. */
  #rows({ plans, labels, options }, question) {
    return plans.map((answer, index) => {
      const gpus = gpusOf(answer, this.#known.cards);
      return { answer, gpus, label: labels[index], options: options[index], rank: index + 1,
        question: question(options[index]), cost: costOf(answer, gpus) };
    });
  }

  /** An inverse question comes to one plan, shown as the pages train and serve show it. */
  #single(answer) {
    const view = { chosen: 0, all: false, open: new Set() };
    const apply = (change) => { this.#ask(applied(this.#question, change.apply)); this.#search(); };
    const place = h("div", { class: "body" });
    const again = () => refill(place, verdictPart(answer, this.#app),
      answerParts(answer, view, this.#app, { apply, again }));
    again();
    return place;
  }

  /** Shows a question; the answer to it where it is there. */
  show([query]) {
    const last = kept[this.#command];
    this.#question = query ? questionOf(query)
      : carried(`plan ${this.#command}`, last?.question ?? EXAMPLES[this.#command]);
    hold(`plan ${this.#command}`, this.#question);
    if (!query) this.#ask(this.#question, { replace: true });
    this.#form.show(this.#question);
    const same = last && questionText(last.question) === questionText(this.#question);
    this.#answer = same && last.language === this.#app.language ? last.answer : this.#answer;
    this.#render();
  }

  leave() {
    this.#under.stop();
  }
}

const commandIn = ({ rest: [name] }) => (name in FIRST ? name : "train");

/** See pages.js. */
export async function show(root, app, route) {
  defineMarks();
  let [command, view, turn] = [null, null, 0];
  const update = async (next) => {
    const mine = (turn += 1);
    if (commandIn(next) !== command) {
      const given = await known(commandIn(next), app.language);
      if (mine !== turn) return;
      view?.leave();
      command = commandIn(next);
      view = new Search(command, given, root, app);
    }
    view.show(next.queries);
  };
  await update(route);
  return { update, leave: () => { turn += 1; view.leave(); } };
}
