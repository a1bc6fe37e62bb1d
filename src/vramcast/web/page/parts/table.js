/** Plain tables: figures flush right, wide ones scroll inside their own frame. */

import { h } from "../dom.js";
import { sizes } from "../format.js";

/** The frame that a wide table scrolls in; it takes the focus, so that keys can scroll it. */
export function frame(name, table) {
  return h("div", { class: "table", tabindex: "0", role: "region", "aria-label": name }, table);
}

/**
 * A table.
 *
 * @param {{caption?: string, columns: {name: string, number?: boolean, bytes?: boolean}[], rows: (any[])[]}} given
 *   cells are texts or elements, of `bytes` also numbers, which are written in one unit; the first of a row is its
 *   heading
 */
export function table({ caption, columns, rows }) {
  const kind = (index) => (columns[index]?.number || columns[index]?.bytes ? "number" : null);
  const isNumber = (content) => typeof content === "number";
  const written = columns.map(({ bytes }, index) => bytes && sizes(rows.map((cells) => cells[index]).filter(isNumber)));
  const said = (content, index) => (written[index] && isNumber(content) ? written[index](content) : content);
  const cell = (content, index) => (index
    ? h("td", { class: kind(index) }, said(content, index))
    : h("th", { scope: "row", class: kind(0) }, said(content, index)));
  const names = columns.map(({ name }) => name);
  return frame(caption ?? names.join(", "), h("table", {},
    caption ? h("caption", { class: "unseen" }, caption) : null,
    h("thead", {}, h("tr", {}, names.map((name, index) => h("th", { scope: "col", class: kind(index) }, name)))),
    h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map(cell))))));
}
