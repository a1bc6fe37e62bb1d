/**
 * Elements from plain values. Text goes in as text, never as markup, and styles as attributes or classes: the page
 * runs under a Content-Security-Policy that allows no inline style.
 */

const SVG = "http://www.w3.org/2000/svg";

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...present(children));
  return node;
}

/** Children without gaps, lists flattened. */
export function present(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
}

/**
 * An HTML element: h("p", { class: "soft", onclick: act }, "text", child). Attributes that are null or false are left
 * out.
 */
export function h(tag, attributes, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** An SVG element, like `h`. */
export function svg(tag, attributes, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

/** New children for a node; what had the focus keeps it where an element with the same `data-key` is there again. */
export function refill(node, ...children) {
  const focused = node.contains(document.activeElement) ? document.activeElement.dataset?.key : undefined;
  node.replaceChildren(...present(children));
  if (focused !== undefined) node.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

let numbered = 0;

/** An id nothing else has. */
export function uniqueId(prefix) {
  numbered += 1;
  return `${prefix}-${numbered}`;
}

/** Calls `act` once nothing has called for `wait` milliseconds. */
export function settled(act, wait) {
  let timer;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => act(...given), wait);
  };
}
