/** Charts of predictions beside measurements: points on the diagonal, and how errors spread. */

import { h, svg } from "../dom.js";
import { count, percent } from "../format.js";
import { axes, ranged, roundValues, scaleOf } from "./axes.js";
import { drawn } from "./scale.js";

const EDGES = [-0.5, -0.2, -0.1, -0.05, -0.02, -0.01, -0.001, 0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5];
const CLOSE = 0.05; // what is called right, and where too low begins to cost memory
const NEAR = 14; // pixels from the pointer to a point it means

/** How an error is judged: "under" by more than 5 %, "over" by more, or "right". */
export function judged(error) {
  return error < -CLOSE ? "under" : error > CLOSE ? "over" : "right";
}

/** +3.4 % */
export function signed(error) {
  const text = percent(Math.abs(error), Math.abs(error) < 0.0995 ? 2 : 1);
  return `${error < 0 ? "−" : "+"}${text}`;
}

function band(x, y, { low, high }) {
  const line = (factor, kind) =>
    svg("line", { class: kind, x1: x(low), y1: y(low * factor), x2: x(high), y2: y(high * factor) });
  return [line(1 - CLOSE, "close-line"), line(1 + CLOSE, "close-line"), line(1, "diagonal")];
}

function nearest(places, event, node) {
  const { left, top } = node.getBoundingClientRect();
  const [across, down] = [event.clientX - left, event.clientY - top];
  const far = ({ x, y }) => Math.hypot(x - across, y - down);
  const best = places.reduce((one, other) => (one && far(one) <= far(other) ? one : other), null);
  return best && far(best) <= NEAR ? best : null;
}

function points(cases, x, y) {
  return cases.map((one) => ({ one, x: x(one.measured), y: y(one.predicted) }));
}

/** The picture at one width. */
function picture({ cases, write, round = roundValues, names, label, told, chosen }, width) {
  const height = Math.min(Math.max(width * 0.72, 260), 420);
  const box = { left: 70, right: width - 10, top: 26, bottom: height - 42 };
  const range = ranged(cases.flatMap(({ measured, predicted }) => [measured, predicted]), true);
  const x = scaleOf({ ...range, from: box.left, to: box.right });
  const y = scaleOf({ ...range, from: box.bottom, to: box.top });
  const values = (wanted) => round(range, wanted);
  const places = points(cases, x, y);
  const ring = svg("circle", { class: "ring", r: 6, visibility: "hidden" });
  const node = svg("svg", { width, height, class: "points", role: "img", "aria-label": label },
    svg("clipPath", { id: "inside" },
      svg("rect", { x: box.left, y: box.top, width: box.right - box.left, height: box.bottom - box.top })),
    axes({ x, y, box, across: { values: values(width / 110), write, name: names.across },
      up: { values: values(5), write, name: names.up } }),
    svg("g", { "clip-path": "url(#inside)" }, band(x, y, range)),
    places.map(({ one, x: cx, y: cy }) => svg("circle", { class: `point ${judged(one.error)}`, cx, cy, r: 3 })), ring);
  node.addEventListener("pointermove", (event) => {
    const found = nearest(places, event, node);
    ring.setAttribute("visibility", found ? "visible" : "hidden");
    if (found) { ring.setAttribute("cx", found.x); ring.setAttribute("cy", found.y); }
    told(found?.one ?? null);
  });
  node.addEventListener("click", (event) => {
    const found = nearest(places, event, node);
    if (found) chosen(found.one);
  });
  return node;
}

/**
 * Predicted against measured on logarithmic axes, with the diagonal and 5 % around it.
 *
 * @param {{cases: object[], write: (value) => string, round?: (range, wanted) => number[], names: {across, up},
 *          label: string, told: (one) => void, chosen: (one) => void}} given
 *   `round`: round values of an axis; `told`: the case under the pointer; `chosen`: the one clicked
 */
export function scatter(given) {
  return drawn({ class: "chart" }, (width) => picture(given, width));
}

/** How many errors lie between each two edges. */
export function spread(errors) {
  const counts = new Array(EDGES.length + 1).fill(0);
  for (const error of errors) counts[EDGES.filter((edge) => error >= edge).length] += 1;
  return counts;
}

/** What bin a place is: between which errors. */
function binName(index) {
  const edge = (value) => `${value < 0 ? "−" : value > 0 ? "+" : ""}${Number((100 * Math.abs(value)).toFixed(1))} %`;
  if (index === 0) return `< ${edge(EDGES[0])}`;
  if (index === EDGES.length) return `> ${edge(EDGES.at(-1))}`;
  return `${edge(EDGES[index - 1])} … ${edge(EDGES[index])}`;
}

const kindOf = (index) => (index <= EDGES.indexOf(-CLOSE) ? "under" : index > EDGES.indexOf(CLOSE) ? "over" : "right");

function bars(counts, names, width) {
  const height = 260;
  const box = { left: 46, right: width - 4, top: 26, bottom: height - 56 };
  const step = (box.right - box.left) / counts.length;
  const most = Math.max(...counts, 1);
  const y = scaleOf({ low: 0, high: 1.08 * most, from: box.bottom, to: box.top });
  const at = (index) => box.left + index * step;
  const tick = (edge, index) => svg("text", { x: at(index + 1), y: box.bottom + 15, "text-anchor": "middle" },
    width < 460 && index % 2 ? "" : Number((100 * edge).toFixed(1)));
  return svg("svg", { width, height, class: "points", "aria-hidden": "true" },
    axes({ x: at, y, box, across: { values: [], write: String, name: names.across },
      up: { values: roundValues({ low: 0, high: most }, 4).filter(Number.isInteger), write: count, name: names.up } }),
    EDGES.map(tick),
    counts.map((number, index) => svg("g", {}, svg("title", {}, `${binName(index)}: ${count(number)}`),
      svg("rect", { class: `pile ${kindOf(index)}`, x: at(index) + 1, width: Math.max(step - 2, 1), y: y(number),
        height: box.bottom - y(number) }))));
}

/**
 * How the errors of some cases spread.
 *
 * @param {{errors: number[], names: {across, up}, label: string}} given
 */
export function histogram({ errors, names, label }) {
  const counts = spread(errors);
  const said = counts.map((number, index) => (number ? `${binName(index)}: ${number}` : null)).filter(Boolean)
    .join(", ");
  return h("div", {}, drawn({ class: "chart" }, (width) => bars(counts, names, width)),
    h("p", { class: "unseen" }, `${label}: ${said}`));
}

/** The same as a small picture in a line of a table. */
export function smallHistogram(errors) {
  const counts = spread(errors);
  const most = Math.max(...counts, 1);
  return svg("svg", { class: "small-pile", width: 6 * counts.length, height: 18, "aria-hidden": "true" },
    counts.map((number, index) => number
      ? svg("rect", { class: `pile ${kindOf(index)}`, x: 6 * index, width: 5,
        y: 18 - Math.max(2, (16 * number) / most), height: Math.max(2, (16 * number) / most) })
      : svg("rect", { class: "rule-dot", x: 6 * index, width: 5, y: 17, height: 1 })));
}
