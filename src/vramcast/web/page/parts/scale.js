/** Scales and fills of small SVG charts. */

import { h, svg } from "../dom.js";

const STEPS = [1, 2, 5];

/** A function from 0..largest to 0..width pixels. */
export function linear(largest, width) {
  return (value) => (largest ? (value / largest) * width : 0);
}

/** Round values between two, about `wanted` of them. */
export function ticksBetween(low, high, wanted, unit = 1) {
  const rough = (high - low) / unit / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = (STEPS.find((factor) => factor * power >= rough) ?? 10) * power * unit;
  const first = Math.ceil(low / step);
  return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, index) => (first + index) * step);
}

/** Round values from 0 up to `largest`, about `wanted` of them. */
export function ticks(largest, wanted, unit = 1) {
  return ticksBetween(0, largest, wanted, unit);
}

/** Category -> how its fill is marked where more contrast is wished, so that no colour has to be told from another. */
const MARKS = {
  "weights": "plain",
  "gradients": "dots",
  "optimizer": "rising",
  "activations": "plain",
  "temporaries": "falling",
  "kv cache": "plain",
  "communication": "upright",
  "workspaces": "cross",
  "allocator": "rising",
  "inputs": "plain",
  "cuda graphs": "level",
  "lora slots": "dots",
  "draft model": "falling",
  "encoder cache": "upright",
  "slack": "dots",
  "backward": "falling",
  "held before": "level",
  "unknown": "plain",
};
const LINES = {
  rising: "M-2 2 2-2M0 8 8 0M6 10 10 6",
  falling: "M-2 6 2 10M0 0 8 8M6-2 10 2",
  upright: "M4 0V8",
  level: "M0 4H8",
  cross: "M4 0V8M0 4H8",
};

function pattern(name) {
  const drawn =
    name === "dots"
      ? svg("circle", { cx: 4, cy: 4, r: 1.4, class: "mark-dot" })
      : svg("path", { d: LINES[name], class: "mark-line" });
  return svg("pattern", { id: `mark-${name}`, width: 8, height: 8, patternUnits: "userSpaceOnUse" }, drawn);
}

/** Defines the marks once for the whole document. */
export function defineMarks() {
  if (document.getElementById("marks")) return;
  const names = [...Object.keys(LINES), "dots"];
  document.body.append(
    svg("svg", { id: "marks", class: "unseen", "aria-hidden": "true" }, svg("defs", {}, names.map(pattern))),
  );
}

/** The class that colours a category. */
export function categoryClass(category) {
  return `cat cat-${Object.hasOwn(MARKS, category) ? category.replace(/ /g, "-") : "other"}`;
}

/** The fill of a category's mark; nothing where it has none. */
export function markFill(category) {
  const mark = MARKS[category] ?? "plain";
  return mark === "plain" ? null : `url(#mark-${mark})`;
}

/** A rectangle in a category's colour and mark. */
export function filledRect(category, { x, y, width, height }) {
  const fill = markFill(category);
  const box = { x, y, width: Math.max(width, 0), height };
  return [svg("rect", { ...box, class: categoryClass(category) }), fill ? svg("rect", { ...box, fill, class: "mark" }) : null];
}

/** The small square of a legend. */
export function swatch(category) {
  return svg(
    "svg",
    { class: "swatch", width: 14, height: 14, "aria-hidden": "true" },
    filledRect(category, { x: 0.5, y: 0.5, width: 13, height: 13 }),
  );
}

/** A place that is drawn again whenever its width changes; `draw(width)` returns its children. */
export function drawn(attributes, draw) {
  const node = h("div", attributes);
  node.classList.add("drawn");
  let width = 0;
  const watch = new ResizeObserver(([entry]) => {
    const now = Math.floor(entry.contentRect.width);
    if (now === width || now === 0) return;
    width = now;
    node.replaceChildren(...[draw(width)].flat());
  });
  watch.observe(node);
  return node;
}
