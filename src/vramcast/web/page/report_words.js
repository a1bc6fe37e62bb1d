/** What reports say, from the service: names of categories, phases, causes, and what a change costs. */

import { askOnce } from "./backend.js";

/** The function that names things as reports do: named("category", "weights"); the name itself where they do not. */
export async function reportWords(language) {
  const words = await askOnce(`/api/words?lang=${language}`).then(
    (reply) => reply.words,
    () => ({}),
  );
  return (kind, name) => words[`${kind}.${name}`] ?? name;
}
