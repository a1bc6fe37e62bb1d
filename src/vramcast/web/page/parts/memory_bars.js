/** Memory of every rank role as stacked bars against what a process can use of the card. */

import { h, svg } from "../dom.js";
import { bytes } from "../format.js";
import { hasWords } from "../words.js";
import { button } from "./part.js";
import { drawn, filledRect, linear, swatch, ticks } from "./scale.js";

const GIB = 2 ** 30;
const HEIGHT = { above: 12, bar: 30, row: 46, level: 17 }; // the interval lies above the bar
const LEVELS = ["allocated", "reserved", "device"];
const LAST = ["allocator", "communication", "workspaces"]; // what lies outside the allocated tensors stands at the end
const SHOWN_ROLES = 8;
const LETTER = 6.6; // pixels, at the size of a label
const WIDE = /[\u2e80-\uffee]/; // letters twice as wide

/** Category -> bytes of a rank's ledger, in the order they are stacked. */
export function byCategory(ledger) {
  const sums = new Map();
  for (const { path, bytes: size } of ledger) {
    const category = path.split("/")[0];
    sums.set(category, (sums.get(category) ?? 0) + size);
  }
  const place = ([category, size]) => (LAST.includes(category) ? LAST.indexOf(category) : -1 - size / 2 ** 60);
  return [...sums].filter(([, size]) => size > 0).sort((one, other) => place(one) - place(other));
}

/** The largest value that a role's bar has to hold. */
export function reach(rank, capacity) {
  const highest = Math.max(...Object.values(rank.phases).map((phase) => phase.device_bytes));
  return Math.max(capacity, highest, rank.peak.interval_bytes[1]);
}

function segments(parts, x, named) {
  let before = 0;
  return parts.flatMap(([category, size]) => {
    const [from, to] = [x(before), x(before + size)];
    before += size;
    const label = named("category", category);
    const room = to - from - 12 > label.length * LETTER * (WIDE.test(label) ? 2 : 1);
    return [svg("g", {}, svg("title", {}, `${label}: ${bytes(size)}`),
      filledRect(category, { x: from, y: HEIGHT.above, width: to - from, height: HEIGHT.bar }),
      room ? svg("text", { class: "bar-label", x: from + 7, y: HEIGHT.above + 19 }, label) : null,
      svg("line", { class: "gap", x1: to, x2: to, y1: HEIGHT.above, y2: HEIGHT.above + HEIGHT.bar }))];
  });
}

function whisker([low, high], x) {
  const [from, to] = [x(low), x(high)];
  return svg("path", { class: "whisker", d: `M${from} 2V10M${from} 6H${to}M${to} 2V10` });
}

function ghost(rank, x) {
  const highest = Math.max(...Object.values(rank.phases).map((phase) => phase.device_bytes));
  const [from, to] = [x(rank.peak.device_bytes), x(highest)];
  return to - from < 1 ? null
    : svg("rect", { class: "ghost", x: from, y: HEIGHT.above + 0.5, width: to - from, height: HEIGHT.bar - 1 });
}

/** The levels an engine has: one with an allocator of its own knows the device's only. */
function levelsOf(rank) {
  return LEVELS.filter((level) => rank.peak[`${level}_bytes`]);
}

function levelLines(rank, x) {
  return levelsOf(rank).map((level, index) => svg("rect", {
    class: `level level-${level}`, x: 0, y: HEIGHT.row + index * HEIGHT.level + 5, height: 5,
    width: x(rank.peak[`${level}_bytes`]),
  }));
}

/** Categories of a rank in the order of all ranks, so that bars can be compared. */
function inOrder(rank, order) {
  const sums = new Map(byCategory(rank.ledger));
  return order.filter((category) => sums.has(category)).map((category) => [category, sums.get(category)]);
}

function row(rank, { capacity, largest, order, width, named, whole }) {
  const x = linear(largest, width);
  const height = HEIGHT.row + (whole ? levelsOf(rank).length * HEIGHT.level : 0);
  const beyond = { class: "beyond", x: x(capacity), y: 0, width: width - x(capacity), height };
  return svg("svg", { width, height, class: "bar", "aria-hidden": "true" },
    svg("rect", { class: "room", x: 0, y: HEIGHT.above, width: x(capacity), height: HEIGHT.bar }),
    largest > capacity ? svg("rect", beyond) : null,
    segments(inOrder(rank, order), x, named), ghost(rank, x), whisker(rank.peak.interval_bytes, x),
    whole ? levelLines(rank, x) : null,
    svg("line", { class: "capacity", x1: x(capacity), x2: x(capacity), y1: 0, y2: height }));
}

function axis({ capacity, largest, width, t }) {
  const x = linear(largest, width);
  const text = `${t("usable")} ${bytes(capacity, 1)}`;
  const end = x(capacity) > width / 2;
  const near = (value) => Math.abs(x(value) - x(capacity)) < 24;
  const label = (at, y, anchor, said) => svg("text", { x: at, y, "text-anchor": anchor }, said);
  const marked = ticks(largest, Math.max(2, width / 110), GIB).filter((value) => x(value) < width - 12);
  return svg("svg", { width, height: 38, class: "axis", "aria-hidden": "true" },
    marked.map((value) => [svg("line", { x1: x(value), x2: x(value), y1: 0, y2: 4 }),
      near(value) ? null : label(x(value), 16, value ? "middle" : "start", value / GIB)]),
    svg("line", { class: "capacity", x1: x(capacity), x2: x(capacity), y1: 0, y2: 20 }),
    svg("g", { class: "capacity-text" }, label(x(capacity) + (end ? 2 : -2), 33, end ? "end" : "start", text)),
    label(end ? 0 : width, 33, end ? "start" : "end", "GiB"));
}

/** The name of a role in words. */
export function roleName(role, t) {
  const stage = /^stage (\d+) of (\d+)$/.exec(role);
  if (stage) return t("role.stage", { stage: stage[1], of: stage[2] });
  return hasWords(`role.${role}`) ? t(`role.${role}`) : role;
}

function described(rank, named) {
  return byCategory(rank.ledger).map(([category, size]) => `${named("category", category)} ${bytes(size)}`).join(", ");
}

function roleRow(rank, index, { chosen, total, capacity, largest, order, named, t, choose }) {
  const over = Math.max(...Object.values(rank.phases).map((phase) => phase.device_bytes)) > capacity;
  const pressed = index === chosen;
  const level = (name) => [h("span", { class: "level-name" }, t(name)),
    h("span", { class: "level-size number" }, bytes(rank.peak[`${name}_bytes`]))];
  const name = h("span", { class: "role-name" }, h("b", {}, roleName(rank.role, t)),
    h("span", {}, t("of_gpus", { count: rank.count, total })),
    h("span", { class: over ? "number bad" : "number" }, bytes(rank.peak.device_bytes, 1)),
    pressed ? levelsOf(rank).map(level) : null);
  const scale = { capacity, largest, order, named, whole: pressed };
  const bar = drawn({ class: "role-bar" }, (width) => row(rank, { ...scale, width }));
  const said = [name, bar, h("span", { class: "unseen" }, described(rank, named))];
  if (total === rank.count) return h("div", { class: "role" }, said); // the only one: nothing to choose
  return button(said, () => choose(index),
    { class: "role", "aria-pressed": String(pressed), "data-key": `role-${index}` });
}

function legend(order, { t, named }) {
  const sign = (name, drawing) =>
    h("li", { class: "soft" }, svg("svg", { width: 22, height: 14, "aria-hidden": "true" }, drawing), t(name));
  return h("ul", { class: "legend" },
    order.map((category) => h("li", {}, swatch(category), named("category", category))),
    sign("interval", svg("path", { class: "whisker", d: "M2 3V11M2 7H20M20 3V11" })),
    sign("usable", svg("line", { class: "capacity", x1: 11, x2: 11, y1: 0, y2: 14 })));
}

/**
 * Bars of all roles; the chosen one's legend stands below.
 *
 * @param {{ranks: object[], capacity: number, chosen: number, all: boolean}} shown  `all`: also roles beyond eight
 * @param {{t, named, choose: (index: number) => void, showAll: () => void}} app
 */
export function memoryBars({ ranks, capacity, chosen, all }, { t, named, choose, showAll }) {
  const largest = Math.max(...ranks.map((rank) => reach(rank, capacity))) * 1.01;
  const total = ranks.reduce((sum, rank) => sum + rank.count, 0);
  const shown = all ? ranks : ranks.slice(0, Math.max(SHOWN_ROLES, chosen + 1));
  const order = byCategory(ranks.flatMap((rank) => rank.ledger)).map(([category]) => category);
  const given = { chosen, total, capacity, largest, order, named, t, choose };
  return h("div", { class: "bars" },
    h("div", { class: "roles", role: "group", "aria-label": t("roles") },
      shown.map((rank, index) => roleRow(rank, index, given))),
    h("div", { class: "role axis-row" }, h("span", { class: "role-name" }),
      drawn({ class: "role-bar" }, (width) => axis({ capacity, largest, width, t }))),
    shown.length < ranks.length
      ? button(t("all_roles", { count: ranks.length }), showAll, { class: "link", "data-key": "all-roles" }) : null,
    legend(order, { t, named }));
}
