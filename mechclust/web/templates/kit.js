// Elements, colours and packed numbers: what every interactive view draws with, put before its own scripts.

const INK = "#1d2733";

function octets(text) {
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes.buffer;
}

function el(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  // Without it JupyterLab takes keys for its own: x, or d d, deletes the cell. It reads the attribute of the element in
  // focus before it asks whether a shortcut is meant, and that of the elements around it only afterwards.
  made.dataset.lmSuppressShortcuts = "true";
  made.append(...children);
  return made;
}
function button(className, content, act) { // of a text, or of several elements
  const made = el("button", className, ...[content].flat());
  made.type = "button";
  made.addEventListener("click", act);
  return made;
}
// A swatch of a legend.
function mark({ hue, square }) {
  const made = el("i", square ? "square" : "");
  made.style.background = hue;
  return made;
}

const rgb = hex => [1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16));
// The colour at a share, from 0 to 1, of the way along evenly spaced stops.
function between(stops, share) {
  const way = share * (stops.length - 1), at = Math.min(stops.length - 2, Math.floor(way)), part = way - at, end = rgb(stops[at + 1]);
  return rgb(stops[at]).map((start, c) => Math.round(start * (1 - part) + end[c] * part));
}
