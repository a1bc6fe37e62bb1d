/** Where time goes: a bar of parts and a table of them. */

import { h, svg } from "../dom.js";
import { partOf, percent, seconds } from "../format.js";
import { part, texts } from "./part.js";
import { drawn, linear } from "./scale.js";
import { table } from "./table.js";

const SHADES = 8;
const HEIGHT = 18;
const LEAST = 0.0005; // of the whole; what is less is not worth a row

const shade = (index) => `shade shade-${Math.min(index, SHADES - 1)}`;

function bar(parts, whole, named) {
  return drawn({ class: "shares" }, (width) => {
    const x = linear(whole, width);
    let before = 0;
    return svg("svg", { width, height: HEIGHT, "aria-hidden": "true" }, parts.map(([cause, value], index) => {
      const from = x(before);
      before += value;
      const box = { x: from, width: Math.max(x(value) - 1, 0.5), height: HEIGHT };
      return svg("rect", { class: shade(index), ...box },
        svg("title", {}, `${named("cause", cause)} ${percent(value / whole)}`));
    }));
  });
}

function mark(index) {
  const box = { width: 12, height: 12 };
  return svg("svg", { class: "swatch", "aria-hidden": "true", ...box }, svg("rect", { class: shade(index), ...box }));
}

/**
 * The part of an answer that says what time goes to.
 *
 * @param {{title: string, parts: Object<string, number>, whole?: number, bound?: string, sources?: string[]}} given
 *   `whole`: seconds the parts add up to; without it they are shares of one
 */
export function sharesPart({ title, parts, whole, bound, sources = [] }, { t, named }) {
  const total = whole ?? Object.values(parts).reduce((sum, value) => sum + value, 0);
  const shown = Object.entries(parts).filter(([, value]) => value > LEAST * total)
    .sort((one, other) => other[1] - one[1]);
  const number = (key) => ({ name: t(key), number: true });
  const columns = [{ name: t("cause") }, ...(whole ? [number("seconds")] : []), number("share")];
  const rows = shown.map(([cause, value], index) => [
    [mark(index), named("cause", cause)], ...(whole ? [seconds(value)] : []), partOf(value / total)]);
  return part([title, bound ? h("small", {}, t("bound_by", { bound: named("bound", bound) })) : null],
    bar(shown, total, named), table({ caption: title, columns, rows }),
    sources.length ? h("details", {}, h("summary", {}, t("rests_on")), texts(sources)) : null);
}
