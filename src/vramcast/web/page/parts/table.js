/** Plain tables: figures flush right, wide ones scroll inside their own frame. */

import { h } from "../dom.js";

/** The frame that a wide table scrolls in; it takes the focus, so that keys can scroll it. */
export function frame(name, table) {
  return h("div", { class: "table", tabindex: "0", role: "region", "aria-label": name }, table);
}

/**
 * A table.
 *
 * @param {{caption?: string, columns: {name: string, number?: boolean}[], rows: (any[])[]}} given
 *   cells are texts or elements; the first of a row is its heading
 */
export function table({ caption, columns, rows }) {
  const kind = (index) => (columns[index]?.number ? "number" : null);
  const cell = (content, index) => (index
    ? h("td", { class: kind(index) }, content)
    : h("th", { scope: "row", class: kind(0) }, content));
  const names = columns.map(({ name }) => name);
  return frame(caption ?? names.join(", "), h("table", {},
    caption ? h("caption", { class: "unseen" }, caption) : null,
    h("thead", {}, h("tr", {}, names.map((name, index) => h("th", { scope: "col", class: kind(index) }, name)))),
    h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map(cell))))));
}
