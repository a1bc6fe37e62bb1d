/** Memory of every rank role as stacked bars against what a process can use of the card. */

import { h, svg } from "../dom.js";
import { bytes, sizes } from "../format.js";
import { hasWords } from "../words.js";
import { button } from "./part.js";
import { drawn, filledRect, linear, ticks } from "./scale.js";

const GIB = 2 ** 30;
const HEIGHT = { above: 12, bar: 30, row: 46, label: 16 }; // the interval lies above the bar
const LAST = ["allocator", "communication", "workspaces"]; // what lies outside the allocated tensors stands at the end
const SHOWN_ROLES = 8;
const LETTER = 6.6; // pixels, at the size of a label
const WIDE = /[\u2e80-\uffee]/g; // letters twice as wide
const TURNED = 4; // pixels from the edge of a segment to the line of a name that turns round
const NARROWEST = 2; // pixels of a segment that gets a label; the ledger has the others

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

/** Segments of a bar from left to right: category, size, where it begins and ends [pixels]. */
function segmentsOf(parts, x) {
  let before = 0;
  return parts.map(([category, size]) => {
    const from = x(before);
    before += size;
    return { category, size, from, to: x(before) };
  });
}

function drawnSegments(segments, named) {
  return segments.map(({ category, size, from, to }) => [
    svg("g", {}, svg("title", {}, `${named("category", category)}: ${bytes(size)}`),
      filledRect(category, { x: from, y: HEIGHT.above, width: to - from, height: HEIGHT.bar })),
    svg("line", { class: "gap", x1: to, x2: to, y1: HEIGHT.above, y2: HEIGHT.above + HEIGHT.bar })]);
}

/**
 * Names under a bar, each at the end of a line from its segment, in rows so that no line crosses a name.
 *
 * Names stand to the right of their lines where all find room there, else to the left. Going from that side inwards, a
 * name is a row below all whose lines it would cross; one without room turns round, at the edge of its segment.
 */
function labelled(segments, width, { size, named }) {
  const labels = segments.filter(({ from, to }) => to - from >= NARROWEST).map((one) => {
    const name = named("category", one.category);
    const said = size(one.size);
    const letters = `${name} ${said}`.length + (name.match(WIDE)?.length ?? 0);
    return { name, said, from: one.from, at: (one.from + one.to) / 2, long: letters * LETTER + 14 };
  });
  const rightwards = labels.every(({ at, long }) => at + long <= width);
  const turned = rightwards ? [] : labels.filter(({ at, long }) => at < long);
  const straight = labels.filter((label) => !turned.includes(label));
  for (const label of labels) label.rightwards = rightwards || turned.includes(label);
  for (const label of turned) label.at = label.from + TURNED;
  const overlap = (one, other) => {
    const [left, right] = one.at < other.at ? [one, other] : [other, one];
    return right.at - left.at < (left.rightwards ? left.long : 0) + (right.rightwards ? 0 : right.long);
  };
  const placed = [];
  for (const label of [...(rightwards ? straight.reverse() : straight), ...turned.reverse()]) {
    const crossed = placed.filter((other) => overlap(label, other));
    label.row = crossed.length ? 1 + Math.max(...crossed.map(({ row }) => row)) : 0;
    placed.push(label);
  }
  return { labels, rows: labels.length ? 1 + Math.max(...labels.map(({ row }) => row)) : 0 };
}

function drawnLabels({ labels }) {
  const top = HEIGHT.above + HEIGHT.bar;
  return labels.map(({ name, said, at, row, rightwards }) => {
    const y = top + 4 + (row + 1) * HEIGHT.label;
    const text = { x: rightwards ? at + 5 : at - 5, y: y - 2, "text-anchor": rightwards ? "start" : "end" };
    return svg("g", { class: "bar-label" }, svg("path", { d: `M${at} ${top}V${y - 6}` }),
      svg("text", text, `${name} `, svg("tspan", { class: "size" }, said)));
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

/** Categories of a rank in the order of all ranks, so that bars can be compared. */
function inOrder(rank, order) {
  const sums = new Map(byCategory(rank.ledger));
  return order.filter((category) => sums.has(category)).map((category) => [category, sums.get(category)]);
}

function row(rank, { capacity, largest, order, width, named, t, whole }) {
  const x = linear(largest, width);
  const segments = segmentsOf(inOrder(rank, order), x);
  const labels = whole ? labelled(segments, width, { size: sizes(segments.map(({ size }) => size)), named }) : null;
  const bottom = HEIGHT.row + (whole ? labels.rows * HEIGHT.label : 0);
  const [low, high] = rank.peak.interval_bytes;
  const beyond = { class: "beyond", x: x(capacity), y: 0, width: width - x(capacity), height: bottom };
  return svg("svg", { width, height: bottom, class: "bar", "aria-hidden": "true" },
    svg("rect", { class: "room", x: 0, y: HEIGHT.above, width: x(capacity), height: HEIGHT.bar }),
    largest > capacity ? svg("rect", beyond) : null,
    drawnSegments(segments, named), ghost(rank, x), whisker([low, high], x),
    whole ? svg("text", { class: "soft-text", x: x(low) - 6, y: 10, "text-anchor": "end" }, t("interval")) : null,
    whole ? drawnLabels(labels) : null,
    svg("line", { class: "capacity", x1: x(capacity), x2: x(capacity), y1: 0, y2: bottom }));
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
  const name = h("span", { class: "role-name" }, h("b", {}, roleName(rank.role, t)),
    h("span", {}, t("of_gpus", { count: rank.count, total })),
    h("span", { class: over ? "number bad" : "number" }, bytes(rank.peak.device_bytes)));
  const scale = { capacity, largest, order, named, t, whole: pressed };
  const bar = drawn({ class: "role-bar" }, (width) => row(rank, { ...scale, width }));
  const said = [name, bar, h("span", { class: "unseen" }, described(rank, named))];
  if (total === rank.count) return h("div", { class: "role" }, said); // the only one: nothing to choose
  return button(said, () => choose(index),
    { class: "role", "aria-pressed": String(pressed), "data-key": `role-${index}` });
}

/**
 * Bars of all roles; the chosen one says what its segments are.
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
      ? button(t("all_roles", { count: ranks.length }), showAll, { class: "link", "data-key": "all-roles" }) : null);
}
