/** What the pages gpus and instances share: rows of the catalogue, searched, sorted, opened, and an address for it. */

import { askOnce } from "../backend.js";
import { heldNow } from "../carried.js";
import { h } from "../dom.js";
import { bytes, money } from "../format.js";
import { questionOf, questionText } from "../hash.js";
import { dataTable, holding } from "../parts/data_table.js";
import { filters } from "../parts/filters.js";

const EXAMPLE = "llama-3.1-8b"; // the model that questions about a card begin with

const scaled = (factor, unit) => (value) => `${Number((value / factor).toPrecision(4)).toLocaleString("en-US")} ${unit}`;

/** End of a field's name -> its figure with a unit; the first that fits. */
const UNITS = [
  [/_bytes_per_s$/, scaled(1e9, "GB/s")], [/_bytes$/, (value) => bytes(value)], [/_flops$/, scaled(1e12, "TFLOPS")],
  [/_w$/, (value) => `${value.toLocaleString("en-US")} W`], [/(?<=per_hour)$/, (value, { currency }) => money(value, currency)],
];

/** A text with its addresses as links. */
function linked(text) {
  return text.split(/(https?:\/\/[^\s;,)]+)/).map((part, index) =>
    (index % 2 ? h("a", { href: part, rel: "noopener noreferrer", target: "_blank" }, part) : part));
}

/** Everything the catalogue says of a row: [name, figure or text]; what holds more is told part by part. */
function factsOf(row, t, before = "") {
  return Object.entries(row).flatMap(([key, value]) => {
    const name = `${before}${t(`fact.${key}`)}`;
    if (value !== null && typeof value === "object" && !Array.isArray(value)) return factsOf(value, t, `${name}, `);
    const [, written] = (typeof value === "number" && UNITS.find(([end]) => end.test(key))) || [];
    const text = Array.isArray(value) ? value.join(", ") : typeof value === "number" ? value.toLocaleString("en-US") : String(value);
    return [[name, written ? written(value, row) : linked(text)]];
  });
}

/** The same as a list. */
function facts(row, t) {
  return h("dl", { class: "behind" }, factsOf(row, t).map(([name, value]) =>
    [h("dt", {}, name), h("dd", { class: "number-left" }, value)]));
}

/** Links that take a card or a machine into a question. */
export function askingLinks(name, t) {
  const link = (page) => h("a", {
    href: `#/${page}?${questionText({ model: heldNow().model ?? EXAMPLE, gpus: name })}`,
      "aria-label": t("ask.on", { page: t(`page.${page}`), name }),
  }, t(`page.${page}`));
  return h("span", { class: "links" }, link("train"), link("serve"));
}

/** Values of a field of all rows, as choices. */
export function choicesOf(rows, value) {
  return [...new Set(rows.map(value).filter(Boolean))].sort().map((name) => [name, name]);
}

/** "price,down" of an address as a table takes it. */
function sortOf(text) {
  const [key, direction] = (text ?? "").split(",");
  return key ? { key, down: direction === "down" } : null;
}

/**
 * A page of the catalogue.
 *
 * @param {{page: string, path: string, sort: {key: string, down: boolean},
 *          rowsOf: (reply) => object[], text: (row) => string, command: string,
 *          columns: (t) => object[], specs: (rows, t) => object[], kept: (values) => (row) => boolean}} about
 *   `text`: where the search looks; `kept`: rows that the other filters leave
 * @returns show(root, app, route), see pages.js
 */
export function catalogue(about) {
  let last = "";
  return async (root, app, route) => {
    const { t } = app;
    const rows = about.rowsOf(await askOnce(about.path));
    let values = {};
    const fill = () => {
      const found = holding(rows.filter(about.kept(values)), values.query ?? "", about.text);
      controls.count.textContent = t("rows.count", { shown: found.length, count: rows.length });
      shown.show(found);
    };
    const address = () => {
      last = questionText(values);
      return { page: about.page, queries: last ? [last] : [] };
    };
    const changed = (now) => {
      values = { ...values, ...now };
      app.go(address(), { replace: true });
      fill();
    };
    const controls = filters(about.specs(rows, t), changed);
    const update = ({ queries: [query = ""] }) => {
      values = questionOf(query || last);
      controls.set(values);
      fill();
    };
    const shown = dataTable({
      caption: t(`title.${about.page}`), columns: about.columns(t), t, name: (row) => row.name, detail: (row) => facts(row, t),
      sort: sortOf(questionOf(route.queries[0] ?? last).sort) ?? about.sort,
      resorted: ({ key, down }) => changed({ sort: down ? `${key},down` : key }),
    });
    root.append(
      h("h1", {}, t(`title.${about.page}`)),
      h("p", { class: "soft about" }, t(`${about.page}.about`, { command: about.command })),
      h("section", { class: "part" }, controls.node, shown.node),
    );
    update(route);
    return { update, leave: () => {} };
  };
}
