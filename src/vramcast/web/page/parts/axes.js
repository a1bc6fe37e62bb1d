/** Axes of charts of points: linear or logarithmic, with round values. */

import { svg } from "../dom.js";
import { ticksBetween } from "./scale.js";

const FINE = [1, 2, 5];
const ROOM = 0.12; // of the range, on each side of the values
const ALONE = 0.1; // of the value, around one that stands alone

/** Where a value lies between two pixels. */
export function scaleOf({ low, high, from, to, log }) {
  const place = log ? Math.log : (value) => value;
  const [start, end] = [place(low), place(high)];
  return (value) => from + ((place(value) - start) / (end - start || 1)) * (to - from);
}

/** The range of values with some room around it, so that points that lie close are told apart; `log`: by a factor. */
export function ranged(values, log) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  if (log) return { low: low / 1.3, high: high * 1.3, log };
  const room = ROOM * (high - low) || ALONE * high || 1;
  return { low: Math.max(0, low - room), high: high + room, log: false };
}

/** Round values of a range, about `wanted` of them. */
export function roundValues({ low, high, log }, wanted) {
  if (!log) return ticksBetween(low, high, wanted);
  const decades = Math.log10(high / low);
  const first = Math.floor(Math.log10(low));
  const powers = Array.from({ length: Math.ceil(decades) + 2 }, (_, index) => 10 ** (first + index));
  const every = Math.max(1, Math.ceil(decades / wanted));
  const values = decades < 3 ? powers.flatMap((power) => FINE.map((factor) => factor * power))
    : powers.filter((_, index) => index % every === 0);
  return values.filter((value) => value >= low && value <= high);
}

/**
 * Both axes with their lines, round values and names.
 *
 * @param {{x, y, box: {left, right, top, bottom}, across: object, up: object}} given
 *   `across` and `up` are { values, write(value), name }
 */
export function axes({ x, y, box, across, up }) {
  const { left, right, top, bottom } = box;
  return svg("g", { class: "axes" },
    across.values.map((value) => [
      svg("line", { class: "rule", x1: x(value), x2: x(value), y1: top, y2: bottom }),
      svg("text", { x: x(value), y: bottom + 16, "text-anchor": "middle" }, across.write(value))]),
    up.values.map((value) => [
      svg("line", { class: "rule", x1: left, x2: right, y1: y(value), y2: y(value) }),
      svg("text", { x: left - 7, y: y(value) + 4, "text-anchor": "end" }, up.write(value))]),
    svg("path", { class: "frame", d: `M${left} ${top}V${bottom}H${right}` }),
    svg("text", { class: "axis-name", x: right, y: bottom + 34, "text-anchor": "end" }, across.name),
    svg("text", { class: "axis-name", x: left, y: top - 8, "text-anchor": "start" }, up.name));
}

const UNIT_STEPS = { wide: [1, 10, 100], close: [1, 2, 5, 10, 20, 50, 100, 200, 500] };
const CLOSE = 100; // ranges of a smaller factor have values in between
const BINARY = [1, 2 ** 10, 2 ** 20, 2 ** 30, 2 ** 40];

/** Round sizes of a range on a logarithmic axis: 1, 10, 100 of each unit of bytes, or 1, 2, 5 ... */
export function roundSizes({ low, high }, wanted) {
  const steps = UNIT_STEPS[high / low < CLOSE ? "close" : "wide"];
  const all = BINARY.flatMap((unit) => steps.map((step) => step * unit));
  const inside = all.filter((value) => value >= low && value <= high);
  const every = Math.max(1, Math.ceil(inside.length / wanted));
  return inside.filter((_, index) => index % every === 0);
}
