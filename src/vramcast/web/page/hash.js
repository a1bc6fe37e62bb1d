/**
 * The address of a view, which is the share link: #/PAGE/REST?QUESTION?QUESTION...
 * A question is written as name=value&name=value; several of them are plans to compare.
 */

const READABLE = /%(2C|3A|40|2F)/g; // , : @ / need no escape behind the '#'

function unescaped(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // a link cut in the middle of an escape
  }
}

function escaped(text) {
  return encodeURIComponent(text).replace(READABLE, decodeURIComponent);
}

/** The parts of `location.hash`: { page, rest, queries }. */
export function parsed(hash) {
  const [path, ...queries] = hash.replace(/^#\/?/, "").split("?");
  const [page, ...rest] = path.split("/").map(unescaped);
  return { page, rest, queries };
}

/** The hash of these parts. */
export function written({ page, rest = [], queries = [] }) {
  return "#/" + [page, ...rest].map(escaped).join("/") + queries.map((query) => "?" + query).join("");
}

/** A question as it stands in a link; values that are empty are left out. */
export function questionText(question) {
  return Object.entries(question)
    .filter(([, value]) => value !== undefined && value !== null && value !== "")
    .map(([name, value]) => `${escaped(name)}=${escaped(String(value))}`)
    .join("&");
}

/** The question that a link holds, every value a text. */
export function questionOf(query) {
  const pairs = query
    .split("&")
    .filter(Boolean)
    .map((pair) => {
      const [name, ...value] = pair.split("=");
      return [unescaped(name), unescaped(value.join("="))];
    });
  return Object.fromEntries(pairs);
}
