// Small helpers for the document. Text is always set as text, never as HTML.

export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") element.className = value;
    else if (name.startsWith("aria-") || name === "role" || name === "for" || name === "scope") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

// Set a text only if it changed: writing it again would cost a layout.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export const clusterColor = (k) => `--c${k % 8}`;

// Algorithms have colours of their own where each run has another one; otherwise runs are counted.
const ALGORITHMS = ["cdfl", "fedsoft", "fedem", "fedasync", "fedbuff", "ifca", "local-keep", "local", "frozen", "oracle"];

export function runColors(algorithms) {
  const places = algorithms.map((name) => ALGORITHMS.indexOf(name));
  const isEach = !places.includes(-1) && new Set(places).size === places.length;
  return algorithms.map((_, i) => `--a${isEach ? places[i] : i % ALGORITHMS.length}`);
}
