/** Memory over the events of a recording, block by block, with what was live at any moment. */

import { h, refill, svg } from "../dom.js";
import { bytes, count, partOf, seconds } from "../format.js";
import { BlockPicture, Blocks } from "./blocks.js";
import { categoryName } from "./kinds.js";
import { button } from "./part.js";
import { categoryClass, swatch } from "./scale.js";
import { table } from "./table.js";

const COLOURED = "coloured";

/** Tells every picture on the page that colours are others; none is held for it. */
function tell() {
  document.querySelectorAll("canvas.blocks").forEach((canvas) => canvas.dispatchEvent(new Event(COLOURED)));
}

for (const query of ["(prefers-color-scheme: dark)", "(forced-colors: active)"])
  matchMedia(query).addEventListener("change", tell);
new MutationObserver(tell).observe(document.documentElement, { attributeFilter: ["data-theme"] });

/** Colours of the page by name, and those of kinds, until they are forgotten. */
function palette(node) {
  const probe = svg("svg", { class: "unseen", "aria-hidden": "true" });
  node.append(probe);
  const known = new Map();
  const asked = (key, find) => known.get(key) ?? known.set(key, find()).get(key);
  const styled = (made, property) => {
    probe.replaceChildren(made);
    return getComputedStyle(made)[property];
  };
  return {
    forget: () => known.clear(),
    colour: (kind) => asked(`kind ${kind}`, () => styled(svg("rect", { class: categoryClass(kind) }), "fill")),
    ink: (name) => asked(name, () => styled(svg("rect", { class: `ink-${name}` }), "fill")),
  };
}

/** What was live after an event: by kind, and the largest blocks with their stacks. */
function moment(blocks, event, app) {
  const { t } = app;
  const { kinds, largest } = blocks.at(event);
  const total = kinds.reduce((sum, { size }) => sum + size, 0);
  const columns = [{ name: t("live.kind") }, { name: t("memory"), bytes: true }, { name: t("share"), number: true },
    { name: t("blocks"), number: true }];
  const caption = t("live.moment", { size: bytes(total), event: count(event) });
  const stack = (block) => {
    const frames = blocks.stackOf(block);
    return frames.length ? h("details", { class: "stack" }, h("summary", {}, h("code", {}, frames[0])),
      h("ol", {}, frames.slice(1).map((frame) => h("li", {}, h("code", {}, frame))))) : t("stack.none");
  };
  return [h("h3", {}, caption), table({ caption, columns, rows: kinds.map(({ name, size, number }) =>
    [[swatch(name), categoryName(name, app)], size, partOf(total && size / total),
      number ? count(number) : t("blocks.none")]) }),
  largest.length === 0 ? null : table({ caption: t("live.largest"),
    columns: [{ name: t("size"), bytes: true }, { name: t("live.kind") }, { name: t("stack") }],
    rows: largest.map((block) => [blocks.sizes[block],
      categoryName(blocks.names[blocks.kinds[block]], app), stack(block)]) })];
}

/**
 * The timeline with its buttons.
 *
 * @param {object} device  of the document of a replay that was asked for blocks
 */
export function timelinePart(device, app) {
  const { t } = app;
  const blocks = new Blocks(device.blocks, device.peak.event);
  const told = h("p", { class: "told number-left" });
  const place = h("div", { class: "moment" });
  const failure = device.out_of_memory[0]?.event;
  const said = (event) => {
    const reserved = blocks.reservedAt(event);
    const text = t("at.moment", { event: count(event), allocated: bytes(blocks.allocatedAt(event)),
      reserved: reserved === undefined ? t("live.unknown") : bytes(reserved) });
    told.textContent = text;
    return text;
  };
  const node = h("div", {});
  const colours = palette(node);
  const picture = new BlockPicture(blocks, {
    ...colours, bytes: (size, digits = 1) => bytes(size, digits), count, seconds,
    name: (kind) => categoryName(kind, app),
    marks: [{ event: blocks.peak, text: t("peak"), kind: "ink" },
      ...device.out_of_memory.map(({ event }) => ({ event, text: "OOM", kind: "bad" }))],
    words: {
      timeline: t("timeline"), event: t("event"), capacity: t("blocks.capacity"), none: t("stack.none"),
      smaller: (kind, size) => t("blocks.smaller", { kind, size }),
      lived: (start, end) => t(`blocks.lived${start === null ? ".before" : ""}${end === null ? ".on" : ""}`,
        { start, end }),
    },
    moved: said,
    picked: (event) => refill(place, moment(blocks, event, app)),
  });
  picture.canvas.addEventListener(COLOURED, () => {
    colours.forget();
    picture.draw();
  });
  const zooms = [
    button(t("zoom.whole"), () => picture.whole()), button(t("zoom.peak"), () => picture.around(blocks.peak)),
    failure === undefined ? null : button(t("zoom.failure"), () => picture.around(failure)),
    button("+", () => picture.zoom(0.5), { "aria-label": t("zoom.in") }),
    button("−", () => picture.zoom(2), { "aria-label": t("zoom.out") }),
  ];
  node.append(h("div", { class: "kinds", role: "group", "aria-label": t("zoom") }, zooms), picture.node, told,
    h("ul", { class: "legend" }, [...blocks.ranges.map(([kind]) => kind), blocks.rest].map((kind) =>
      h("li", {}, swatch(kind), categoryName(kind, app))),
    blocks.reserved ? h("li", {}, svg("svg", { width: 22, height: 10, "aria-hidden": "true" },
      svg("line", { class: "reserved-line", x1: 0, x2: 22, y1: 5, y2: 5 })), t("reserved")) : null),
    h("p", { class: "soft" }, t("blocks.hint")), place);
  return node;
}
