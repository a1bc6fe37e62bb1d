/** What takes its time says so: for how long already, and a way to call it off. */

import { h } from "../dom.js";
import { button } from "./part.js";

const TICK_MS = 1000;

/**
 * A line that counts seconds.
 *
 * @param {{said: (seconds: number) => string, cancel: () => void, t}} given
 * @returns {{node, stop()}}
 */
export function working({ said, cancel, t }) {
  const begun = performance.now();
  const text = h("span", { "aria-hidden": "true" });
  const tick = () => { text.textContent = said(Math.floor((performance.now() - begun) / TICK_MS)); };
  const timer = setInterval(tick, TICK_MS);
  tick();
  const node = h("div", { class: "working" }, h("div", { class: "busy" }), text, button(t("cancel"), cancel));
  return { node, stop: () => clearInterval(timer) };
}
