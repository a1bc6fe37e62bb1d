/** The answer first: does it fit, how much of what there is, how fast, what it costs. */

import { h } from "../dom.js";
import { bytes, count, likely, money, parameters, percent, rounded, seconds } from "../format.js";
import { gpusText } from "../names.js";
import { filled } from "../words.js";

const SIGNS = { good: "✓", close: "!", bad: "✕" }; // tone -> what stands before the verdict
const UP_TO = { "fits closely": "closely", "may run out": "beyond" }; // verdict -> what is said of its interval

/** The sign and a heading in the tone of a verdict, the class of the part around them. */
export function verdictHead(verdict, text, { named }) {
  const tone = named("tone", verdict);
  return { class: `verdict ${tone}`,
    heading: h("h2", {}, h("span", { class: "sign", "aria-hidden": "true" }, SIGNS[tone] ?? ""),
      h("span", { class: "word" }, text)) };
}

/** A verdict of the service in its own word and tone. */
export function verdictBadge(verdict, { named }) {
  return h("span", { class: `badge ${named("tone", verdict)}` }, named("verdict", verdict));
}

/** How far the interval of an answer reaches, where that makes its verdict; null elsewhere. */
export function intervalRemark({ verdict, high_bytes: high }, { t }) {
  return verdict in UP_TO ? h("p", {}, t(UP_TO[verdict], { high: bytes(high, 1) })) : null;
}

/** How likely a plan fits and the measured runs that say so, which lead to all that were measured. */
export function trustLine({ trust, question }, { named }) {
  if (!trust) return null;
  const { chance_to_fit: chance, runs, own_engine: own, median_miss: miss } = trust;
  const trainer = question.trainer_engine; // of post-training, whose update is what such runs are like
  const engine = (trainer ?? question.engine).split("@")[0];
  const said = filled(named("trust", trainer ? "update" : "runs"), { runs: count(runs), own: count(own), engine, miss: percent(miss, 2) });
  const whole = chance === undefined ? said : filled(named("trust", "chance"), { chance: likely(chance), runs: said });
  return h("p", { class: "trust" }, h("a", { href: "#/accuracy" }, whole));
}

/** Whether a plan fits only while the allocator gives cached memory back to the driver. */
export function givesBack({ ranks }) {
  return ranks.some(({ gives_back_cache: gives }) => gives);
}

/** The phase whose peak decides, where it is not the steady one. */
function decidingPhase({ ranks: [rank] }) {
  const phases = Object.entries(rank.phases).sort((one, other) => other[1].device_bytes - one[1].device_bytes);
  const [name, peak] = phases[0];
  return peak.device_bytes > rank.peak.device_bytes ? name : null;
}

/** The places beside the cards that a plan uses: [key, needed, there]; what is there may not be known. */
export function hostPlaces({ memory_bytes, memory_there_bytes, disk_bytes, disk_there_bytes }) {
  const places = [["memory", memory_bytes, memory_there_bytes], ["disk", disk_bytes, disk_there_bytes]];
  return places.filter(([, needed]) => needed);
}

function hostLacks({ host }, t) {
  const short = host ? hostPlaces(host).filter(([, needed, there]) => there !== undefined && needed > there) : [];
  return short.map(([name, needed, there]) =>
    t(`${name}_short`, { needed: bytes(needed, 0), there: bytes(there, 0) }));
}

/** What a card needs of what there is. */
export function neededOf({ needed_bytes: needed, capacity_bytes: capacity }, t) {
  return t("needed_of", { needed: bytes(needed, 1), capacity: bytes(capacity, 1) });
}

/** The verdict in one sentence, as a screen reader says it. */
export function verdictSentence(answer, { t, named }) {
  return `${named("verdict", answer.verdict)}: ${neededOf(answer, t)}`;
}

function remarks(answer, { t, named }) {
  const [low] = answer.peak.interval_bytes;
  const phase = decidingPhase(answer);
  const over = answer.needed_bytes > answer.capacity_bytes;
  return [
    answer.shortfall && !over ? answer.shortfall : null,
    ...(over ? [] : hostLacks(answer, t)),
    phase ? t("highest", { phase: named("phase", phase) }) : null,
    over && !phase && low <= answer.capacity_bytes ? t("maybe", { low: bytes(low, 1) }) : null,
  ].filter(Boolean).map((text) => h("p", {}, text));
}

/** What is said of an answer in figures: its words, the value, how it is written. Unknown ones are left out. */
function said({ peak, time = {}, price = {}, capacity = {}, run_hours: hours }) {
  const cost = (value) => money(value, price.currency);
  const serving = time.time_to_first_token_s !== undefined;
  return [
    ["allocated", peak.allocated_bytes, bytes],
    ["reserved", peak.reserved_bytes, bytes],
    ["device", peak.device_bytes, bytes],
    ["interval", peak.interval_bytes, ([low, high]) => `${bytes(low, 1)} – ${bytes(high, 1)}`],
    ["kv_tokens", capacity.kv_tokens, count],
    ["sequences_held", capacity.concurrency, rounded],
    ["longest_context", capacity.longest_context, count],
    ["safe_fraction", capacity.safe_fraction, (value) => value.toFixed(2)],
    ["first_token", time.time_to_first_token_s, seconds],
    ["step", serving ? undefined : time.step_s, seconds],
    ["per_user", time.tokens_per_s_per_user, rounded],
    ["tokens_per_s", time.tokens_per_s, rounded],
    ["mfu", time.mfu, percent],
    ["per_hour", price.per_hour, cost],
    ["per_million", price.per_million_tokens, cost],
    ["per_run", price.per_run, cost],
    ["run_length", hours, (value) => seconds(3600 * value)],
  ];
}

/** Figures of an answer: [words, text] pairs. */
export function figures(answer, t) {
  const known = said(answer).filter(([, value]) => value !== undefined && value !== null && value !== 0);
  return known.map(([key, value, written]) => [t(key), written(value)]);
}

/** On a phone, the verdict at the foot of the window while the form hides the answer; it leads there. */
export function glancePart(answer, there, { t, named }) {
  const attributes = { type: "button", class: `glance ${named("tone", answer.verdict)}`, "data-key": "glance" };
  return h("button", { ...attributes, onclick: () => there.scrollIntoView() },
    h("b", {}, named("verdict", answer.verdict)), neededOf(answer, t));
}

function memoryNeeded({ fits, needed_bytes: needed, capacity_bytes: capacity }, t) {
  const rest = capacity - needed;
  const said = rest < 0 ? t("over", { size: bytes(-rest, 1) }) : fits ? t("left", { size: bytes(rest, 1) }) : null;
  return h("p", { class: "needed" },
    h("b", { class: "number" }, bytes(needed, 1)),
    h("span", {}, t("there", { size: bytes(capacity, 1) })),
    said ? h("span", { class: "rest" }, said) : null);
}

/** The head of an answer; `cure`: what makes it fit, or null. */
export function verdictPart(answer, app, cure = null) {
  const { t } = app;
  const { class: kind, heading } = verdictHead(answer.verdict, app.named("verdict", answer.verdict), app);
  const { model, engine, gpus, cards } = answer.question;
  const asked = { model, engine, parameters: parameters(answer.parameters), gpus: cards ? `${gpusText(gpus)} (${cards})` : gpusText(gpus) };
  return h("section", { class: kind, "aria-label": t("verdict") },
    h("div", { class: "said" }, heading, memoryNeeded(answer, t)),
    trustLine(answer, app), intervalRemark(answer, app), remarks(answer, app), cure,
    h("p", { class: "soft" }, t("asked", asked)),
    h("dl", { class: "figures" }, figures(answer, t).map(([name, value]) =>
      h("div", {}, h("dt", {}, name), h("dd", { class: "number" }, value)))));
}
