/** What opens under an answer: the same question over two of its options, and the memory of the step event by event. */

import { ask } from "../backend.js";
import { h, refill } from "../dom.js";
import { bytes, count, rounded } from "../format.js";
import { gpusText } from "../names.js";
import { button } from "./part.js";
import { frame } from "./table.js";
import { timelinePart } from "./timeline.js";

const KEPT = 16;
const replies = new Map(); // of questions that were looked at, the oldest are forgotten

function asked(path, body, language) {
  const place = JSON.stringify([path, body, language]);
  if (!replies.has(place)) {
    replies.set(place, ask(path, body));
    replies.get(place).catch(() => replies.delete(place));
    if (replies.size > KEPT) replies.delete(replies.keys().next().value);
  }
  return replies.get(place);
}

/** A part that is asked for when it is opened, and stays open from one answer to the next. */
function opening(key, view, app, { path, body, draw }) {
  const place = h("div", {});
  const node = h("details", { class: "part folded", open: view.open.has(key) },
    h("summary", {}, h("h2", {}, app.t(key))), place);
  node.addEventListener("toggle", async () => {
    view.open[node.open ? "add" : "delete"](key);
    if (!node.open) return;
    refill(place, h("p", { class: "soft" }, app.t("asking")));
    const shown = await asked(path, body, app.language).then(draw, (error) => h("p", { class: "error" }, error.message));
    refill(place, shown);
  });
  return node;
}

const WRITTEN = {
  "micro-batch": (value) => count(Number(value)), "seq-len": (value) => count(Number(value)), "gpus": gpusText,
};

/** The table of verdicts, each a button that applies its place; `held`: the values of the question, by option. */
function heatMap({ down, across, rows, cells }, held, app, apply) {
  const { t, named } = app;
  const said = (name, value) => (value === null ? t("as_stored") : (WRITTEN[name] ?? String)(value));
  const label = (name, value) => (name === "gpus" ? said(name, value) : `${t(`option.${name}`)} ${said(name, value)}`);
  const cell = (one, row, column) => {
    const change = `${label(down, row)}, ${label(across, column)}`;
    if (!one.verdict) return h("td", {}, h("span", { class: "place", title: one.said }, "–"));
    const figure = one.concurrency >= 1 ? t("holds", { sequences: rounded(one.concurrency) }) : bytes(one.needed_bytes, 1);
    const current = held[down] === row && held[across] === column;
    const word = named("verdict", one.verdict);
    return h("td", {}, button([h("b", {}, figure), " ", h("small", {}, word)], () => apply({ apply: one.apply, change }),
      { class: `place ${named("tone", one.verdict)}`, title: change, "aria-current": current ? "true" : null, "aria-label": `${change}: ${figure} ${word}` }));
  };
  return [
    h("p", { class: "soft" }, t("matrix.about")),
    frame(t("matrix"), h("table", { class: "heat" },
      h("thead", {}, h("tr", {}, h("td", {}, across === "gpus" ? null : t(`option.${across}`)), rows[1].map((column) => h("th", { scope: "col" }, said(across, column))))),
      h("tbody", {}, cells.map((row, index) => h("tr", {},
        h("th", { scope: "row" }, index ? said(down, rows[0][index]) : label(down, rows[0][index])),
        row.map((one, place) => cell(one, rows[0][index], rows[1][place]))))))),
  ];
}

/** The parts of an answer of `command` to a question, given as the service takes it. */
export function looksParts({ command, answer, body, view, apply }, app) {
  const { workload, gpus } = answer.question;
  const held = workload ? { "micro-batch": String(workload.micro_batch), "seq-len": String(workload.seq_len) }
    : { gpus, weights: body.weights ?? null };
  const matrix = opening(command === "train" ? "matrix.train" : "matrix.serve", view, app, {
    path: "/api/matrix", body: { command, question: body }, draw: (found) => heatMap(found, held, app, apply) });
  const step = command === "train" && opening("step.course", view, app, {
    path: "/api/step", body: { question: body }, draw: ({ devices: [device] }) => timelinePart(device, app) });
  return [matrix, step || null];
}
