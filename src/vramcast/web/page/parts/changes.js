/** "What to change": every change the service computed, as a button that applies it. */

import { h, svg } from "../dom.js";
import { bytes, percent, rounded } from "../format.js";
import { button, part } from "./part.js";
import { linear } from "./scale.js";
import { verdictBadge } from "./verdict.js";

const METER = 110; // pixels
const WORTH_SAYING = 0.005; // of the time

/** The question with a change applied; what is null there is taken out. */
export function applied(question, change) {
  const next = { ...question };
  for (const [name, value] of Object.entries(change)) {
    if (value === null) delete next[name];
    else next[name] = String(value);
  }
  return next;
}

/** What a change costs, in words and time. What it takes of main memory stands behind the words. */
export function costText({ cost, slowdown }, { t, named }) {
  const [head, ...beside] = cost.split("; ");
  const whole = named("cost", cost);
  const said = [whole === cost ? [named("cost", head), ...beside].join(t("joint")) : whole];
  if (slowdown !== undefined && Math.abs(slowdown) >= WORTH_SAYING)
    said.push(t(slowdown > 0 ? "slower" : "faster", { share: percent(Math.abs(slowdown)) }));
  return said.filter(Boolean).join(t("joint"));
}

/** A bar of what a change leads to, over what it was, with the limit as a line. */
function meter({ value, before, limit }, tone) {
  const x = linear(1.02 * Math.max(before, limit, value), METER);
  return svg("svg", { class: "meter", width: METER, height: 12, "aria-hidden": "true" },
    svg("rect", { class: "meter-before", width: x(before), height: 8, y: 2 }),
    svg("rect", { class: `meter-after ${tone}`, width: x(value), height: 8, y: 2 }),
    svg("line", { class: "capacity", x1: x(limit), x2: x(limit), y1: 0, y2: 12 }));
}

/** What a change is about: the sequences that fit, or memory. */
function outcome({ concurrency, device_bytes: size }, answer) {
  if (concurrency && answer.capacity) {
    const limit = answer.question.requests.concurrency;
    return { value: concurrency, before: answer.capacity.concurrency, limit };
  }
  return { value: size, before: answer.needed_bytes, limit: answer.capacity_bytes };
}

function after({ concurrency, device_bytes }, t) {
  return concurrency ? t("holds", { sequences: rounded(concurrency) }) : bytes(device_bytes, 1);
}

function row(change, answer, app, apply) {
  const { t } = app;
  const tone = app.named("tone", change.verdict);
  const name = [change.name ? h("span", {}, change.name) : null, " ", h("code", {}, change.change)];
  const words = change.name ? `${change.name} ${change.change}` : change.change;
  const attributes = {
    class: "apply", "aria-label": t("apply", { change: words }), "data-key": `change ${change.change}`,
  };
  return h("li", {},
    change.apply ? button(name, () => apply(change), attributes) : h("span", {}, name),
    h("span", { class: "after" }, meter(outcome(change, answer), tone),
      h("span", { class: "number" }, after(change, t)), verdictBadge(change.verdict, app)),
    h("span", { class: "soft" }, costText(change, app)));
}

/** The best change, or several together, in words, as one button that applies it; null where none makes it fit. */
export function makeItFit(answer, app, apply) {
  const { t } = app;
  const best = answer.changes.find((change) => change.fits && change.apply);
  if (!best) return null;
  const name = best.name ?? best.change;
  return h("div", { class: "make-fit" },
    button([h("b", {}, t("make_it_fit")), " ", name], () => apply(best), { "class": "apply", "data-key": "make it fit" }),
    h("p", {}, after(best, t), " ", verdictBadge(best.verdict, app), " ", h("code", {}, best.change)),
    h("p", { class: "soft" }, costText(best, app)));
}

/**
 * The list, or nothing where nothing has to change.
 *
 * @param {(change) => void} apply
 */
export function changesPart(answer, app, apply) {
  if (answer.fits || !answer.changes.length) return null;
  const any = answer.changes.some(({ fits }) => fits);
  return part(app.t("changes"),
    h("p", { class: "soft" }, any ? null : [app.t("changes.none"), " "], app.t("changes.fit")),
    h("ul", { class: "changes" }, answer.changes.map((change) => row(change, answer, app, apply))));
}
