/** The row of controls above a table: a text to search for, and choices. */

import { h, settled, uniqueId } from "../dom.js";

const WAIT_MS = 120; // between a keystroke and rows

function control(spec, changed) {
  const id = uniqueId("filter");
  const tell = (event) => changed(spec.name, event.target.value);
  const node = spec.choices
    ? h("select", { id, name: spec.name, onchange: tell },
        h("option", { value: "" }, spec.any), spec.choices.map(([value, text]) => h("option", { value }, text)))
    : h("input", {
        id, name: spec.name, type: "search", inputmode: spec.inputmode, placeholder: spec.placeholder,
          autocomplete: "off",
        spellcheck: "false", oninput: settled(tell, WAIT_MS),
      });
  return { node, field: h("div", { class: `field ${spec.kind ?? ""}` }, h("label", { for: id }, spec.label), node) };
}

/**
 * The controls.
 *
 * @param {{name: string, label: string, choices?: [string, string][], any?: string, placeholder?: string}[]} specs
 * @param {(values: Object<string, string>) => void} changed
 * @returns {{node, set(values), values}}  `count` is where the page says how many rows there are
 */
export function filters(specs, changed) {
  const values = {};
  const controls = Object.fromEntries(
    specs.map((spec) => [spec.name, control(spec, (name, value) => {
      values[name] = value.trim();
      changed(values);
    })]),
  );
  const count = h("p", { class: "soft count", role: "status" });
  const node = h("form", { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() },
    Object.values(controls).map(({ field }) => field), count);
  const set = (given) => {
    for (const [name, one] of Object.entries(controls)) {
      values[name] = given[name] ?? "";
      if (one.node.value.trim() !== values[name]) one.node.value = values[name];
    }
  };
  return { node, set, values, count };
}
