/** Choices that a question cannot have, asked of the service when a visitor comes to them. */

import { ask } from "./backend.js";
import { questionText } from "./hash.js";
import { bodyOf } from "./question_state.js";

/**
 * @param {string} command
 * @param {Object<string, string>} kinds  of the options, by name
 * @returns {{of, cure}}  `of(question, name)`: what is refused of an option, each { value, said, cure? };
 *   `cure(question, name, value)`: what to set with a choice, as far as it was asked for
 */
export function refusing(command, kinds) {
  const kept = new Map();
  const placeOf = (question, name) => {
    const others = { ...question };
    delete others[name];
    return `${name} ${questionText(others)}`;
  };
  const of = async (question, name) => {
    const place = placeOf(question, name);
    if (!kept.has(place)) {
      const body = { command, question: bodyOf(question, kinds), option: name };
      kept.set(place, await ask("/api/choices", body).then(({ refused }) => refused, () => []));
    }
    return kept.get(place);
  };
  const cure = (question, name, value) => kept.get(placeOf(question, name))?.find((one) => one.value === value)?.cure;
  return { of, cure };
}
