/** One question for all pages of a visit: what is asked of one page holds for the next. Nothing here touches the document. */

/** Command -> the option that names the hardware. */
const HARDWARE = { "train": "gpus", "serve": "gpus", "plan train": "on", "plan serve": "on" };

/** What is trained or served -> its load, in options that plans and searches share. */
const LOAD = {
  train: ["seq-len", "global-batch", "tokens"],
  serve: ["context", "concurrency", "input-len", "output-len"],
};
const ONE = /^(?:\d+x){0,2}[\w.-]+(?::[\w.-]+)?$/; // one cluster: neither a list nor a whole provider
const WHOLE = /^[a-z]+$/i; // a provider or "any": cards and machines have a number or a dash in their names

let held = {};

const purposeOf = (command) => command.split(" ").at(-1);
const isOne = (text = "") => ONE.test(text) && !WHOLE.test(text);

/** Keeps a model and the hardware it is on. */
export function holdPlace({ model, hardware }) {
  held = { ...held, ...(model && { model }), ...(isOne(hardware) && { hardware }) };
}

/** Keeps what a page was asked. */
export function hold(command, question) {
  const purpose = purposeOf(command);
  holdPlace({ model: question.model, hardware: question[HARDWARE[command]] });
  held = { ...held, [purpose]: Object.fromEntries(LOAD[purpose].map((name) => [name, question[name]])) };
}

/** What is held of model and hardware. */
export function heldNow() {
  return held;
}

/**
 * A question of a page with what the visitor asked of others.
 *
 * @param {string} command
 * @param {object} own  what the page was last asked, or its example
 */
export function carried(command, own) {
  const next = { ...own, ...held[purposeOf(command)] };
  if (held.model) next.model = held.model;
  if (held.hardware) next[HARDWARE[command]] = held.hardware;
  return Object.fromEntries(Object.entries(next).filter(([, value]) => value !== undefined));
}
