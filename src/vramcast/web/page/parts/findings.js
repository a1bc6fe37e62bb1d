/** Why memory ran out: cause, evidence, who holds the card, figures, and what to change. */

import { h, svg } from "../dom.js";
import { bytes, count, percent, sizes } from "../format.js";
import { button, part, texts } from "./part.js";
import { drawn, linear } from "./scale.js";
import { table } from "./table.js";

const HOLDERS = ["allocated", "unallocated", "beside", "others", "outside", "free"];
const ROUNDING = 2 ** 30 / 100; // messages print GiB with two decimals
const MOST = 1.02; // holders together are no card where they are more than this of it
const DIGITS = /[\d.,]+/g;

/** Sizes of those who hold the card, as far as the message's figures tell. */
export function holders(numbers) {
  const known = Object.fromEntries(["total", "free", "allocated", "unallocated", "reserved"]
    .map((name) => [name, numbers[`${name}_bytes`]]).filter(([, size]) => Number.isFinite(size)));
  if (known.unallocated === undefined && known.reserved !== undefined && known.allocated !== undefined)
    known.unallocated = Math.max(0, known.reserved - known.allocated);
  const { total, free, allocated, unallocated = 0 } = known;
  if (total === undefined || free === undefined || allocated === undefined) return known;
  const [held, used, own] = [allocated + unallocated, total - free, numbers.process_bytes];
  if (!(held <= own && own <= used + ROUNDING)) return { ...known, outside: Math.max(0, used - held) };
  const others = used - own;
  return { ...known, beside: own - held, others: others >= ROUNDING ? others : 0 };
}

function cardBar(shown, total) {
  return drawn({ class: "card-bar" }, (width) => {
    const x = linear(total, width);
    let before = 0;
    return svg("svg", { width, height: 26, "aria-hidden": "true" }, svg("rect", { class: "room", width, height: 26 }),
      shown.map(([name, size]) => {
        const from = x(before);
        before += size;
        return svg("rect", { class: `holder ${name}`, x: from, width: Math.max(x(size) - 1, 1), height: 26 });
      }));
  });
}

/** Who holds the card as a bar; nothing where the figures do not add up to one. */
function cardPart({ numbers = {} }, { t, named }) {
  const held = holders(numbers);
  const shown = HOLDERS.map((name) => [name, held[name]]).filter(([, size]) => size);
  const sum = shown.reduce((all, [, size]) => all + size, 0);
  if (!held.total || shown.length < 2 || sum > MOST * held.total) return null;
  const written = sizes([held.total]);
  return h("div", { class: "card-held" }, h("h3", {}, t("card.holds", { size: bytes(held.total) })),
    cardBar(shown, held.total),
    h("ul", { class: "legend" }, shown.map(([name, size]) => h("li", {}, h("span", { class: `dot holder ${name}` }),
      `${named("held", name)} `, h("b", { class: "number" }, written(size)),
        h("span", { class: "soft" }, percent(size / held.total))))));
}

function figureText(name, value) {
  if (name.endsWith("_bytes")) return bytes(value);
  return typeof value === "number" ? count(value) : String(value);
}

function numbersPart({ numbers = {}, meaning = {} }, { t, named }) {
  const rows = Object.entries(meaning).filter(([name]) => numbers[name] !== undefined)
    .map(([name, text]) => [named("short", name), figureText(name, numbers[name]), text]);
  if (!rows.length) return null;
  const columns = [{ name: t("figure.name") }, { name: t("figure.value"), number: true }, { name: t("figure.means") }];
  return h("details", {}, h("summary", {}, h("h3", {}, t("message.numbers"))),
    table({ caption: t("message.numbers"), columns, rows }));
}

function gains({ saves_bytes: saves, shown_by: by, enough }, t) {
  const told = [];
  if (saves !== undefined) told.push(h("span", { class: "number" }, t("fix.saves", { size: bytes(saves) })));
  if (by) told.push(h("span", { class: "soft" }, t(`fix.by.${by}`)));
  if (enough !== undefined) told.push(h("span", { class: `badge ${enough ? "good" : "bad"}` },
    t(enough ? "fix.enough" : "fix.not_enough")));
  return told.length ? h("span", { class: "gains" }, told) : null;
}

function fixesPart({ fixes = [] }, { t, copy }) {
  if (!fixes.length) return null;
  const row = (fix) => h("li", {}, h("div", { class: "fix" }, h("span", {}, fix.action), gains(fix, t)),
    fix.setting ? h("div", { class: "setting" }, h("code", {}, fix.setting),
      button(t("copy"), () => copy(fix.setting), { class: "link", "aria-label": `${t("copy")} ${fix.setting}` }))
        : null);
  return h("div", {}, h("h3", {}, t("fixes")), h("ol", { class: "fixes" }, fixes.map(row)));
}

/** A line of the text; behind what was left out of a long one it is counted from the end. */
function lineText(line, { counted, lines, t }) {
  return line > counted ? t("at.line.end", { line: count(lines - line + 1) }) : t("at.line", { line: count(line) });
}

function where({ line, family, wording, versions, repeats }, app) {
  const { t } = app;
  const place = family === "torch-snapshot" ? t("at.event", { event: count(line - 1) }) : lineText(line, app);
  return [place, family + (wording ? `, ${wording}` : ""), versions ? t("at.versions", { versions }) : null,
    repeats ? t("at.repeats", { count: repeats }) : null]
    .filter(Boolean).join(" · ");
}

/** Findings that say the same with other figures, such as those of the ranks of one job. */
export function alike(findings) {
  const groups = new Map();
  for (const one of findings) {
    const fixes = (one.fixes ?? []).map(({ action }) => action.replace(DIGITS, ""));
    const key = JSON.stringify([one.class, one.detail, one.family, fixes]);
    groups.set(key, [...(groups.get(key) ?? []), one]);
  }
  return [...groups.values()];
}

function othersPart(group, app) {
  const { t, named } = app;
  if (group.length < 2) return null;
  const names = Object.keys(group[0].numbers ?? {}).filter((name) =>
    group.some(({ numbers = {} }) => numbers[name] !== undefined));
  const columns = [{ name: t("at"), number: true }, ...names.map((name) =>
    ({ name: named("short", name), number: true }))];
  const rows = group.map(({ line, numbers = {} }) =>
    [lineText(line, app),
      ...names.map((name) => (numbers[name] === undefined ? "" : figureText(name, numbers[name])))]);
  const title = t("others.alike", { count: group.length });
  return h("details", {}, h("summary", {}, h("h3", {}, title)), table({ caption: title, columns, rows }));
}

function finding(group, app) {
  const { t } = app;
  const [one] = group;
  return h("section", { class: "finding part" },
    h("h2", { class: "cause" }, one.text),
    h("p", { class: "soft" }, where(one, app)),
    one.why?.length ? [h("h3", {}, t("why")), texts(one.why)] : null,
    cardPart(one, app), fixesPart(one, app), numbersPart(one, app), othersPart(group, app));
}

/**
 * A diagnosis.
 *
 * @param {{t, named, copy: (text) => void, counted?: number}} app  `counted`: after this line some were left out
 */
export function diagnosisParts({ findings, checks = [], left_out: left, cut, lines }, app) {
  const { t } = app;
  if (!findings.length) return [h("section", { class: "finding part" }, h("h2", {}, t("oom.nothing")),
    h("p", {}, t("oom.nothing.try")), h("p", { class: "soft" }, t("oom.nothing.read", { lines: count(lines) })))];
  return [
    alike(findings).map((group) => finding(group, { ...app, lines })),
    checks.length ? part(t("oom.checks"), texts(checks.map(({ text }) => text))) : null,
    left ? h("p", { class: "soft" }, t("oom.left_out", { count: left })) : null,
    cut ? h("p", { class: "soft" }, t("oom.cut")) : null,
  ];
}
