/** A text field with suggestions: the combobox of the ARIA authoring practices, with a list of its own. */

import { h, uniqueId } from "../dom.js";

const MOST = 400; // a list that is scrolled; every card and machine is in it

/** Rows whose name or note holds every word typed; names that begin so come first, shorter ones before longer ones. */
export function matching(rows, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const holds = ({ name, title = "", note = "" }) =>
    words.every((word) => `${name} ${title} ${note}`.toLowerCase().includes(word));
  const rank = ({ name }) => (name === text ? 0 : words.length && name.startsWith(words[0]) ? 1 : 2);
  const shorter = (one, other) => (words.length ? one.name.length - other.name.length : 0);
  return rows.filter(holds).sort((one, other) => rank(one) - rank(other) || shorter(one, other)).slice(0, MOST);
}

class Combo {
  #given;
  #list;
  #count = h("span", { class: "unseen", "aria-live": "polite" });
  #at = -1; // the suggestion that the arrow keys are on

  constructor(given) {
    const { id, name } = given;
    this.#given = given;
    const list = { class: "suggestions", role: "listbox", id: uniqueId("list"), hidden: true, "aria-label": name };
    this.#list = h("ul", list);
    this.control = h("input", {
      id, name, type: "text", role: "combobox", "aria-expanded": "false", "aria-controls": this.#list.id,
      "aria-autocomplete": "list", autocomplete: "off", spellcheck: "false", autocapitalize: "off",
    });
    this.node = h("div", { class: "combo" }, this.control, this.#list, this.#count);
    this.#listen();
  }

  #listen() {
    const { control } = this;
    const { changed } = this.#given;
    control.addEventListener("input", () => {
      this.#open(control.value);
      changed(control.value, false);
    });
    control.addEventListener("change", () => changed(control.value, true));
    control.addEventListener("focus", () => control.select());
    control.addEventListener("pointerup", () => this.#list.hidden && this.#openWhole());
    control.addEventListener("blur", () => this.#close());
    control.addEventListener("keydown", (event) => this.#pressed(event));
  }

  #pressed(event) {
    const last = this.#list.children.length - 1;
    const acts = {
      ArrowDown: () => (this.#list.hidden ? this.#openWhole() : this.#mark(Math.min(this.#at + 1, last))),
      ArrowUp: () => this.#mark(Math.max(this.#at - 1, 0)),
      Escape: () => this.#close(),
      Enter: () => (this.#at < 0 ? this.#close() : this.#take(this.#list.children[this.#at].dataset.name)),
    };
    const act = acts[event.key];
    if (!act || (this.#list.hidden && event.key !== "ArrowDown")) return;
    event.preventDefault();
    act();
  }

  #close() {
    this.#list.hidden = true;
    this.control.setAttribute("aria-expanded", "false");
    this.#mark(-1);
  }

  #take(name) {
    this.control.value = name;
    this.#close();
    this.#given.changed(name, true);
  }

  #mark(index) {
    this.#at = index;
    [...this.#list.children].forEach((option, place) => option.setAttribute("aria-selected", String(place === index)));
    const option = this.#list.children[index];
    if (option) this.control.setAttribute("aria-activedescendant", option.id);
    else this.control.removeAttribute("aria-activedescendant");
    option?.scrollIntoView({ block: "nearest" });
  }

  #option({ name, title = name, note }) {
    const taken = (event) => {
      event.preventDefault(); // the field keeps the focus
      this.#take(name);
    };
    return h("li",
      { role: "option", id: uniqueId("option"), "data-name": name, "aria-selected": "false", onpointerdown: taken },
      h("span", {}, title), note ? h("small", {}, note) : null);
  }

  /** Every suggestion, at the one that is chosen. */
  #openWhole() {
    this.#open("");
    this.#mark([...this.#list.children].findIndex((option) => option.dataset.name === this.control.value));
  }

  #open(text) {
    const found = matching(this.#given.rows(), text);
    this.#list.replaceChildren(...found.map((row) => this.#option(row)));
    this.#mark(-1);
    this.#list.hidden = !found.length;
    this.control.setAttribute("aria-expanded", String(Boolean(found.length)));
    this.#count.textContent = this.#given.t("suggestions", { count: found.length });
  }
}

/**
 * The field.
 *
 * @param {{id: string, name: string, rows: () => {name: string, title?: string, note?: string}[],
 *          changed: (value: string, done: boolean) => void, t}} given
 * @returns {{node, control}}  `node` holds the control and its list
 */
export function combo(given) {
  return new Combo(given);
}
