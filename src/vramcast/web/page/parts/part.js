/** The smallest pieces that pages share: a part with its heading, a button, a list of texts. */

import { h } from "../dom.js";

/** A part of a page under a heading; `title` may be a text or several nodes. */
export function part(title, ...children) {
  return h("section", { class: "part" }, h("h2", {}, title), children);
}

/** A button. */
export function button(text, onclick, attributes = {}) {
  return h("button", { type: "button", onclick, ...attributes }, text);
}

/** Sentences as a list; nothing where there are none. */
export function texts(list, kind = "") {
  return list.length ? h("ul", { class: `texts ${kind}` }, list.map((text) => h("li", {}, text))) : null;
}
