/** The GPUs of a question, "2x8xh100-sxm-80gb" or "4xaws:p5.48xlarge", as three fields. */

import { h, uniqueId } from "../dom.js";
import { combo } from "./combo.js";
import { labelled } from "./field.js";

const WRITTEN = /^(?:(\d+)x)?(?:(\d+)x)?(.*)$/s;

/** Whether a name is that of a machine for rent: it says itself how many cards it has. */
const isInstance = (card) => card.includes(":");

/** The parts of what --gpus takes. */
export function gpusOf(text) {
  const [, first, second, card] = WRITTEN.exec(text);
  if (second !== undefined) return { machines: first, each: second, card };
  return isInstance(card)
    ? { machines: first ?? "", each: "", card }
    : { machines: "", each: first ?? "", card };
}

/** The same as one text. */
export function gpusText({ machines, each, card }) {
  if (card === "") return "";
  const several = machines !== "" && machines !== "1";
  const cards = isInstance(card) ? "" : several ? each || "1" : each;
  return [several ? machines : "", cards, card].filter((part) => part !== "").join("x");
}

function counted(label, told) {
  const id = uniqueId("field");
  const control = h("input", { id, type: "text", inputmode: "numeric", autocomplete: "off", placeholder: "1" });
  control.addEventListener("input", () => told(false));
  control.addEventListener("change", () => told(true));
  return labelled({ label, control });
}

class GpusField {
  #machines;
  #each;
  #card; // the control with suggestions
  #field;
  #changed;

  constructor({ rows, help, t, changed }) {
    const told = (done) => this.#told(done);
    const typed = (_, done) => told(done);
    const { node: shown, control } = combo({ id: uniqueId("field"), name: "gpus", rows, t, changed: typed });
    this.#changed = changed;
    this.#machines = counted(t("machines"), told);
    this.#each = counted(t("each"), told);
    this.#card = control;
    this.#field = labelled({ label: t("card"), help, control, shown });
    this.#field.node.classList.add("wide");
    this.node = h("fieldset", { class: "gpus" }, h("legend", { class: "unseen" }, t("gpus")),
      this.#machines.node, this.#each.node, this.#field.node);
  }

  get #value() {
    const [machines, each, card] = [this.#machines.control, this.#each.control, this.#card]
      .map((control) => control.value.trim());
    return gpusText({ machines, each, card });
  }

  #fit() {
    const { control } = this.#each;
    control.disabled = isInstance(this.#card.value);
    control.placeholder = control.disabled ? "" : "1";
  }

  #told(done) {
    this.#fit();
    this.#changed("gpus", this.#value, done);
  }

  set(text) {
    if (this.#value === text) return;
    const { machines, each, card } = gpusOf(text);
    this.#machines.control.value = machines;
    this.#each.control.value = each;
    this.#card.value = card;
    this.#fit();
  }

  wrong(text) {
    this.#field.wrong(text);
  }

  assumed() {}
}

/**
 * The three fields in one group.
 *
 * @param {{rows: () => {name: string, note?: string}[], help?: string, t,
 *          changed: (name: string, value: string, done: boolean) => void}} given  `rows`: cards and instances
 */
export function gpusField(given) {
  return new GpusField(given);
}
