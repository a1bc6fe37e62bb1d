/** A place to drop a file on; a button chooses one without dragging. */

import { h, uniqueId } from "../dom.js";

/**
 * The place.
 *
 * @param {{title: string, hint: string, taken: (file: File) => void, many?: string}} given
 * @returns the node; the file input inside takes the focus
 */
export function dropPlace({ title, hint, taken }) {
  const id = uniqueId("file");
  const input = h("input", { id, type: "file", class: "unseen", onchange: () => {
    if (input.files.length) taken(input.files[0]);
    input.value = ""; // so that the same file can be chosen again
  } });
  const node = h("div", { class: "drop" }, input,
    h("label", { for: id }, h("b", {}, title), h("span", { class: "soft" }, hint)));
  const over = (is) => (event) => {
    event.preventDefault();
    node.classList.toggle("over", is);
  };
  node.addEventListener("dragover", over(true));
  node.addEventListener("dragleave", over(false));
  node.addEventListener("drop", (event) => {
    over(false)(event);
    const [file] = event.dataTransfer.files;
    if (file) taken(file);
  });
  return node;
}
