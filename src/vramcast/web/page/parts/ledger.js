/** The ledger of a rank as a tree: category, entry, and behind an entry its formula, basis and source. */

import { h, svg } from "../dom.js";
import { count, partOf, sizes } from "../format.js";
import { byCategory } from "./memory_bars.js";
import { button } from "./part.js";
import { categoryClass, swatch } from "./scale.js";

const SHOWN = 6;

/** Entries of a category, largest first. */
function entriesOf(ledger, category) {
  return ledger.filter(({ path, bytes: size }) => path.split("/")[0] === category && size > 0)
    .sort((one, other) => other.bytes - one.bytes);
}

const cell = (content, kind = null) => h("span", { role: "gridcell", class: kind }, content);

function share(size, total, category) {
  return h("span", { class: "share" },
    svg("svg", { class: "share-bar", viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" },
      svg("rect", { class: categoryClass(category), width: (100 * size) / total, height: 8 })),
    h("span", { class: "number" }, partOf(size / total)));
}

function formulaOf({ bytes: size, count: times = 1, formula }) {
  if (!formula) return null;
  return `${times === 1 ? formula : `${count(times)} x (${formula})`} = ${count(size)} B`;
}

/** What stands behind an entry. */
function behind(entry, t) {
  const rows = [
    ["formula", formulaOf(entry)], ["basis", t(`basis.${entry.basis}`)], ["source", entry.source], ["path", entry.path],
  ].filter(([, value]) => value);
  const kind = (name) => (name === "formula" || name === "path" ? "mono" : null);
  const list = rows.map(([name, value]) => [h("dt", {}, t(name)), h("dd", { class: kind(name) }, value)]);
  return h("div", { role: "row", "aria-level": 3 }, h("div", { role: "gridcell" }, h("dl", { class: "behind" }, list)));
}

/** The lines of one rank's ledger. */
class Tree {
  #ledger;
  #total;
  #size;
  #open;
  #app;

  constructor(rank, open, app) {
    this.#ledger = rank.ledger;
    this.#total = rank.peak.device_bytes;
    this.#size = sizes([this.#total]);
    this.#open = open;
    this.#app = app;
  }

  #toggled(key) {
    if (!this.#open.delete(key)) this.#open.add(key);
    this.#app.again();
  }

  #line({ level, key, name, size, category }) {
    const open = this.#open.has(key);
    const state = { "aria-expanded": String(open) };
    const opens = button(name, () => this.#toggled(key), { class: "opens", "data-key": key, ...state });
    return h("div", { class: `line line-${level}`, role: "row", "aria-level": level, ...state },
      cell(opens), cell(this.#size(size), "number"), cell(share(size, this.#total, category)));
  }

  #entry(entry, category) {
    const key = `entry ${entry.path}`;
    const name = [entry.path.slice(category.length + 1) || category,
      entry.count > 1 ? h("small", {}, `x ${entry.count}`) : null];
    return [this.#line({ level: 2, key, name, size: entry.bytes, category }),
      this.#open.has(key) ? behind(entry, this.#app.t) : null];
  }

  /** The line of what is not shown yet. */
  #rest(entries, key) {
    const size = entries.reduce((sum, entry) => sum + entry.bytes, 0);
    const more = button(this.#app.t("others", { count: entries.length }), () => this.#toggled(key),
      { class: "link", "data-key": key });
    return h("div", { role: "row", "aria-level": 2, class: "line line-2" }, cell(more), cell(this.#size(size), "number"));
  }

  category([category, size]) {
    const [key, every] = [`category ${category}`, `every ${category}`];
    const entries = entriesOf(this.#ledger, category);
    const name = [swatch(category), this.#app.named("category", category), h("small", {}, entries.length)];
    const shown = this.#open.has(every) ? entries : entries.slice(0, SHOWN);
    const hidden = entries.slice(shown.length);
    return [this.#line({ level: 1, key, name, size, category }),
      this.#open.has(key) ? shown.map((entry) => this.#entry(entry, category)) : null,
      this.#open.has(key) && hidden.length ? this.#rest(hidden, every) : null];
  }
}

/**
 * The tree.
 *
 * @param rank  a rank of the answer
 * @param {{open: Set<string>}} view  what is open; the tree changes it and asks to be drawn again
 * @param {{t, named, again: () => void}} app
 */
export function ledgerTree(rank, view, app) {
  const { t } = app;
  const tree = new Tree(rank, view.open, app);
  const head = ["entry", "memory", "share"].map((name) =>
    h("span", { role: "columnheader", class: name === "memory" ? "number" : null }, t(name)));
  const categories = byCategory(rank.ledger).sort((one, other) => other[1] - one[1]);
  return h("div", { class: "ledger", role: "treegrid", "aria-label": t("ledger") },
    h("div", { class: "line head", role: "row" }, head),
    categories.map((one) => tree.category(one)),
    h("div", { class: "line total", role: "row" },
      cell(t("total")), cell(sizes([rank.peak.device_bytes])(rank.peak.device_bytes), "number"), cell(null)));
}
