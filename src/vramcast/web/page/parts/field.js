/** One field of a form: a label, a control, the option's help, and its error. */

import { h, uniqueId } from "../dom.js";
import { hasWords } from "../words.js";

const MODES = { count: "text", amount: "text", number: "decimal", names: "text", text: "text" };

/** What is said of a choice that the question cannot have: what is set with it, or that nothing helps. */
function marked(text, refused, t) {
  if (!refused) return text;
  const { cure } = refused;
  return cure ? t("choice.with", { value: text, cure: cureText(cure, t) }) : t("choice.none", { value: text });
}

/** What makes a choice possible, in the words of the form: "Engine pytorch". */
export function cureText(cure, t) {
  const named = (name) => (hasWords(`option.${name}`) ? t(`option.${name}`) : name);
  return Object.entries(cure).map(([name, value]) => `${named(name)} ${value}`).join(", ");
}

function selected(spec, t, id) {
  const flag = spec.kind === "flag";
  const named = (value) => (flag ? t(value === "true" ? "yes" : "no") : value);
  const unset = h("option", { value: "" }, t("default"));
  const values = flag ? ["true", "false"] : spec.choices;
  const control = h(
    "select",
    { id, name: spec.name },
    unset,
    values.map((value) => h("option", { value }, named(value))),
  );
  let held = "";
  const says = (whole) => {
    unset.textContent = held === "" ? t("default") : whole ? t("default.is", { value: named(held) }) : named(held);
  };
  control.addEventListener("focus", () => says(true)); // among its choices the default is called so
  control.addEventListener("blur", () => says(false));
  const assumed = (value) => {
    held = value;
    says(document.activeElement === control);
  };
  const mark = (refused) => {
    for (const option of [...control.options].filter(({ value }) => value !== "")) {
      const found = refused.find(({ value }) => value === option.value);
      option.textContent = marked(named(option.value), found, t);
      option.title = found?.said ?? "";
      option.disabled = Boolean(found && !found.cure) && !option.selected;
    }
  };
  return { control, assumed, mark };
}

function typed(spec, t, id) {
  const control = h("input", {
    id,
    name: spec.name,
    type: "text",
    inputmode: MODES[spec.kind],
    autocomplete: "off",
    spellcheck: "false",
    autocapitalize: "off",
  });
  return {
    control,
    assumed: (value) => {
      control.placeholder = value === "" ? t("default") : value;
    },
    mark: () => {},
  };
}

/** Names what describes a control to a screen reader. */
function describe(control, ids) {
  const given = ids.filter(Boolean).join(" ");
  if (given) control.setAttribute("aria-describedby", given);
  else control.removeAttribute("aria-describedby");
}

/**
 * A labelled control with a place for its error. `shown` is what stands there, where the control is part of more.
 *
 * @returns {{node, control, wrong}}  `wrong(text)` marks the field, `wrong("")` takes the mark away
 */
export function labelled({ label, help, control, shown = control, mono = false }) {
  const [helpId, errorId] = [uniqueId("help"), uniqueId("error")];
  const error = h("p", { class: "error", id: errorId, hidden: true });
  const node = h(
    "div",
    { class: "field" },
    h("label", { for: control.id, class: mono ? "mono" : null }, label),
    shown,
    help ? h("p", { class: "help", id: helpId }, help) : null,
    error,
  );
  const wrong = (text) => {
    error.textContent = text;
    error.hidden = !text;
    node.classList.toggle("wrong", Boolean(text));
    describe(control, [help ? helpId : "", text ? errorId : ""]);
    control.setAttribute("aria-invalid", text ? "true" : "false");
  };
  wrong("");
  return { node, control, wrong };
}

/**
 * The field of an option.
 *
 * @param spec  a row of /api/options: { name, kind, choices, help }
 * @param {(name: string, value: string, done: boolean) => void} changed  `done`: the visitor left the field
 * @param {(name: string) => void} met  the visitor came to a field with choices
 * @returns {{node, set, wrong, assumed, mark}}  `set(value)` shows a value; `assumed(value)` says what holds without one;
 *   `mark(refused)` says which choices the question cannot have
 */
export function optionField(spec, { t, label, mono, changed, met = () => {} }) {
  const id = uniqueId("field");
  const chosen = spec.kind === "choice" || spec.kind === "flag";
  const { control, assumed, mark } = chosen ? selected(spec, t, id) : typed(spec, t, id);
  const { node, wrong } = labelled({ label, help: spec.help, control, mono });
  control.addEventListener("input", () => changed(spec.name, control.value, false));
  control.addEventListener("change", () => changed(spec.name, control.value, true));
  if (spec.kind === "choice") for (const event of ["pointerenter", "focus"]) control.addEventListener(event, () => met(spec.name));
  const set = (value) => {
    if (chosen && value !== "" && ![...control.options].some((option) => option.value === value))
      control.append(h("option", { value }, value)); // a link may hold anything; the service says what is wrong with it
    if (control.value !== value) control.value = value;
    if (value === "") control.setAttribute("aria-description", t("default"));
    else control.removeAttribute("aria-description");
    node.classList.toggle("given", value !== "");
  };
  return { node, control, set, wrong, assumed, mark };
}
