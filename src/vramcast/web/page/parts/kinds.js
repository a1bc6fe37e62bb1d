/** Names of the kinds of memory that a recording tells apart. */

import { hasWords } from "../words.js";

/** The name of a kind in the language of the page. */
export function categoryName(name, { t, named }) {
  return hasWords(`live.${name}`) ? t(`live.${name}`) : named("category", name);
}
