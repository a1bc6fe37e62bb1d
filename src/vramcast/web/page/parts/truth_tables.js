/** Columns of the tables of measured cases and of their groups. */

import { h } from "../dom.js";
import { bytes, count, percent, seconds } from "../format.js";
import { groupOf, measure } from "../truth_statistics.js";
import { judged, signed, smallHistogram } from "./truth_charts.js";

const WRITTEN = { kv: "KV", gpu: "GPU", cpu: "CPU", cuda: "CUDA" };
const UNITS = { mib: "MiB", gib: "GiB", mb: "MB", gb: "GB", bytes: "bytes" };

/** A level in words; its unit, where its name has one, in brackets. */
export function levelName(level) {
  const words = level.split("_");
  const unit = words.length > 1 ? UNITS[words.at(-1)] : undefined;
  const said = (unit ? words.slice(0, -1) : words).map((word) => WRITTEN[word] ?? word).join(" ");
  return unit ? `${said} (${unit})` : said;
}

/** A figure with its unit. */
export function valueText(value, { unit }) {
  if (value === undefined) return "";
  if (unit === "bytes") return bytes(value);
  return unit === "s" ? seconds(value) : `${count(Number(value.toPrecision(6)))} ${unit?.split(" (")[0] ?? ""}`;
}

function peersOf({ peers = {} }, t) {
  const said = ([name, { median, worst }]) =>
    t("peer", { name, median: percent(median, 2), worst: percent(worst, 1) });
  return Object.entries(peers).map(said).join("; ");
}

/** Of groups; `errorsOf(row)` are the errors of its cases. Other tools have a column where any was on the same rows. */
export function groupColumns(rows, errorsOf, t) {
  const figure = (key, name, write, down = true) => ({
    key, name, number: true, down, value: (row) => row[key],
      cell: (row) => (row[key] === undefined ? "" : write(row[key])),
  });
  const worst = figure("worst", t("worst"), signed);
  return [
    { key: "group", name: t("group"), value: ({ group }) => group },
    { key: "level", name: t("level"), value: ({ level }) => level, cell: ({ level }) => levelName(level) },
    figure("cases", t("cases"), count),
    figure("predicted", t("predicted"), count),
    figure("median", t("median"), (value) => percent(value, 2)),
    figure("p95", t("p95"), (value) => percent(value, 1)),
    { ...worst, value: (row) => row.worst && Math.abs(row.worst) },
    figure("under", t("under"), percent),
    { key: "spread", name: t("spread"), cell: (row) => smallHistogram(errorsOf(row)) },
    ...(rows.some(({ peers }) => peers) ? [{ key: "peers", name: t("peers"), cell: (row) => peersOf(row, t) }] : []),
  ];
}

function source({ source: text = "", url }) {
  return url ? h("a", { href: url, rel: "noopener noreferrer", target: "_blank" }, text || url) : text;
}

function errorCell({ error, mark, refused }, t) {
  const marked = mark ? h("span", { class: "badge", title: t("marked", { mark: t(`mark.${mark}`) }) },
    t(`mark.${mark}`)) : null;
  if (error === undefined) return [h("span", { class: "soft refused" }, refused ?? t("why.refused")), " ", marked];
  return [h("span", { class: `error-${judged(error)}` }, signed(error)), " ", marked];
}

/** Of cases. */
export function caseColumns(t) {
  const value = (key) => ({
    key, name: t(`value.${key}`), number: true, down: true, cell: (row) => valueText(row[key], row),
    value: (row) => row[key] && row[key] * measure(row.unit).factor,
  });
  return [
    { key: "name", name: t("case"), value: ({ name }) => name, kind: "case" },
    { key: "group", name: t("group"), value: groupOf, cell: ({ group }) => group },
    { key: "level", name: t("level"), value: ({ level }) => level, cell: ({ level }) => levelName(level) },
    value("predicted"),
    value("measured"),
    { key: "error", name: t("error"), down: true, value: ({ error }) => error && Math.abs(error),
      cell: (row) => errorCell(row, t), kind: "judged" },
    { key: "card", name: t("card.of"), value: ({ card }) => card, kind: "nowrap" },
    { key: "source", name: t("source"), cell: source, kind: "source" },
  ];
}
