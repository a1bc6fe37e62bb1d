/** Long tables: sorted by their headings, filled piece by piece as a visitor scrolls, rows that open. */

import { h, refill, uniqueId } from "../dom.js";

const PIECE = 80; // rows at a time: a screen of them and some more
const AHEAD = "600px"; // of the window, where more rows are made

/** Rows by a value, largest first where `down`; rows without one come last either way. */
export function sorted(rows, value, down) {
  const known = (row) => value(row) !== undefined && value(row) !== null && value(row) !== "";
  const order = (one, other) => {
    const [left, right] = [value(one), value(other)];
    return typeof left === "string" ? left.localeCompare(right, "en", { numeric: true }) : left - right;
  };
  const there = rows.filter(known).sort((one, other) => (down ? order(other, one) : order(one, other)));
  return [...there, ...rows.filter((row) => !known(row))];
}

/** Rows whose text holds every word typed. */
export function holding(rows, typed, text) {
  const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
  return words.length ? rows.filter((row) => words.every((word) => text(row).toLowerCase().includes(word))) : rows;
}

/** A heading that sorts. */
function heading(column, sort, act) {
  const chosen = sort?.key === column.key;
  const direction = chosen ? (sort.down ? "descending" : "ascending") : null;
  const kind = column.number ? "number" : null;
  if (!column.value) return h("th", { scope: "col", class: kind }, column.name);
  return h(
    "th",
    { scope: "col", class: kind, "aria-sort": direction, title: column.hint },
    h(
      "button",
      { type: "button", class: `sorts ${direction ?? ""}`, "data-key": `sort ${column.key}`,
        onclick: () => act(column) },
      column.name,
    ),
  );
}

/**
 * The table.
 *
 * @param {{caption: string, columns: object[], rows?: object[], sort?: {key: string, down: boolean}, t,
 *          name: (row) => string, detail?: (row) => Node, resorted?: (sort) => void,
 *          pressed?: (row) => void, piece?: number}} given
 *   a column is { key, name, number?, down?, hint?, value?(row) to sort by, cell?(row) to show }, `down`: largest first
 *   at the first click; `name` tells rows apart; `detail` is what a row opens; `pressed`: a row acts instead of opening;
 *   `piece`: so many rows, then all of them at a wish
 * @returns {{node, show(rows), choose(name)}}
 */
export function dataTable(given) {
  return new DataTable(given);
}

class DataTable {
  #given;
  #sort;
  #rows = [];
  #shown = 0; // rows in the document
  #open = new Set();
  #head = h("thead");
  #body = h("tbody");
  #more = h("p", { class: "more-rows" });
  #near = new IntersectionObserver(([{ isIntersecting }]) => isIntersecting && this.#grow(), { rootMargin: AHEAD });

  constructor(given) {
    this.#given = given;
    this.#sort = given.sort ?? null;
    this.node = h(
      "div",
      { class: "long" },
      h(
        "div",
        { class: "table", tabindex: "0", role: "region", "aria-label": given.caption },
        h("table", { class: "data" }, h("caption", { class: "unseen" }, given.caption), this.#head, this.#body),
      ),
      this.#more,
    );
    if (given.rows) this.show(given.rows);
  }

  /** Shows other rows. */
  show(rows) {
    const { columns } = this.#given;
    const by = columns.find(({ key }) => key === this.#sort?.key);
    this.#rows = by ? sorted(rows, by.value, this.#sort.down) : rows;
    refill(this.#head, h("tr", {}, columns.map((column) => heading(column, this.#sort,
      (one) => this.#resort(one, rows)))));
    this.#shown = 0;
    this.#body.replaceChildren();
    this.#grow();
  }

  /** Marks a row and brings it into view. */
  choose(name) {
    const at = this.#rows.findIndex((row) => this.#given.name(row) === name);
    if (at < 0) return;
    while (this.#shown <= at) this.#grow();
    for (const line of this.#body.querySelectorAll(".chosen")) line.classList.remove("chosen");
    const line = [...this.#body.children].find(({ dataset }) => dataset.row === name);
    line.classList.add("chosen");
    line.scrollIntoView({ block: "nearest" });
    line.focus({ preventScroll: true });
  }

  #resort(column, rows) {
    const { key, down = false } = column;
    this.#sort = { key, down: this.#sort?.key === key ? !this.#sort.down : down };
    this.show(rows);
    this.#given.resorted?.(this.#sort);
  }

  #grow() {
    const { t } = this.#given;
    const size = this.#shown && this.#given.piece ? this.#rows.length : (this.#given.piece ?? PIECE);
    const piece = this.#rows.slice(this.#shown, this.#shown + size);
    this.#body.append(...piece.flatMap((row) => this.#lines(row)));
    this.#shown += piece.length;
    const rest = this.#rows.length - this.#shown;
    this.#more.hidden = !rest;
    this.#near.disconnect(); // it tells of changes alone: where rows are sorted anew the end may be near from the start
    if (rest && !this.#given.piece) this.#near.observe(this.#more);
    refill(
      this.#more,
      rest
        ? h("button", { type: "button", class: "link", onclick: () => this.#grow() }, t("rows.more", { count: rest }))
        : null,
    );
  }

  /** A row, and what it opens. */
  #lines(row) {
    const { columns, name, detail, pressed } = this.#given;
    const known = name(row);
    const below = detail ? h("tr", { class: "opened", hidden: true }) : null;
    const presses = (content) => h("button", { type: "button", class: "presses", onclick: () => pressed(row) },
      content);
    const opens = below ? this.#opener(row, below) : (pressed && presses);
    const cell = ({ cell: shown, value }) => (shown ?? value)(row) ?? "";
    const cells = columns.map((column, index) => {
      const kind = column.number ? "number" : (column.kind ?? null);
      if (index) return h("td", { class: kind }, cell(column));
      return h("th", { scope: "row", class: kind }, opens ? opens(cell(column)) : cell(column));
    });
    return [h("tr", { "data-row": known, tabindex: "-1" }, cells), below].filter(Boolean);
  }

  #opener(row, below) {
    const { columns, name, detail } = this.#given;
    const known = name(row);
    const id = uniqueId("row");
    const set = (button, open) => {
      below.hidden = !open;
      button.setAttribute("aria-expanded", String(open));
      if (open) refill(below, h("td", { colspan: columns.length, id }, detail(row)));
    };
    return (content) => {
      const button = h("button", {
        type: "button", class: "opens", "aria-expanded": "false",
        onclick: () => {
          const open = !this.#open.delete(known);
          if (open) this.#open.add(known);
          set(button, open);
        },
      }, content);
      if (this.#open.has(known)) set(button, true);
      return button;
    };
  }
}
