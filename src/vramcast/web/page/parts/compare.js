/** Up to four plans side by side: what they are asked, what they come to; what differs is marked. */

import { h, svg } from "../dom.js";
import { sizes } from "../format.js";
import { answerTo } from "../question_state.js";
import { byCategory } from "./memory_bars.js";
import { part } from "./part.js";
import { drawn, filledRect, linear } from "./scale.js";
import { frame } from "./table.js";
import { figures, verdictBadge } from "./verdict.js";

const ABSENT = "–";
const HEIGHT = 18;

/** "A", "B" ... */
export function letterOf(index) {
  return String.fromCharCode(65 + index);
}

function bar({ ranks: [rank], capacity_bytes: capacity }, largest) {
  return drawn({ class: "mini" }, (width) => {
    const x = linear(largest, width);
    let before = 0;
    const segments = byCategory(rank.ledger).map(([category, size]) => {
      const from = x(before);
      before += size;
      return filledRect(category, { x: from, y: 2, width: x(size), height: HEIGHT - 4 });
    });
    return svg("svg", { width, height: HEIGHT, "aria-hidden": "true" },
      svg("rect", { class: "room", y: 2, width: x(capacity), height: HEIGHT - 4 }), segments,
      svg("line", { class: "capacity", x1: x(capacity), x2: x(capacity), y1: 0, y2: HEIGHT }));
  });
}

function line(name, cells, kind = "result") {
  const differs = new Set(cells).size > 1;
  return h("tr", { class: `${kind} ${differs ? "differs" : "same"}` },
    h("th", { scope: "row" }, name), cells.map((cell) => h("td", { class: "number" }, cell)));
}

/** Rows of a table whose columns are maps from a name to a text. */
function lines(columns, kind, named = (name) => name) {
  const names = new Set(columns.flatMap((column) => [...column.keys()]));
  return [...names].map((name) => line(named(name), columns.map((column) => column.get(name) ?? ABSENT), kind));
}

function heading(text, width) {
  return h("tr", { class: "heading" }, h("th", { colspan: width + 1, scope: "colgroup" }, text));
}

function verdictCell({ error }, answer, { t, named }) {
  if (answer) return verdictBadge(answer.verdict, { named });
  if (error) return [h("span", { class: "badge" }, t("no_answer")), h("p", { class: "reason" }, error)];
  return h("span", { class: "soft" }, t("asking"));
}

function head(plans, active, t) {
  const name = (_, index) =>
    h("th", { scope: "col", class: index === active ? "active" : null }, t("plan.name", { letter: letterOf(index) }));
  return h("thead", {}, h("tr", {}, h("td", {}), plans.map(name)));
}

/**
 * The comparison.
 *
 * @param {{question, answer, error}[]} plans
 * @param {number} active  the plan that the form shows
 */
export function comparePart(plans, active, { t, named }) {
  const answers = plans.map(answerTo);
  const reaches = answers.filter(Boolean).map((answer) =>
    Math.max(answer.capacity_bytes, answer.ranks[0].peak.device_bytes));
  const largest = Math.max(1, ...reaches);
  const written = sizes(reaches);
  const sums = answers.map((answer) => new Map(
    (answer ? byCategory(answer.ranks[0].ledger) : []).map(([category, size]) => [category, written(size)])));
  const cell = (answer) => h("td", {}, answer ? bar(answer, largest) : null);
  return part(t("compare"), frame(t("compare"), h("table", { class: "compare" }, head(plans, active, t), h("tbody", {},
    h("tr", {}, h("th", { scope: "row" }, t("verdict")),
      plans.map((plan, index) => h("td", { class: "number" }, verdictCell(plan, answers[index], { t, named })))),
    h("tr", {}, h("th", { scope: "row" }, t("fullest")), answers.map(cell)),
    lines(answers.map((answer) => new Map(answer ? figures(answer, t) : [])), "result"),
    heading(t("question"), plans.length), lines(plans.map((plan) => new Map(Object.entries(plan.question))), "option"),
    heading(t("memory_of"), plans.length), lines(sums, "result", (category) => named("category", category))))));
}
