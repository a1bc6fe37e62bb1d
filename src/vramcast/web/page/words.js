/** The page's own words, in each language. What reports say (categories, phases, causes) comes from the service. */

import { ACCURACY_WORDS } from "./words/accuracy.js";
import { ANSWER_WORDS } from "./words/answer.js";
import { FAILURE_WORDS } from "./words/failure.js";
import { FORM_WORDS } from "./words/form.js";
import { PLAN_WORDS } from "./words/plan.js";
import { REPLAY_WORDS } from "./words/replay.js";
import { SHELL_WORDS } from "./words/shell.js";
import { START_WORDS } from "./words/start.js";
import { TABLE_WORDS } from "./words/tables.js";

/** Key -> language -> text; a page adds its table here. */
export const WORDS = {
  ...SHELL_WORDS, ...FORM_WORDS, ...ANSWER_WORDS, ...PLAN_WORDS, ...FAILURE_WORDS, ...REPLAY_WORDS, ...TABLE_WORDS,
  ...ACCURACY_WORDS, ...START_WORDS,
};

/** The function that says a key in a language: t("fits", { needed: "3 GiB" }). */
export function speaker(language) {
  return (key, values = {}) => {
    const text = WORDS[key]?.[language];
    if (text === undefined) throw new Error(`no words for ${key}`);
    return filled(text, values);
  };
}

/** A sentence with its gaps filled. */
export function filled(text, values) {
  return text.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? String(values[name]) : whole));
}

/** Whether the page has words of its own for a key. */
export function hasWords(key) {
  return Object.hasOwn(WORDS, key);
}
