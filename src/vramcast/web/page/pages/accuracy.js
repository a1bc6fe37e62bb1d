/** Every measured case beside its prediction: groups, charts, cases. */

import { askOnce } from "../backend.js";
import { h, refill } from "../dom.js";
import { bytes, count, percent, seconds } from "../format.js";
import { questionOf, questionText } from "../hash.js";
import { roundSizes } from "../parts/axes.js";
import { dataTable, holding } from "../parts/data_table.js";
import { filters } from "../parts/filters.js";
import { part } from "../parts/part.js";
import { histogram, scatter, signed } from "../parts/truth_charts.js";
import { caseColumns, groupColumns, levelName, valueText } from "../parts/truth_tables.js";
import { groupOf, grouped, measure, statistics } from "../truth_statistics.js";
import { choicesOf } from "./catalogue.js";

const FIRST_GROUPS = 12;
const KINDS = ["memory", "time", "number"];
const AXES = {
  memory: { write: (value) => bytes(value, 0), round: roundSizes },
  time: { write: seconds },
  number: { write: count },
};
const SHOWN = {
  predicted: ({ error }) => error !== undefined,
  refused: ({ error }) => error === undefined,
  under: ({ error }) => error !== undefined && error < -0.05,
};

const share = (value) => percent(value, value < 0.0995 ? 2 : 1);
const keyOf = ({ group, level }) => `${group} / ${level}`;
let last = ""; // what was filtered before another page

/** Group and level -> errors of the cases that count. */
function errorsByGroup(cases) {
  const errors = new Map();
  for (const one of cases.filter(({ error, mark }) => error !== undefined && !mark)) {
    const key = keyOf({ group: groupOf(one), level: one.level });
    if (!errors.has(key)) errors.set(key, []);
    errors.get(key).push(one.error);
  }
  return errors;
}

/** Cases that the filters leave, without the search. */
function matching({ group, level, shown }) {
  return (one) => (!group || groupOf(one) === group || one.group === group) && (!level || one.level === level)
    && (SHOWN[shown]?.(one) ?? true);
}

/** A case on the axes of a chart: plain sizes of one kind. */
function placed(cases, kind) {
  return cases.flatMap((one) => {
    const { kind: own, factor } = measure(one.unit);
    const there = own === kind && one.error !== undefined && !one.mark && one.measured > 0 && one.predicted > 0;
    return there ? [{ name: one.id, error: one.error, measured: one.measured * factor,
      predicted: one.predicted * factor, one }] : [];
  });
}

function figuresOf(cases, t) {
  const found = statistics(cases.filter(({ mark }) => !mark));
  const left = cases.filter(({ mark }) => mark).length || undefined;
  const said = [["cases", found.cases, count], ["uncounted", left, count],
    ["predicted", found.predicted, count], ["median", found.median, share], ["p95", found.p95, share], ["worst", found.worst, signed], ["under", found.under, percent]];
  return h("dl", { class: "figures", "aria-label": t("accuracy.figures") },
    said.filter(([, value]) => value !== undefined).map(([key, value, write]) =>
      h("div", {}, h("dt", {}, t(key)), h("dd", { class: "number", "data-figure": key }, write(value)))));
}

function legend(t) {
  return h("ul", { class: "legend" }, ["right", "under", "over"].map((kind) =>
    h("li", {}, h("span", { class: `dot ${kind}` }), t(`legend.${kind}`))));
}

/** Predicted against measured, of the kind of figure that the most cases have, or the one chosen. */
function pointsPart(cases, state, { t, chosen, again }) {
  const counts = KINDS.map((kind) => [kind, placed(cases, kind)]).filter(([, places]) => places.length);
  if (!counts.length) return part(t("accuracy.scatter"), h("p", { class: "soft" }, t("none.shown")));
  const [kind, places] = counts.find(([name]) => name === state.kind) ?? counts[0];
  const said = h("p", { class: "told soft" }, t("points.hint"));
  const read = ({ one, error }) =>
    `${one.name}: ${valueText(one.predicted, one)} / ${valueText(one.measured, one)} (${signed(error)})`;
  const told = (place) => { said.textContent = place ? read(place) : t("points.hint"); };
  const tabs = counts.map(([name, all]) => h("button", {
    type: "button", "aria-pressed": String(name === kind), "data-key": `kind ${name}`,
    onclick: () => { state.kind = name; again(); },
  }, `${t(`kind.${name}`)} ${all.length}`));
  return part(t("accuracy.scatter"), h("div", { class: "buttons kinds", role: "group",
    "aria-label": t("accuracy.scatter") }, tabs),
    scatter({ cases: places, ...AXES[kind], names: { across: t("value.measured"), up: t("value.predicted") },
      label: t("points.label", { count: places.length, kind: t(`kind.${kind}`) }), told,
        chosen: ({ one }) => chosen(one) }),
    said, legend(t));
}

function errorsPart(cases, t) {
  const errors = cases.filter(({ error, mark }) => error !== undefined && !mark).map(({ error }) => error);
  return part(t("accuracy.errors"), errors.length
    ? histogram({ errors, names: { across: t("axis.error"), up: t("axis.cases") }, label: t("accuracy.errors") })
    : h("p", { class: "soft" }, t("none.shown")));
}

function specs(cases, t) {
  const levels = choicesOf(cases, ({ level }) => level).map(([level]) => [level, levelName(level)]);
  return [
    { name: "search", label: t("search.rows"), placeholder: "llama, lora, torchtitan", kind: "wide" },
    { name: "group", label: t("group"), any: t("any"), choices: choicesOf(cases, groupOf) },
    { name: "level", label: t("level"), any: t("any"), choices: levels },
    { name: "shown", label: t("shown"), any: t("any"), choices: Object.keys(SHOWN)
      .map((name) => [name, t(`shown.${name}`)]) },
  ];
}

class Accuracy {
  #app;
  #all;
  #errors; // by group and level
  #values = {};
  #state = {}; // kind of figure that the chart shows
  #at = { figures: h("div"), charts: h("div", { class: "charts" }) };
  #filters;
  #groups;
  #cases;

  constructor(root, app, { groups, cases }) {
    const { t } = app;
    this.#app = app;
    this.#all = cases;
    this.#errors = errorsByGroup(cases);
    this.#filters = filters(specs(cases, t), (values) => this.#changed(values));
    this.#groups = dataTable({
      caption: t("accuracy.groups"), columns: groupColumns(groups, (row) => this.#errors.get(keyOf(row)) ?? [], t), t,
      name: keyOf, piece: FIRST_GROUPS, sort: { key: "predicted", down: true }, rows: groups,
      pressed: ({ group, level }) => this.#changed({ ...this.#values, group, level, shown: "", search: "" }),
    });
    this.#cases = dataTable({
      caption: t("accuracy.cases"), columns: caseColumns(t), t, name: ({ id }) => id,
        sort: { key: "error", down: true },
    });
    root.append(
      h("h1", {}, t("title.accuracy")),
      h("p", { class: "soft about" }, t("accuracy.about", { command: "python -m truth.score" })),
      part(t("accuracy.groups"), h("p", { class: "soft" }, t("groups.hint")), this.#groups.node),
      h("section", { class: "part", "aria-label": t("accuracy.cases") }, this.#filters.node, this.#at.figures),
      this.#at.charts,
      part(t("accuracy.cases"), this.#cases.node),
    );
  }

  #changed(values) {
    this.#values = { ...values };
    last = questionText(this.#values);
    this.#app.go({ page: "accuracy", queries: last ? [last] : [] }, { replace: true });
    this.#filters.set(this.#values);
    this.#fill();
  }

  #fill() {
    const { t } = this.#app;
    const text = ({ name, group, card, source: from }) => `${name} ${group} ${card ?? ""} ${from ?? ""}`;
    const found = holding(this.#all.filter(matching(this.#values)), this.#values.search ?? "", text);
    this.#filters.count.textContent = t("rows.count", { shown: count(found.length), count: count(this.#all.length) });
    refill(this.#at.figures, figuresOf(found, t));
    const chosen = ({ id }) => this.#cases.choose(id);
    const again = () => this.#charts(found, chosen, again);
    again();
    this.#cases.show(found);
  }

  #charts(found, chosen, again) {
    const { t } = this.#app;
    refill(this.#at.charts, pointsPart(found, this.#state, { t, chosen, again }), errorsPart(found, t));
  }

  update({ queries: [query = ""] }) {
    this.#values = questionOf(query || last);
    this.#filters.set(this.#values);
    this.#fill();
  }
}

/** See pages.js. */
export async function show(root, app, route) {
  const reply = await askOnce("/api/accuracy");
  const cases = reply.cases.map((one, index) => ({ ...one, id: String(index) }));
  const view = new Accuracy(root, app, { groups: grouped(reply), cases });
  view.update(route);
  return { update: (next) => view.update(next), leave: () => {} };
}
