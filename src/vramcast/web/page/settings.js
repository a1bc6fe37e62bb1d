/** Language and colours: as the browser wishes, until a visitor chooses. The choice is remembered in this browser. */

export const LANGUAGES = ["en", "zh"];
export const THEMES = ["auto", "light", "dark"];

function remembered(name, choices) {
  try {
    const value = localStorage.getItem(`vramcast.${name}`);
    return choices.includes(value) ? value : null;
  } catch {
    return null; // storage is refused
  }
}

/** Keeps a choice for the next visit, where the browser allows it. */
export function remember(name, value) {
  try {
    localStorage.setItem(`vramcast.${name}`, value);
  } catch {
    return;
  }
}

/** "en" or "zh". */
export function language() {
  const wished = (navigator.languages ?? [navigator.language]).find((name) => LANGUAGES.includes(name.slice(0, 2)));
  return remembered("language", LANGUAGES) ?? wished?.slice(0, 2) ?? "en";
}

/** "auto", "light" or "dark". */
export function theme() {
  return remembered("theme", THEMES) ?? "auto";
}

/** Puts a theme on the page: the style sheet reads `data-theme`, and follows the browser by itself. */
export function wear(name) {
  document.documentElement.dataset.theme = name;
}
