/** What the pages train and serve share: a form, live answers, plans to compare, and the address that holds them. */

import { askOnce } from "../backend.js";
import { carried, hold } from "../carried.js";
import { h, refill, settled } from "../dom.js";
import { questionOf, questionText } from "../hash.js";
import { learnNames } from "../names.js";
import { answerParts } from "../parts/answer.js";
import { applied, makeItFit } from "../parts/changes.js";
import { comparePart } from "../parts/compare.js";
import { cureText } from "../parts/field.js";
import { cardRows, form, modelRows } from "../parts/form.js";
import { looksParts } from "../parts/looks.js";
import { button } from "../parts/part.js";
import { planTabs } from "../parts/plan_tabs.js";
import { defineMarks } from "../parts/scale.js";
import { takePart } from "../parts/take.js";
import { glancePart, verdictPart, verdictSentence } from "../parts/verdict.js";
import { refusing } from "../refusing.js";
import { MOST_PLANS, asker, assumedOf, blamedOption, bodyOf, copyOf, planFor } from "../question_state.js";

const WAIT_MS = 10; // between a change and the question: what one key press changes is one question
const BUSY_MS = 250; // before anything says that an answer takes its time
const SPEAK_MS = 900; // so that a screen reader hears the last verdict only

async function catalogues(command, language) {
  const [{ options }, models, gpus, instances] = await Promise.all([
    askOnce(`/api/options/${command}?lang=${language}`),
    askOnce("/api/models?query="),
    askOnce("/api/gpus"),
    askOnce("/api/instances"),
  ]);
  await learnNames();
  const [known, cards] = [modelRows(models), cardRows(gpus, instances)];
  return { options, rows: { model: () => known, gpus: () => cards } };
}

/**
 * The page of a command.
 *
 * @param {{command: string, first: string[], example: object}} about  `first`: options shown at once
 * @returns show(root, app, route), see pages.js
 */
export function asking({ command, first, example }) {
  let last = { rest: [], queries: [questionText(example)] }; // where the visitor was before another page
  return async (root, app, route) => {
    const { options, rows } = await catalogues(command, app.language);
    defineMarks();
    const view = new Asking({ command, first, options, rows, fallback: last }, root, app);
    view.update(route);
    const leave = () => {
      last = view.leave();
    };
    return { update: (next) => view.update(next), leave };
  };
}

class Asking {
  #about;
  #app;
  #kinds;
  #plans = [];
  #active = 0;
  #gone = false;
  #at; // the places of the page, by name
  #form;
  #refusing; // choices that questions cannot have
  #ask;
  #soon;
  #wait;
  #speak;

  constructor(about, root, app) {
    this.#about = about;
    this.#app = app;
    this.#kinds = Object.fromEntries(about.options.map(({ name, kind }) => [name, kind]));
    this.#ask = asker({ path: `/api/${about.command}`, kinds: this.#kinds, answered: (plan) => this.#answered(plan) });
    this.#soon = settled(this.#ask, WAIT_MS);
    this.#wait = settled(() => this.#at.notice.classList.toggle("busy", Boolean(this.#current.under)), BUSY_MS);
    this.#speak = settled(() => this.#gone || app.say(this.#sentence()), SPEAK_MS);
    this.#refusing = refusing(about.command, this.#kinds);
    this.#form = form({ ...about, t: app.t, changed: (...given) => this.#changed(...given), met: (name) => this.#met(name) });
    this.#lay(root);
  }

  get #current() {
    return this.#plans[this.#active];
  }

  /** The places of the page; the form and the row of buttons stay, what answers say is filled in anew. */
  #lay(root) {
    const { t } = this.#app;
    const place = (name, attributes = {}) => h("div", { class: name, ...attributes });
    this.#at = {
      root, tabs: place("tabs"), notice: place("notice"), body: place("body"), foot: place("foot"),
      head: place("head", { tabindex: "-1" }), stale: h("p", { class: "old" }),
      take: takePart({ command: this.#about.command, current: () => this.#taken() }, this.#app),
    };
    const { tabs, notice, head, stale, take, body, foot } = this.#at;
    root.append(
      h("div", { class: "titled" }, h("h1", {}, t(`title.${this.#about.command}`)), stale, tabs),
      h("div", { class: "asks" },
        h("div", { class: "asking" }, this.#form.node),
        h("div", { class: "answered" }, notice, head, take.node, body)),
      foot,
    );
    new IntersectionObserver(([seen]) => { foot.hidden = seen.isIntersecting; }).observe(head);
  }

  /** The address of what is shown. */
  #address() {
    return {
      page: this.#about.command,
      rest: this.#active ? [String(this.#active + 1)] : [],
      queries: this.#plans.map(({ question }) => questionText(question)),
    };
  }

  #sentence() {
    const { answer, error } = this.#current;
    return error || (answer ? verdictSentence(answer, this.#app) : "");
  }

  #taken() {
    const { question, answer } = this.#current;
    return { question, answer, kinds: this.#kinds, body: bodyOf(question, this.#kinds) };
  }

  #answered(plan) {
    if (this.#gone || !this.#plans.includes(plan)) return;
    this.#render();
    this.#speak();
    if (plan.error && !plan.unreachable) this.#cured(plan);
  }

  /** A field was changed; `done`: the visitor left it. */
  #changed(name, value, done) {
    const plan = this.#current;
    if ((plan.question[name] ?? "") === value) return;
    const cure = this.#refusing.cure(plan.question, name, value);
    if (cure) {
      this.#app.say(cureText(cure, this.#app.t));
      this.#form.mark(name, []);
    }
    plan.question = applied(plan.question, { ...cure, [name]: value === "" ? null : value });
    Object.assign(plan, { last: name, cure: null });
    hold(this.#about.command, plan.question);
    this.#at.take.clear();
    this.#app.go(this.#address(), { replace: true });
    this.#form.show(plan.question);
    (done ? this.#ask : this.#soon)(plan);
    this.#wait();
  }

  /** The visitor came to a field with choices: those that the question cannot have are marked. */
  async #met(name) {
    const { question } = this.#current;
    const refused = await this.#refusing.of(question, name);
    if (!this.#gone && this.#current.question === question) this.#form.mark(name, refused);
  }

  /** What would make a refused question possible: of the choice that was made last, else of any in it. */
  async #cured(plan) {
    const { question, last } = plan;
    const made = this.#about.options.filter(({ name, choices }) => choices.length && name in question)
      .map(({ name }) => name);
    for (const name of made.includes(last) ? [last] : made) {
      const refused = await this.#refusing.of(question, name);
      plan.cure ??= refused.find(({ value }) => value === question[name])?.cure;
    }
    if (plan.cure && plan === this.#current && plan.question === question) this.#render();
  }

  /** Other plans, or another one of them: a step that the browser's back button takes back. */
  #move(plans, active) {
    this.#plans = plans;
    this.#active = active;
    this.#app.go(this.#address());
  }

  #apply(change) {
    const plan = { ...copyOf(this.#current), question: applied(this.#current.question, change.apply) };
    this.#app.say(this.#app.t("applied", { change: change.change }));
    this.#move(this.#plans.with(this.#active, plan), this.#active);
    this.#at.head.focus({ preventScroll: true }); // the button is gone with what it changed
  }

  #remove(index) {
    const active = Math.max(0, this.#active - (index <= this.#active ? 1 : 0));
    this.#move(this.#plans.toSpliced(index, 1), active);
  }

  #render() {
    const [app, plan, at] = [this.#app, this.#current, this.#at];
    const { answer, error, sentence, unreachable } = plan;
    const names = ["model", "gpus", ...Object.keys(this.#kinds)];
    const refused = unreachable ? "" : error;
    refill(at.tabs, planTabs(this.#plans, this.#active, app, {
      choose: (index) => this.#move(this.#plans, index),
      add: () => this.#move([...this.#plans, { ...copyOf(plan), view: undefined }], this.#plans.length),
      remove: (index) => this.#remove(index),
    }));
    this.#form.assume(assumedOf(answer, app.t));
    this.#form.blame(refused ? blamedOption(sentence, names, plan.question) : null, refused);
    refill(at.notice, notice(plan, app.t, (cure) => this.#apply({ apply: cure, change: cureText(cure, app.t) })));
    at.stale.textContent = error && answer ? app.t("stale") : "";
    at.root.classList.toggle("stale", Boolean(error && answer));
    at.take.node.hidden = !answer;
    const acts = { apply: (change) => this.#apply(change), again: () => this.#render() };
    refill(at.head, answer ? verdictPart(answer, app, makeItFit(answer, app, acts.apply)) : null,
      this.#plans.length > 1 ? comparePart(this.#plans, this.#active, app) : null);
    plan.view ??= { chosen: 0, all: false, open: new Set() };
    const asked = { command: this.#about.command, answer, body: bodyOf(plan.question, this.#kinds), view: plan.view, ...acts };
    const looks = answer && !answer.found && !error ? looksParts(asked, app) : [];
    refill(at.body, answer ? answerParts(answer, plan.view, app, { ...acts, looks }) : null);
    refill(at.foot, answer ? glancePart(answer, at.head, app) : null);
    this.#wait();
  }

  /** Where the visitor was on this page, with what was asked of others since. */
  #carried() {
    const { command, fallback: { rest, queries } } = this.#about;
    const active = Number(rest[0] ?? 1) - 1;
    const question = carried(command, questionOf(queries[active]));
    return { rest, queries: queries.with(active, questionText(question)) };
  }

  /** Shows what an address says; without a question what was there before, or the example. */
  update(route) {
    const { rest, queries } = route.queries.length ? route : this.#carried();
    const before = this.#plans;
    this.#plans = queries.slice(0, MOST_PLANS).map((query, index) => planFor(query, before, index));
    const number = Number.parseInt(rest[0] ?? "1", 10) || 1;
    this.#active = Math.min(Math.max(number, 1), this.#plans.length) - 1;
    if (!route.queries.length) this.#app.go(this.#address(), { replace: true });
    hold(this.#about.command, this.#current.question);
    this.#form.show(this.#current.question);
    this.#at.take.clear();
    this.#render();
    for (const plan of this.#plans) this.#ask(plan);
  }

  /** Ends what is under way; returns the address to come back to. */
  leave() {
    this.#gone = true;
    for (const plan of this.#plans) plan.under?.abort();
    return this.#address();
  }
}

/** What stands in the answer's place; an answer that is there stays. Where a change answers the question, its button. */
function notice({ answer, error, unreachable, cure }, t, apply) {
  if (error && cure)
    return h("p", { class: "error" }, error, " ", button(t("cure", { cure: cureText(cure, t) }), () => apply(cure)));
  if (unreachable && error) return h("p", { class: "error", role: "alert" }, t("unreachable", { message: error }));
  if (answer) return null;
  return error ? h("p", { class: "error" }, error) : h("p", { class: "soft" }, t("nothing_yet"));
}
