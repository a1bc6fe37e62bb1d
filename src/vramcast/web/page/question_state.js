/** Plans that a page asks about: their questions, answers, and what is under way. Nothing here touches the document. */

import { ask } from "./backend.js";
import { questionOf, questionText } from "./hash.js";

const KEPT = 32;

/** A question as the service takes it: flags are true or false, all else texts. */
export function bodyOf(question, kinds) {
  const value = ([name, text]) => [
    name,
    kinds[name] === "flag" && (text === "true" || text === "false") ? text === "true" : text,
  ];
  return Object.fromEntries(Object.entries(question).map(value));
}

/** The option that a sentence of the service is about, where it names one: rather one that the question gives. */
export function blamedOption(sentence, names, question = {}) {
  const known = (word) => {
    const name = word?.toLowerCase().replaceAll("_", "-");
    return names.includes(name) ? name : null;
  };
  const named = [...sentence.matchAll(/([\w-]+)=/g)].map(([, word]) => known(word)).filter(Boolean);
  if (named.length) return named.find((name) => Object.hasOwn(question, name)) ?? named[0];
  const what = /^(?:unknown|which) ([\w-]+)/.exec(sentence)?.[1];
  return known(what === "GPU" || what === "GPUs" || what === "instance" ? "gpus" : what);
}

/** Answers by question, so that going back shows them at once; the oldest are forgotten. */
function memory() {
  const answers = new Map();
  return {
    get: (text) => answers.get(text),
    set: (text, answer) => {
      answers.set(text, answer);
      if (answers.size > KEPT) answers.delete(answers.keys().next().value);
    },
  };
}

/**
 * Asks one path, one question at a time per plan; an older question under way is given up.
 *
 * @param {{path: string, kinds: Object<string, string>, answered: (plan) => void}} given
 */
export function asker({ path, kinds, answered }) {
  const answers = memory();
  return async (plan) => {
    const text = questionText(plan.question);
    if (text === plan.text) return;
    plan.text = text;
    plan.under?.abort();
    plan.under = null;
    const known = answers.get(text);
    if (known) {
      Object.assign(plan, { answer: known, error: "" });
      answered(plan);
      return;
    }
    const under = new AbortController();
    plan.under = under;
    try {
      const answer = await ask(path, bodyOf(plan.question, kinds), { signal: under.signal });
      answers.set(text, answer);
      if (plan.text === text) Object.assign(plan, { answer, error: "" });
    } catch (error) {
      if (under.signal.aborted) return;
      Object.assign(plan, {
        error: error.message,
        sentence: error.sentence ?? "",
        unreachable: error.status === undefined,
        text: error.status ? plan.text : null,
      });
    }
    if (plan.under === under) plan.under = null;
    if (!under.signal.aborted) answered(plan);
  };
}

/** Most plans of a comparison. */
export const MOST_PLANS = 4;

/** A plan that was not asked yet. */
function planOf(query) {
  return { question: questionOf(query), text: null, answer: null, error: "", sentence: "", unreachable: false, under: null };
}

/** The answer to the question of a plan; nothing where the one that is there answers an older question. */
export function answerTo({ answer, error }) {
  return error ? null : answer;
}

/** The same plan, to be asked by itself. */
export function copyOf(plan) {
  return { ...plan, text: null, under: null };
}

/**
 * The plan of a query of the address: the one that asked it already, or a new one, which shows the answer that stood in
 * its place until its own is there.
 */
export function planFor(query, before, index) {
  const fresh = planOf(query);
  const text = questionText(fresh.question);
  if (before[index] && questionText(before[index].question) === text) return before[index];
  const same = before.find(({ question }) => questionText(question) === text);
  if (same) return { ...copyOf(same), view: undefined };
  const there = before[index];
  return there ? { ...fresh, answer: there.answer, view: there.view } : fresh;
}

const DIGITS = 4; // of a share that nobody typed

/** What is one value, as the text of its option; lists and what is unknown are left out. */
function plainTexts(values) {
  const plain = Object.entries(values).filter(([, value]) => value !== undefined && typeof value !== "object");
  const written = (value) =>
    String(typeof value === "number" && !Number.isInteger(value) ? Number(value.toPrecision(DIGITS)) : value);
  return Object.fromEntries(plain.map(([name, value]) => [name.replaceAll("_", "-"), written(value)]));
}

/** What the times of a deployment are those of; other answers have no such lengths. */
function lengths({ time: { prompt_tokens: prompt, answer_tokens: answer } = {} }) {
  return { input_len: prompt, output_len: answer };
}

/** What the answer took for options that the question leaves open, by option name. */
export function assumedOf(answer, t) {
  if (!answer) return {};
  const { workload, requests, plan, peft, ...rest } = answer.question;
  const stored = requests ? { weights: t("as_stored"), ...lengths(answer) } : {};
  return plainTexts({ ...rest, ...workload, ...stored, ...requests, ...plan, ...peft });
}

/**
 * The same of a search, by option name. What it varied, the options that take several values, has no single one: of
 * those only the lists that it says it looked at are known.
 *
 * @param {Object<string, string>} kinds  of the options, by name
 */
export function assumedBySearch(answer, kinds, t) {
  if (!answer) return {};
  const [best] = answer.plans ?? [answer];
  const { goal, global_batch: batch, engine, weights, workload, requests, plan } = answer.question;
  const fraction = new Set(answer.plans?.map(({ question }) => question.plan.memory_fraction) ?? []);
  const common = fraction.size === 1 ? { memory_fraction: [...fraction][0] } : {};
  const fixed = plainTexts({ ...workload, ...(best ? lengths(best) : {}), ...requests, ...common, ...plan });
  const listed = (names) => [names ?? []].flat().map((name) => (name === "as stored" ? t("as_stored") : name)).join(", ");
  return {
    ...Object.fromEntries(Object.entries(fixed).filter(([name]) => kinds[name] !== "names")),
    ...plainTexts({ goal, global_batch: batch, engine: listed(engine), weights: listed(weights) }),
  };
}
