/** What a search found: the best plan, the table of plans, why, and what to change where nothing fits. */

import { h, refill } from "../dom.js";
import { bytes, count, money, rounded, seconds } from "../format.js";
import { questionText } from "../hash.js";
import { compared } from "../plan_question.js";
import { MOST_PLANS } from "../question_state.js";
import { costText } from "./changes.js";
import { dataTable } from "./data_table.js";
import { button, part, texts } from "./part.js";
import { table } from "./table.js";
import { figures, givesBack, intervalRemark, neededOf, verdictBadge, verdictHead } from "./verdict.js";

const GIVES_BACK = "*"; // behind the memory of such a plan
const MOST_SO_FAR = 10; // rows, before all that is found is sorted
const HOURS = "GPU-hours";
const NOTHING = "does not fit"; // the verdict where nothing is found

/** A cost in its unit: money, or GPU-hours. */
function costWritten({ value, unit }) {
  return unit === HOURS ? `${Number(value.toPrecision(3))} GPU-h` : money(value, unit);
}

/** Options of a plan; none of them is broken between two lines where there is room. */
function optionsText(label) {
  const options = label.split(/ (?=--)/);
  return h("code", {}, options.map((option, index) =>
    [index ? " " : null, h("span", { class: "given-option" }, option)]));
}

/** A list of sentences under a heading; nothing where there are none. */
export function listed(title, list, kind) {
  return list?.length ? part(title, texts(list, kind)) : null;
}

/** The answer first: how many fit, and the best of them. */
export function foundHead({ plans: [best], labels: [label], num_plans: all, num_fitting: fitting, ...rest }, app) {
  const { t } = app;
  const said = t(best ? "plans.found" : rest.nearest_failing?.fits ? "plans.none_kept" : "plans.none");
  const { class: kind, heading } = verdictHead(best?.verdict ?? NOTHING, said, app);
  const goal = t(`goal.${rest.question.goal}`);
  const counted = t("plans.counted", { fitting: count(fitting), all: count(all), goal });
  return h("section", { class: kind, "aria-label": t("verdict") },
    h("div", { class: "said" }, heading),
    best ? h("p", { class: "best-plan" }, optionsText(label)) : null,
    best ? [h("p", {}, verdictBadge(best.verdict, app), " ", neededOf(best, t)), intervalRemark(best, app)] : null,
    h("p", { class: "soft" }, counted),
    best ? h("dl", { class: "figures" }, figures(best, t).map(([name, value]) =>
      h("div", {}, h("dt", {}, name), h("dd", { class: "number" }, value)))) : null);
}

/** What a search has found so far: the best of each machine by cost, each with a link to its own page. */
export function soFar(points, href, { t }) {
  const columns = [{ name: t("plan") }, { name: t("tokens_per_s"), number: true }, { name: t("gpus"), number: true },
    { name: t("per_million"), number: true }];
  const row = (point) => [h("a", { href: href(point) }, optionsText(point.label)), rounded(point.speed),
    count(point.gpus), costWritten({ value: point.cost, unit: point.unit })];
  const isFree = ({ unit }) => Number(unit === HOURS); // of a machine without a price: not to be compared
  const first = [...points].sort((one, other) => isFree(one) - isFree(other) || one.cost - other.cost);
  return part(t("plans.so_far"), table({ caption: t("plans.so_far"), columns, rows: first.slice(0, MOST_SO_FAR).map(row) }));
}

function figureColumns({ t, named }, serves) {
  const figure = (key, name, value, written, down = true) => ({
    key, name, number: true, down, value, cell: (row) => (value(row) ? written(value(row)) : "") });
  const time = (name) => ({ answer }) => answer.time?.[name];
  const cost = { ...figure("cost", t("per_million"), ({ cost: known }) => known?.value, String, false),
    cell: ({ cost: known }) => (known ? costWritten(known) : "") };
  return [
    figure("speed", t("tokens_per_s"), time("tokens_per_s"), rounded),
    ...(serves
      ? [figure("user", t("per_user"), time("tokens_per_s_per_user"), rounded),
        figure("first", t("first_token"), time("time_to_first_token_s"), seconds, false)]
      : [figure("step", t("step"), time("step_s"), seconds, false)]),
    { ...figure("memory", t("memory"), ({ answer }) => answer.needed_bytes, String, false),
      cell: ({ answer }) => `${bytes(answer.needed_bytes, 1)}${givesBack(answer) ? GIVES_BACK : ""}` },
    { key: "verdict", name: t("verdict"), value: ({ answer }) => named("verdict", answer.verdict),
      cell: ({ answer }) => verdictBadge(answer.verdict, { named }) },
    figure("count", t("gpus"), ({ gpus }) => gpus, count, false),
    cost,
  ];
}

function detail({ answer, label }, { t }) {
  return h("div", { class: "plan-detail" }, h("p", {}, optionsText(label)),
    h("dl", { class: "figures" }, figures(answer, t).map(([name, value]) =>
      h("div", {}, h("dt", {}, name), h("dd", { class: "number" }, value)))));
}

/** Up to four plans chosen for a comparison, and the link to it. */
function choosing(rows, command, { t }) {
  const chosen = new Set();
  const link = h("p", { class: "choose" });
  const boxes = new Map();
  const fill = () => {
    const full = chosen.size >= MOST_PLANS;
    for (const [row, box] of boxes) box.disabled = full && !chosen.has(row);
    const queries = rows.filter((row) => chosen.has(row)).map(({ question }) => `?${questionText(question)}`);
    refill(link, queries.length > 1
      ? h("a", { class: "go-compare", href: `#/${command}${queries.join("")}` },
        t("plans.compare", { count: chosen.size }))
      : h("span", { class: "soft" }, t("plans.choose", { most: MOST_PLANS })));
  };
  const box = (row) => {
    const mark = h("input", { type: "checkbox", "aria-label": t("plans.mark", { rank: row.rank }),
      checked: chosen.has(row),
      onchange: () => { if (!chosen.delete(row)) chosen.add(row); fill(); } });
    boxes.set(row, mark);
    return mark;
  };
  fill();
  return { link, box };
}

/**
 * The table: what differs between plans, and what they come to; best first.
 *
 * @param {{answer, label, options, question, rank, gpus, cost}[]} rows
 * @returns {{node, choose(label)}}
 */
export function plansTable(rows, command, app) {
  const { t } = app;
  const { differing, shared } = compared(rows.map(({ options }) => options));
  const { link, box } = choosing(rows, command, app);
  const option = (name) => ({
    key: name, name, kind: "mono", value: ({ options }) => options[name],
      cell: ({ options }) => options[name] ?? "–" });
  const open = ({ question, rank }) => h("a", {
    href: `#/${command}?${questionText(question)}`, "aria-label": t("open.rank", { rank }) }, t("open.plan"));
  const columns = [
    { key: "rank", name: t("rank"), value: ({ rank }) => rank, kind: "slim" },
    { key: "compare", name: t("compare.short"), cell: box },
    { key: "open", name: t("plan"), cell: open },
    ...figureColumns(app, command === "serve"), ...differing.map(option),
  ];
  const shown = dataTable({ caption: t("plans.table"), columns, rows, t, name: ({ label }) => label,
    detail: (row) => detail(row, app), sort: { key: "rank", down: false } });
  const anyGives = rows.some(({ answer }) => givesBack(answer));
  const common = shared.map((name) => `--${name} ${rows[0].options[name]}`).join(" ");
  const node = part(t("plans.table"), common ? h("p", { class: "soft" }, t("plans.shared"), " ", optionsText(common))
    : null,
    shown.node, anyGives ? h("p", { class: "soft" }, `${GIVES_BACK} `, t("plans.gives_back")) : null, link);
  return { node, choose: (label) => shown.choose(label) };
}

/** What came nearest, where it says something: it may fit and leave too little free to be offered beside the plans
 * found. A change that would make it fit is a button. */
export function nearestPart({ plans, nearest_failing: nearest, nearest_label: label, change }, { apply, ...app }) {
  if (!nearest) return null;
  const { t } = app;
  const sizes = { needed: bytes(nearest.needed_bytes), capacity: bytes(nearest.capacity_bytes) };
  const title = t(!nearest.fits ? "plans.nearest" : plans.length ? "plans.left_out" : "plans.nearest_kept");
  const would = nearest.fits ? t("plans.possible")
    : change?.fits ? t("plans.with", { verdict: app.named("verdict", change.verdict) }) : t("plans.would_help");
  return part(title, h("p", {}, optionsText(label)), h("p", {}, verdictBadge(nearest.verdict, app), " ", t("needed_of", sizes)),
    change ? h("p", { class: "change" }, would, " ",
      change.apply ? button(h("code", {}, change.change), () => apply(change), { class: "apply" })
        : h("code", {}, change.change),
      " ", h("span", { class: "soft" }, costText(change, app))) : null);
}

function size(value) {
  return value === undefined ? "" : bytes(value, 1);
}

/** The path of decisions and what each technique saves, folded. */
export function adviceParts({ decisions = [], techniques = [] }, { t, named }) {
  const decided = decisions.map(({ question, finding, action, options = "" }) =>
    [question, finding, action, h("code", {}, options)]);
  const saved = techniques.map((one) => [one.name, h("code", {}, one.change ?? ""), size(one.device_bytes),
    size(one.saves_bytes),
    one.slowdown === undefined ? "" : costText({ cost: "", slowdown: one.slowdown }, { t, named }),
    verdictBadge(one.verdict, { named }), one.when ?? ""]);
  const columns = (...names) => names.map(([name, number = false]) => ({ name: t(name), number }));
  const folded = (title, given) => h("details", { class: "part folded" }, h("summary", {}, h("h2", {}, title)),
    table({ caption: title, ...given }));
  return [
    decided.length ? folded(t("decisions"), { columns: columns(["decision"], ["finding"], ["action"], ["plan"]),
      rows: decided }) : null,
    saved.length ? folded(t("techniques"), { columns: columns(["technique"], ["change"], ["memory", true],
      ["saves", true], ["costs"], ["verdict"], ["when"]), rows: saved }) : null,
  ];
}
