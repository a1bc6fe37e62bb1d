/** Plans that a search found, as questions of the pages train and serve. Nothing here touches the document. */

import { applied } from "./parts/changes.js";

const HOUR_S = 3600;
const MILLION = 1e6;

/** Options that say the same: where a plan has one, the other leaves the question. */
const SAME = { "shards": ["zero"], "zero": ["shards"], "grad-accum": ["global-batch"], "global-batch": ["grad-accum"] };

/** "--gpus 8xh100 --tp 2 --compile" as options by name; a flag is "true". */
export function optionsIn(label) {
  const found = {};
  for (const part of label.split(/\s*--/).filter(Boolean)) {
    const [name, ...value] = part.split(" ");
    found[name] = value.join(" ") || "true";
  }
  return found;
}

/**
 * The whole question of one plan: what the search was asked and the plan is asked as well, then what it found. What was
 * a list to search over stands in the plan, or holds without being said.
 *
 * @param {object} asked  the question of the search
 * @param {object} found  options of the plan
 * @param {string[]} names  options that the page of one plan knows
 */
export function planQuestion(asked, found, names) {
  const said = Object.keys(found).flatMap((name) => SAME[name] ?? []);
  const kept = Object.entries(asked).filter(
    ([name, value]) => names.includes(name) && !said.includes(name) && !String(value).includes(","));
  return applied(Object.fromEntries(kept), found);
}

/** Options in which plans differ, and those that all of them share. */
export function compared(plans) {
  const names = [...new Set(plans.flatMap(Object.keys))];
  const differs = (name) => new Set(plans.map((plan) => plan[name] ?? "")).size > 1;
  return { differing: names.filter(differs), shared: names.filter((name) => !differs(name)) };
}

/** GPUs of an answer; `cards` says how many a machine for rent has, by name. A role alone does not tell them. */
export function gpusOf({ question: { gpus } }, cards) {
  const [counts] = /^(?:\d+x)*/.exec(gpus);
  const several = counts.split("x").filter(Boolean).reduce((product, number) => product * Number(number), 1);
  return several * (cards.get(gpus.slice(counts.length)) ?? 1);
}

/** What a million tokens cost: { value, unit }; GPU-hours where no price is known, nothing where no speed is. */
export function costOf({ time, price }, gpus) {
  if (price?.per_million_tokens) return { value: price.per_million_tokens, unit: price.currency };
  if (!time?.tokens_per_s) return null;
  return { value: (gpus * MILLION) / HOUR_S / time.tokens_per_s, unit: "GPU-hours" };
}

/**
 * Every plan of a search that has a speed, as a point: those of the table and those of the service's picture.
 *
 * @param {object[]} front  the service's
 * @param {{answer, label, options, gpus, cost}[]} rows  the table's
 * @returns {{label, options, gpus, speed, cost, unit, row: boolean}[]}
 */
export function pointsOf(front, rows) {
  const points = new Map(front.map(({ what, gpus, tokens_per_s: speed, cost_per_million_tokens: cost, unit }) =>
    [what, { label: what, options: optionsIn(what), gpus, speed, cost, unit, row: false }]));
  for (const { answer, label, options, gpus, cost } of rows.filter((row) => row.cost)) {
    const known = points.get(label) ?? { gpus, speed: answer.time.tokens_per_s, cost: cost.value, unit: cost.unit };
    points.set(label, { ...known, label, options, row: true });
  }
  return [...points.values()];
}

/** Points that no other one beats: none is faster for the same or less. In order of what they take. */
export function frontOf(points, takes) {
  const beats = (one, other) => takes(one) <= takes(other) && one.speed >= other.speed
    && (takes(one) < takes(other) || one.speed > other.speed);
  return points.filter((one) => !points.some((other) => beats(other, one)))
    .sort((one, other) => takes(one) - takes(other) || one.speed - other.speed);
}
