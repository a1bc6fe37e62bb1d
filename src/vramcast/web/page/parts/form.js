/** The form of a question, made from the service's table of options. */

import { h, uniqueId } from "../dom.js";
import { bytes, parameters } from "../format.js";
import { cardText, productText } from "../names.js";
import { hasWords } from "../words.js";
import { combo } from "./combo.js";
import { labelled, optionField } from "./field.js";
import { gpusField } from "./gpus_field.js";

/** Suggestions for the model: name, size, family. */
export function modelRows({ models }) {
  return models.map(({ name, parameters: size, family }) => ({ name, note: `${parameters(size)} ${family}` }));
}

/** Suggestions for the card: cards, then machines for rent. */
export function cardRows({ gpus }, { instances }) {
  const card = ({ name, product, visible_bytes: size }) =>
    ({ name, title: productText(product || name), note: `${bytes(size, 1)}, ${name}` });
  const machine = ({ name, gpu, gpus: number }) => ({ name, note: `${number} × ${cardText(gpu)}` });
  return [...gpus.map(card), ...instances.map(machine)];
}

function modelField({ rows, t, changed }) {
  const told = (value, done) => changed("model", value.trim(), done);
  const { node: shown, control } = combo({ id: uniqueId("field"), name: "model", rows, t, changed: told });
  const field = labelled({ label: t("option.model"), control, shown });
  field.node.classList.add("wide");
  const set = (value) => {
    if (control.value.trim() !== value) control.value = value;
  };
  return { ...field, set, assumed: () => {} };
}

/** Fields that are more than their option's kind. */
export const SPECIAL = { model: modelField, gpus: gpusField };

function grouped(options) {
  const groups = new Map();
  for (const option of options) groups.set(option.group, [...(groups.get(option.group) ?? []), option]);
  return groups;
}

/** The options of one group, closed until one of them is set. */
class Group {
  #names;
  #given = h("span", { class: "badge", hidden: true });
  #t;
  #wasOpened = false;

  constructor(name, names, fields, t) {
    this.#names = names;
    this.#t = t;
    this.node = h("details", { class: "group" },
      h("summary", {}, hasWords(`group.${name}`) ? t(`group.${name}`) : name, this.#given),
      h("div", { class: "fields" }, fields.map((field) => field.node)));
  }

  show(question) {
    const number = this.#names.filter((name) => (question[name] ?? "") !== "").length;
    this.#given.textContent = this.#t("given", { count: number });
    this.#given.hidden = !number;
    if (number && !this.#wasOpened) this.node.open = true;
    this.#wasOpened ||= number > 0; // closed again by the visitor, it stays so
  }
}

class Form {
  #fields = {};
  #groups;
  #error = h("p", { class: "error whole", hidden: true });

  constructor({ options, first, rows, special, t, changed, met }) {
    const shown = [...Object.keys(special), ...first];
    const known = Object.fromEntries(options.map((option) => [option.name, option]));
    const made = (name) => {
      const own = hasWords(`option.${name}`);
      const label = own ? t(`option.${name}`) : name;
      this.#fields[name] = Object.hasOwn(special, name)
        ? special[name]({ rows: rows[name], help: known[name]?.help, t, changed })
        : optionField(known[name], { t, label, mono: !own, changed, met });
      return this.#fields[name];
    };
    const top = shown.filter((name) => name in known).map((name) => made(name).node);
    const others = grouped(options.filter(({ name }) => !shown.includes(name)));
    this.#groups = [...others].map(([group, members]) => {
      const names = members.map(({ name }) => name);
      return new Group(group, names, names.map(made), t);
    });
    const attributes = { class: "question", "aria-label": t("question"), onsubmit: (event) => event.preventDefault() };
    this.node = h("form", attributes, h("div", { class: "fields" }, top), this.#error,
      h("h2", { class: "more" }, t("more")), this.#groups.map(({ node }) => node));
  }

  show(question) {
    for (const [name, field] of Object.entries(this.#fields)) field.set(String(question[name] ?? ""));
    for (const group of this.#groups) group.show(question);
  }

  assume(values) {
    for (const [name, field] of Object.entries(this.#fields)) field.assumed(values[name] ?? "");
  }

  mark(name, refused) {
    this.#fields[name].mark(refused);
  }

  blame(name, sentence) {
    const field = name === null ? undefined : this.#fields[name];
    for (const one of Object.values(this.#fields)) one.wrong(one === field ? sentence : "");
    const group = field?.node.closest("details");
    if (group && sentence) group.open = true;
    this.#error.textContent = field ? "" : sentence;
    this.#error.hidden = Boolean(field) || !sentence;
  }
}

/**
 * The form.
 *
 * @param {{options: object[], first: string[], rows: Object<string, () => object[]>, special?: object, t,
 *          changed: (name: string, value: string, done: boolean) => void, met?: (name: string) => void}} given
 *   `first`: the options shown at once; `rows`: suggestions by option; `special`: fields of their own by option
 * @returns {{node, show(question), assume(values), mark(name, refused), blame(name, sentence)}}  `show` fills the fields in, `assume` says
 *   what holds where nothing is filled in, `blame` puts a sentence at a field, or below the form for `null`
 */
export function form(given) {
  return new Form({ special: SPECIAL, ...given });
}
