/** What takes its time says so: for how long already, and a way to call it off. */

import { h, refill } from "../dom.js";
import { count } from "../format.js";
import { button } from "./part.js";

const TICK_MS = 1000;

/** A line that counts seconds, and what `counted` is told. */
function working({ said, cancel, t }) {
  const begun = performance.now();
  const text = h("span", { "aria-hidden": "true" });
  let number = null;
  const tick = () => { text.textContent = said(Math.floor((performance.now() - begun) / TICK_MS), number); };
  const timer = setInterval(tick, TICK_MS);
  tick();
  const node = h("div", { class: "working" }, h("div", { class: "busy" }), text, button(t("cancel"), cancel));
  const counted = (now) => { number = now; tick(); };
  return { node, counted, stop: () => clearInterval(timer) };
}

/** What is asked of one place, one at a time: the last one counts, and may be called off. */
export class UnderWay {
  #own = null;
  #place;
  #t;

  constructor(place, t) {
    this.#place = place;
    this.#t = t;
  }

  /**
   * Asks, with a line that counts the seconds in the place.
   *
   * @param {(signal: AbortSignal, counted: (number) => void) => Promise} request
   * @param {string} key of the line's words; of those with a number `KEY.counted`
   * @returns {answer} or {error}; null where another was asked since, or it was called off, which the place then says
   */
  async asked(request, key, { comesIntoView = true } = {}) {
    this.stop();
    const own = new AbortController();
    this.#own = own;
    const line = working({ t: this.#t, cancel: () => own.abort(), said: (seconds, number) =>
      (number === null ? this.#t(key, { seconds }) : this.#t(`${key}.counted`, { seconds, number: count(number) })) });
    refill(this.#place, line.node);
    if (comesIntoView) line.node.scrollIntoView({ block: "nearest" }); // on a phone it stands below the form
    try {
      const answer = await request(own.signal, line.counted);
      if (this.#own !== own) return null;
      refill(this.#place);
      return { answer };
    } catch (error) {
      if (this.#own !== own) return null;
      if (!own.signal.aborted) return { error };
      refill(this.#place, h("p", { class: "soft", role: "status" }, this.#t("search.cancelled")));
      return null;
    } finally {
      line.stop();
    }
  }

  stop() {
    this.#own?.abort();
    this.#own = null;
  }
}

/** Why there is no answer, in its place; the command that asks for it elsewhere, where there is one. */
export function refusal(message, command, elsewhere) {
  return h("div", { class: "error-box", role: "alert" }, h("p", { class: "error" }, message),
    command ? [h("p", {}, elsewhere), h("pre", { tabindex: "0" }, command)] : null);
}
