/** Memory over the events of a recording: allocated in areas by kind, reserved as a line, peak and failures marked. */

import { h, refill, svg } from "../dom.js";
import { bytes, count } from "../format.js";
import { axes, scaleOf } from "./axes.js";
import { categoryName } from "./kinds.js";
import { button } from "./part.js";
import { categoryClass, drawn, markFill, swatch, ticks, ticksBetween } from "./scale.js";

const HEIGHT = 300;
const BESIDE = 12; // points on each side of a place that is looked at closely
const LEAST = 8; // points that are shown at least
const PAGE = 10; // points of a large step
const SLACK = "slack";
const ROW = 15;
const LETTER = 13; // the widest of labels
const UNITS = [2 ** 40, 2 ** 30, 2 ** 20, 2 ** 10, 1];

/** Round sizes up to the most, in its own unit. */
function sizes(most) {
  return ticks(most, 5, UNITS.find((unit) => most >= unit) ?? 1);
}

function steps(points, x, y, value, end) {
  return points.map((point, index) =>
    `${index ? "L" : "M"}${x(point.event)} ${y(value(point))}H${x(points[index + 1]?.event ?? end)}`).join("");
}

/** Kinds of memory from the ground up, the largest of the peak lowest; what blocks hold beyond tensors comes last. */
function kindsOf({ timeline, peak }) {
  const atPeak = peak.categories.map(({ name }) => name);
  const names = [...new Set([...atPeak, ...timeline.flatMap(({ by_category: kinds }) => Object.keys(kinds))])];
  const held = names.filter((name) => timeline.some(({ by_category: kinds }) => kinds[name]));
  const known = ({ by_category: kinds }) => Object.values(kinds).reduce((sum, size) => sum + size, 0);
  return timeline.some((point) => point.allocated_bytes > known(point)) ? [...held, SLACK] : held;
}

/** The areas, the highest first: each covers the ground below it. */
function areas(kinds, drawnTo) {
  const upTo = (place) => ({ by_category: sizes, allocated_bytes: allocated }) => (kinds[place] === SLACK ? allocated
    : kinds.slice(0, place + 1).reduce((sum, name) => sum + (sizes[name] ?? 0), 0));
  return kinds.map((name, place) => {
    const d = drawnTo(upTo(place));
    const mark = markFill(name);
    return [svg("path", { class: categoryClass(name), d }), mark ? svg("path", { d, fill: mark }) : null];
  }).reverse();
}

/** Marks with their labels: one that would cover another stands above it, or is left out where it says the same. */
function labelled(marks, x, width) {
  const labels = [];
  return marks.map(({ event, kind, text }) => {
    const at = x(event);
    const before = at > width / 2;
    const wide = LETTER * text.length;
    const [left, right] = before ? [at - wide, at] : [at, at + wide];
    const covered = labels.filter((label) => right >= label.left && left <= label.right);
    if (covered.some((label) => label.text === text)) return { at, kind };
    const row = covered.some((label) => label.row === 0) ? 1 : 0;
    const label = { text, left, right, row, anchor: before ? "end" : "start" };
    labels.push(label);
    return { at, kind, label };
  });
}

/** The picture between two points of the recording. */
function picture({ points, kinds, range: [first, last], end, marks, t, at, label, keys, moved }, width) {
  const shown = points.slice(first, last + 1);
  const [low, high] = [shown[0].event, points[last + 1]?.event ?? end];
  const most = 1.06 * Math.max(...shown.map(({ allocated_bytes: size, reserved_bytes: held }) => Math.max(size, held ?? 0)),
    1);
  const [left, right] = [78, width - 14];
  const x = scaleOf({ low, high, from: left, to: right });
  const inside = ({ event }) => event >= low && event <= high;
  const named = labelled(marks.filter(inside), x, width);
  const rows = 1 + Math.max(0, ...named.map(({ label }) => label?.row ?? 0));
  const box = { left, right, top: 13 + ROW * rows, bottom: HEIGHT - 42 };
  const y = scaleOf({ low: 0, high: most, from: box.bottom, to: box.top });
  const drawnTo = (value) => `${steps(shown, x, y, value, high)}V${y(0)}H${x(low)}Z`;
  const events = ticksBetween(low, high, Math.max(2, width / 130)).filter(Number.isInteger);
  const cursor = svg("line", { class: "cursor", y1: box.top, y2: box.bottom, x1: x(points[at].event),
    x2: x(points[at].event) });
  const node = svg("svg", {
    width, height: HEIGHT, class: "points timeline", tabindex: "0", role: "slider", "aria-label": t("timeline"),
    "aria-valuemin": first, "aria-valuemax": last, "aria-valuenow": at, "aria-valuetext": label(points[at]),
      onkeydown: keys,
    "data-key": "timeline",
  }, axes({ x, y, box, across: { values: events, write: count, name: t("event") },
    up: { values: sizes(most), write: (value) => bytes(value, 1), name: t("memory") } }),
  areas(kinds, drawnTo),
  shown.some((point) => point.reserved_bytes === undefined) ? null
    : svg("path", { class: "reserved-line", d: steps(shown, x, y, (point) => point.reserved_bytes, high) }),
  named.map(({ at: place, kind, label }) => svg("g", { class: `mark ${kind}` },
    svg("line", { x1: place, x2: place, y1: box.top, y2: box.bottom }),
    label && svg("text", { x: place, y: box.top - 6 - ROW * label.row, "text-anchor": label.anchor }, label.text))),
      cursor);
  node.addEventListener("pointermove", (event) => {
    const place = event.clientX - node.getBoundingClientRect().left;
    const near = shown.reduce((best, point, index) => (x(point.event) <= place ? index : best), 0);
    moved(first + near, (point) => { cursor.setAttribute("x1", x(point.event)); cursor.setAttribute("x2",
      x(point.event)); });
  });
  return node;
}

/**
 * The timeline with its buttons.
 *
 * @param {object} device  of the document of a replay
 */
export function timelinePart(device, app) {
  return new Timeline(device, app).node;
}

class Timeline {
  #device;
  #t;
  #points;
  #kinds;
  #range;
  #at;
  #width = 0; // of the picture, once it is known
  #place = drawn({ class: "chart" }, (width) => { this.#width = width; return picture(this.#given(), width); });
  #told = h("p", { class: "told number-left" });

  constructor(device, app) {
    const { t } = app;
    this.#device = device;
    this.#t = t;
    this.#kinds = kindsOf(device);
    this.#points = device.timeline;
    this.#range = [0, this.#points.length - 1];
    this.#at = this.#index(device.peak.event ?? 0);
    const zooms = [
      button(t("zoom.whole"), () => this.#look([0, this.#points.length - 1])),
      button(t("zoom.peak"), () => this.#around(device.peak.event ?? 0)),
      device.out_of_memory.length ? button(t("zoom.failure"), () => this.#around(device.out_of_memory[0].event)) : null,
      button("+", () => this.#zoom(0.5), { "aria-label": t("zoom.in") }),
      button("−", () => this.#zoom(2), { "aria-label": t("zoom.out") }),
    ];
    this.node = h("div", {}, h("div", { class: "kinds", role: "group", "aria-label": t("zoom") }, zooms), this.#place,
      this.#told,
      h("ul", { class: "legend" }, this.#kinds.map((name) => h("li", {}, swatch(name), categoryName(name, app))),
        h("li", {}, svg("svg", { width: 22, height: 10, "aria-hidden": "true" },
          svg("line", { class: "reserved-line", x1: 0, x2: 22, y1: 5, y2: 5 })), t("reserved"))));
    this.#draw();
  }

  /** The point that an event belongs to. */
  #index(event) {
    const next = this.#points.findIndex((point) => point.event > event);
    return Math.max(0, (next < 0 ? this.#points.length : next) - 1);
  }

  #around(event) {
    this.#at = this.#index(event);
    this.#look([this.#at - BESIDE, this.#at + BESIDE]);
  }

  #zoom(factor) {
    const half = Math.max(LEAST, (this.#range[1] - this.#range[0]) * factor) / 2;
    this.#look([Math.round(this.#at - half), Math.round(this.#at + half)]);
  }

  #look([first, last]) {
    const end = this.#points.length - 1;
    this.#range = [Math.max(0, Math.min(first, end)), Math.max(0, Math.min(last, end))];
    this.#at = Math.min(Math.max(this.#at, this.#range[0]), this.#range[1]);
    this.#draw();
  }

  #label({ event, allocated_bytes: allocated, reserved_bytes: reserved }) {
    return this.#t("at.moment", { event: count(event), allocated: bytes(allocated),
      reserved: reserved === undefined ? this.#t("live.unknown") : bytes(reserved) });
  }

  #keys(event) {
    const [first, last] = this.#range;
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageDown: -PAGE, PageUp: PAGE, Home: first - this.#at,
      End: last - this.#at };
    const step = steps[event.key];
    if (step === undefined) return;
    event.preventDefault();
    this.#at = Math.min(Math.max(this.#at + step, first), last);
    this.#draw();
  }

  /** What the picture shows. */
  #given() {
    const { peak, out_of_memory: failures, events } = this.#device;
    const marks = [...(peak.event === undefined ? [] : [{ event: peak.event, kind: "peak", text: this.#t("peak") }]),
      ...failures.map(({ event }) => ({ event, kind: "failure", text: "OOM" }))];
    return {
      points: this.#points, kinds: this.#kinds, range: this.#range, end: events, marks, t: this.#t, at: this.#at,
      label: (point) => this.#label(point), keys: (event) => this.#keys(event),
      moved: (index, place) => this.#moved(index, place),
    };
  }

  /** The pointer is over another point: only the line there is moved. */
  #moved(index, place) {
    this.#at = index;
    place(this.#points[index]);
    this.#told.textContent = this.#label(this.#points[index]);
  }

  /** Draws anew at once, so that the focus stays and no key is lost. */
  #draw() {
    this.#told.textContent = this.#label(this.#points[this.#at]);
    if (this.#width) refill(this.#place, picture(this.#given(), this.#width));
  }
}
