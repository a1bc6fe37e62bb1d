/** One answer, whole: memory of every role, changes, ledger, phases, time, price, assumptions. */

import { h } from "../dom.js";
import { count, money, rounded, sizes } from "../format.js";
import { changesPart } from "./changes.js";
import { ledgerTree } from "./ledger.js";
import { memoryBars, roleName } from "./memory_bars.js";
import { part, texts } from "./part.js";
import { sharesPart } from "./shares.js";
import { table } from "./table.js";
import { hostPlaces, verdictBadge } from "./verdict.js";

const text = (name) => ({ name });
const number = (name) => ({ name, number: true });

/** A part that is one table. */
function tabled(title, columns, rows, ...below) {
  return part(title, table({ caption: title, columns, rows }), below);
}

function phasesPart(rank, { t, named }) {
  const levels = ["allocated", "reserved", "device"].filter((level) => rank.peak[`${level}_bytes`]);
  const highest = Math.max(...Object.values(rank.phases).map((phase) => phase.device_bytes));
  const written = sizes([highest]);
  const cell = (level, size) => (level === "device" && size === highest ? h("b", {}, written(size)) : written(size));
  const rows = Object.entries(rank.phases).map(([name, phase]) =>
    [named("phase", name), ...levels.map((level) => cell(level, phase[`${level}_bytes`]))]);
  return tabled(t("phases"), [text(t("phase")), ...levels.map((level) => number(t(level)))], rows);
}

function pricePart({ price }, { t }) {
  if (!price) return null;
  const costs = { per_hour: price.per_hour, per_million: price.per_million_tokens, per_run: price.per_run };
  const rows = Object.entries(costs).filter(([, value]) => value !== undefined)
    .map(([key, value]) => [t(key), money(value, price.currency)]);
  const from = ["tariff", "region", "date", "source"].map((name) => price[name]).filter(Boolean).join(", ");
  return tabled(t("price"), [text(t("per")), number(t("price"))], rows, h("p", { class: "soft" }, from));
}

function hostPart({ host }, { t }) {
  if (!host) return null;
  const rows = hostPlaces(host).map(([name, needed, there]) =>
    [t(`host.${name}`), needed, there === undefined ? t("not_known") : there]);
  const size = (name) => ({ name: t(name), bytes: true });
  return tabled(t("host"), [text(t("place")), size("at_least_needed"), size("installed")], rows);
}

function timeParts({ time }, app) {
  const { t } = app;
  if (!time) return [];
  if (time.seconds) {
    const sources = [...(time.sources ?? []), ...(time.assumptions ?? [])];
    return [sharesPart({ title: t("time"), parts: time.seconds, whole: time.step_s, bound: time.bound, sources }, app)];
  }
  const phases = ["prefill", "decode"].filter((name) => time[`${name}_shares`]);
  return phases.map((name) => sharesPart({
    title: t(`time.${name}`), parts: time[`${name}_shares`], bound: time[`${name}_bound`], sources: time.sources,
  }, app));
}

function servingParts({ capacity, startup }, { t }) {
  const counts = Object.entries(capacity?.kv_tokens_by_count ?? {}).map(([name, tokens]) => [name, count(tokens)]);
  const printed = Object.entries(startup ?? {});
  return [
    counts.length > 1 ? tabled(t("capacity"), [text(t("counted")), number(t("kv_tokens"))], counts) : null,
    printed.length ? tabled(t("startup"), [text(t("figure")), { name: t("memory"), bytes: true }], printed) : null,
  ];
}

function triedRow(one, app) {
  const known = (value, written) => (value === undefined ? "" : written(value));
  return [h("code", {}, one.what), verdictBadge(one.verdict, app), known(one.kv_tokens, count),
    known(one.tokens_per_s, rounded), one.reason ?? ""];
}

function foundPart({ found, tried }, app) {
  if (!found) return null;
  const { t } = app;
  const { goal, num_tried: number_tried, what, value } = found;
  const said = what === undefined ? t("found.nothing", { count: number_tried }) : `${goal}: ${value} (${what})`;
  const columns = [text(t("plan")), text(t("verdict")), number(t("kv_tokens")), number(t("tokens_per_s")),
    text(t("why_not"))];
  return part(t("found"), h("p", { class: "found" }, said),
    h("p", { class: "soft" }, t("tried", { count: number_tried })),
    table({ caption: t("found"), columns, rows: tried.map((one) => triedRow(one, app)) }));
}

function listed(key, list, t) {
  return list.length ? part(t(key), texts(list, key)) : null;
}

/**
 * Everything below the verdict.
 *
 * @param {{chosen: number, all: boolean, open: Set<string>}} view  what the visitor opened
 * @param {{apply: (change) => void, again: () => void, looks?: Node[]}} acts  `looks`: what opens under the memory
 */
export function answerParts(answer, view, app, { apply, again, looks = [] }) {
  const { t } = app;
  const chosen = view.chosen < answer.ranks.length ? view.chosen : 0;
  const rank = answer.ranks[chosen];
  const choose = (index) => { view.chosen = index; again(); };
  const showAll = () => { view.all = true; again(); };
  const shown = { ranks: answer.ranks, capacity: answer.capacity_bytes, chosen, all: view.all };
  return [
    foundPart(answer, app),
    listed("warnings", answer.warnings, t),
    part(t("memory_of"), memoryBars(shown, { ...app, choose, showAll })),
    changesPart(answer, app, apply),
    looks,
    part(t("ledger_of", { role: roleName(rank.role, t) }), ledgerTree(rank, view, { ...app, again })),
    h("div", { class: "pair" }, phasesPart(rank, app), timeParts(answer, app), servingParts(answer, app),
      pricePart(answer, app), hostPart(answer, app)),
    listed("assumptions", answer.assumptions, t),
  ];
}
