/** What a recording shows: its peak, what was live there, failures, settings that help, leaks. */

import { h, svg } from "../dom.js";
import { bytes, count, partOf, percent } from "../format.js";
import { categoryName } from "./kinds.js";
import { part, texts } from "./part.js";
import { drawn, filledRect, linear, swatch } from "./scale.js";
import { table } from "./table.js";
import { timelinePart } from "./timeline.js";

const FRAMES = 8; // of a stack, before the rest is folded

function figureList(pairs, t) {
  return h("dl", { class: "figures" }, pairs.filter(([, value]) => value !== undefined && value !== null)
    .map(([key, value]) =>
    h("div", {}, h("dt", {}, t(key)), h("dd", { class: "number" }, value))));
}

/** The answer first: how high it went, and whether it ran out. */
export function recordingHead({ peak, events, allocations, addresses_matched: matched, fragmentation,
  num_ooms: failures,
  num_alloc_retries: retries, ...rest }, { t }) {
  const tone = failures ? "bad" : "good";
  return h("section", { class: `verdict ${tone}`, "aria-label": t("verdict") },
    h("div", { class: "said" }, h("h2", {}, h("span", { class: "sign", "aria-hidden": "true" }, failures ? "✕" : "✓"),
      t(failures ? "replay.failed" : "replay.whole", { count: failures })),
    h("p", { class: "needed" }, h("b", { class: "number" }, bytes(peak.reserved_bytes ?? peak.allocated_bytes)),
      h("span", {}, t(peak.reserved_bytes === undefined ? "replay.allocated" : "replay.reserved")))),
    advised(rest.advice, t), (rest.about ?? []).map((text) => h("p", { class: "soft" }, text)),
    figureList([["peak.allocated", bytes(peak.allocated_bytes)],
      ["peak.reserved", peak.reserved_bytes === undefined ? undefined : bytes(peak.reserved_bytes)],
      ["fragmentation", fragmentation === undefined ? undefined : percent(fragmentation, 1)], ["events", count(events)],
      ["allocations", count(allocations)], ["retries", retries ? count(retries) : undefined],
      ["matched", allocations && matched !== undefined ? percent(matched / allocations) : undefined]], t));
}

function advised(advice, t) {
  if (!advice) return null;
  const { kind, conf = "", peak_reserved_bytes: peak, saves_bytes: saves, tried } = advice;
  const values = { conf, tried, peak: peak === undefined ? "" : bytes(peak),
    saved: saves === undefined ? "" : bytes(saves) };
  return h("p", {}, t(`advice.${kind}`, values));
}

function liveBar(categories, total, app) {
  return drawn({ class: "card-bar" }, (width) => {
    const x = linear(total, width);
    let before = 0;
    return svg("svg", { width, height: 26, "aria-hidden": "true" }, categories.map(({ name, bytes: size }) => {
      const from = x(before);
      before += size;
      return svg("g", {}, svg("title", {}, `${categoryName(name, app)}: ${bytes(size)}`),
        filledRect(name, { x: from, y: 0, width: Math.max(x(size) - 1, 1), height: 26 }));
    }));
  });
}

/** Stack frames, innermost first; long ones fold. */
function stack(frames, t) {
  if (!frames?.length) return h("span", { class: "soft" }, t("stack.none"));
  const rest = frames.slice(1);
  if (!rest.length) return h("code", {}, frames[0]);
  return h("details", { class: "stack" }, h("summary", {}, h("code", {}, frames[0])),
    h("ol", {}, rest.slice(0, FRAMES).map((frame) => h("li", {}, h("code", {}, frame)))),
    rest.length > FRAMES ? h("ol", { start: FRAMES + 1 }, rest.slice(FRAMES)
      .map((frame) => h("li", {}, h("code", {}, frame)))) : null);
}

function holdersTable(title, heading, groups, { total, name, t }) {
  if (!groups.length) return null;
  const columns = [{ name: heading }, { name: t("memory"), bytes: true }, { name: t("share"), number: true },
    { name: t("blocks"), number: true }];
  return h("div", {}, h("h3", {}, title), table({ caption: title, columns, rows: groups.map((one) =>
    [name(one), one.bytes, partOf(one.bytes / total), one.blocks ? count(one.blocks) : t("blocks.none")]) }));
}

/** What was live at the peak: by kind, line, module and stack, and the largest blocks. */
function livePart({ peak }, app) {
  const { t } = app;
  const total = peak.categories.reduce((sum, { bytes: size }) => sum + size, 0);
  const places = ({ name }) => h("code", {}, name || t("unnamed"));
  const blocks = peak.blocks.map((block) => [block.size_bytes, categoryName(block.category, app),
    stack(block.frames, t)]);
  return part(t("live", { size: bytes(total), event: count(peak.event ?? 0) }), liveBar(peak.categories, total, app),
    h("div", { class: "pair-live" },
      holdersTable(t("live.kinds"), t("live.kind"), peak.categories,
        { total, t, name: ({ name }) => [swatch(name), categoryName(name, app)] }),
      holdersTable(t("live.lines"), t("code.line"), peak.lines, { total, t, name: places })),
    h("details", {}, h("summary", {}, h("h3", {}, t("live.stacks"))),
      holdersTable(t("live.stacks"), t("stack"), peak.stacks,
        { total, t, name: ({ frames }) => stack(frames, t) })),
    h("details", {}, h("summary", {}, h("h3", {}, t("live.blocks",
      { shown: peak.blocks.length, count: count(peak.num_blocks) }))),
      table({ caption: t("live.blocks", { shown: peak.blocks.length, count: count(peak.num_blocks) }),
        columns: [{ name: t("size"), bytes: true }, { name: t("live.kind") }, { name: t("stack") }], rows: blocks })));
}

const known = (size, t) => (size === undefined ? t("live.unknown") : bytes(size));

function failuresPart(failures, { t }) {
  if (!failures.length) return null;
  return part(t("replay.failures"), failures.map((one) => h("div", { class: "failure" },
    h("p", {}, t("failure.asked", { event: count(one.event), size: bytes(one.request_bytes),
      free: known(one.free_in_allocator_bytes, t), largest: known(one.largest_free_bytes, t) })),
    one.fits_if_contiguous ? h("p", { class: "soft" }, t("failure.pieces")) : null, stack(one.frames, t))));
}

function variantsPart(variants, { t }) {
  if (!variants || variants.length < 2) return null;
  const columns = [{ name: t("setting") }, { name: t("peak.reserved"), bytes: true },
    { name: t("peak.allocated"), bytes: true }, { name: t("outcome") }];
  const outcome = (one) => h("span", { class: `badge ${one.num_ooms || one.out_of_memory ? "bad" : "good"}` },
    t(one.num_ooms || one.out_of_memory ? "variant.fails" : "variant.runs"));
  return part(t("variants"), table({ caption: t("variants"), columns, rows: variants.map((one) =>
    [h("code", {}, one.conf || t("variant.own")), one.peak_reserved_bytes, one.peak_allocated_bytes,
      outcome(one)]) }));
}

function leaksPart(leaks, app) {
  const { t } = app;
  if (!leaks) return null;
  if (!leaks.can_be_told) return part(t("leaks"), h("p", {}, t("leaks.untold")));
  if (!leaks.leaks.length) return part(t("leaks"), h("p", {}, t("leaks.none", { steps: leaks.steps })));
  const columns = [{ name: t("leak.grows"), bytes: true }, { name: t("leak.live"), bytes: true },
    { name: t("live.kind") }, { name: t("stack") }];
  return part(t("leaks"), h("p", {}, t("leaks.found", { size: bytes(leaks.bytes_per_step), steps: leaks.steps })),
    table({ caption: t("leaks"), columns, rows: leaks.leaks.map((one) =>
      [one.bytes_per_step, one.live_bytes, categoryName(one.category, app), stack(one.frames, t)]) }));
}

/** Everything of one device. */
export function recordingParts(device, warnings, app) {
  const { t } = app;
  return [
    recordingHead(device, app), warnings.length ? part(t("warnings"), texts(warnings, "warnings")) : null,
    device.blocks ? part(t("timeline"), timelinePart(device, app)) : null,
    livePart(device, app), failuresPart(device.out_of_memory, app), variantsPart(device.variants, app),
      leaksPart(device.leaks, app),
  ];
}
