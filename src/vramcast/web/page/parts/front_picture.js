/** Plans as points of cost or GPUs against speed, with the line of those that no other beats. */

import { h, refill, svg } from "../dom.js";
import { count, rounded } from "../format.js";
import { frontOf } from "../plan_question.js";
import { axes, ranged, roundValues, scaleOf } from "./axes.js";
import { part } from "./part.js";
import { drawn } from "./scale.js";

const HEIGHT = 330;
const WIDE = 8; // from this factor on between the least and the most, an axis is logarithmic
const TAKES = { cost: ({ cost }) => cost, gpus: ({ gpus }) => gpus };
const KEYS = new Set(["Enter", " "]);

const short = (value) => (value >= 100 ? count(Math.round(value)) : String(Number(value.toPrecision(3))));

function rangeOf(values) {
  return ranged(values, Math.max(...values) / Math.min(...values) >= WIDE);
}

function line(front, x, y, { right }) {
  const start = `M${x(front[0])} ${y(front[0])}`;
  const steps = front.slice(1).map((point) => `H${x(point)}V${y(point)}`).join("");
  return svg("path", { class: "front", d: `${start}${steps}H${right}` });
}

function dot(point, { x, y, best, said, told, chosen }) {
  const act = (event) => {
    if (!KEYS.has(event.key)) return;
    event.preventDefault();
    chosen(point);
  };
  const kind = `plan-point ${best ? "best" : ""} ${point.row ? "" : "elsewhere"}`;
  return svg("g", {
    class: kind, tabindex: "0", role: "button", "aria-label": said(point), "data-label": point.label, onkeydown: act,
    onclick: () => chosen(point), onfocus: () => told(point), onpointerenter: () => told(point),
  }, svg("circle", { class: "reach", cx: x(point), cy: y(point), r: 13 }),
  svg("circle", { class: "shape", cx: x(point), cy: y(point), r: best ? 6 : 4.5 }));
}

function picture(points, { kind, t, ...acts }, width) {
  const takes = TAKES[kind];
  const box = { left: 62, right: width - 14, top: 28, bottom: HEIGHT - 44 };
  const [across, up] = [rangeOf(points.map(takes)), rangeOf(points.map(({ speed }) => speed))];
  const [wide, high] = [
    scaleOf({ ...across, from: box.left, to: box.right }), scaleOf({ ...up, from: box.bottom, to: box.top })];
  const [x, y] = [(point) => wide(takes(point)), (point) => high(point.speed)];
  const front = frontOf(points, takes);
  const name = kind === "gpus" ? t("gpus") : t("axis.cost", { unit: points[0].unit });
  const drawing = axes({ x: wide, y: high, box,
    across: { values: roundValues(across, width / 100), write: short, name },
    up: { values: roundValues(up, 5), write: short, name: t("tokens_per_s") } });
  const order = [...points].sort((one, other) => takes(one) - takes(other));
  return svg("svg", { width, height: HEIGHT, class: "points", role: "group", "aria-label": t("front.label") }, drawing,
    line(front, x, y, box), order.map((point) => dot(point, { x, y, best: front.includes(point), ...acts })));
}

/**
 * The picture.
 *
 * @param {{label, options, gpus, speed, cost, unit, row}[]} points  see `pointsOf`
 * @param {{t, href: (point) => string, chosen: (point) => void}} app  `chosen`: a point that the table has
 */
export function frontPart(points, { t, href, chosen }) {
  const state = { kind: "cost" };
  const place = h("div");
  const said = (point) => t("front.point", {
    what: point.label, speed: rounded(point.speed), gpus: point.gpus, cost: `${short(point.cost)} ${point.unit}` });
  const below = h("p", { class: "told" }, h("span", { class: "soft" }, t("front.hint")));
  const told = (point) => refill(below, said(point), " ", h("a", { href: href(point) }, t("open.plan")));
  const act = (point) => { told(point); if (point.row) chosen(point); };
  const tab = (kind) => h("button", {
    type: "button", "aria-pressed": String(kind === state.kind), "data-key": `front ${kind}`,
    onclick: () => { state.kind = kind; show(); },
  }, t(`front.${kind}`));
  const show = () => refill(place,
    h("div", { class: "kinds", role: "group", "aria-label": t("front.against") }, Object.keys(TAKES).map(tab)),
    drawn({ class: "chart" }, (width) => picture(points, { kind: state.kind, t, said, told, chosen: act }, width)));
  show();
  return part(t("front"), place, below);
}
