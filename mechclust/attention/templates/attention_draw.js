// Drawing: from integer weights to pixels, and the axes round them. Nothing here knows what is selected.

// Even steps in CIELAB from white.
const POSITIVE = ["#ffffff", "#e5e6f3", "#cbcee6", "#b1b6da", "#969fce", "#7b88c1", "#5f73b5", "#3f5ea8", "#0a4a9c"];
const NEGATIVE = ["#ffffff", "#fbe4e2", "#f5c9c5", "#edafa9", "#e4948e", "#d97973", "#cd5e5a", "#c04042", "#b2182b"];
const OUT_OF_REACH = "#e3e6e9", SOFT = "#5b6875", MARK = "#c2007b";
// Okabe and Ito's palette, which people with any colour vision can tell apart, with two dark ones for its yellow and
// black; then the same with another cue.
const HUES = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#7a6a00", "#444444"];
const CUES = ["solid", "double", "dotted"];
const OTHERS = { hue: "#a9afb6", cue: "solid" }; // one grey for all labels beyond
const STRIP = 7, CAPTION = 19, MOST_NAME = 92, STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000];
const SVG = "http://www.w3.org/2000/svg";

function show(place, data) { // a notebook may show one output in two places
  for (const root of document.querySelectorAll(`[id="${place}"]:not([data-drawn])`)) {
    root.dataset.drawn = "true";
    view(root, data);
  }
}

const packed = ([r, g, b]) => (255 << 24 | b << 16 | g << 8 | r) >>> 0; // little-endian, as ImageData has it

// 513 colours, from the most negative weight to the most positive.
const PALETTE = Uint32Array.from({ length: 513 }, (_, i) => packed(between(i < 256 ? NEGATIVE : POSITIVE, Math.abs(i - 256) / 256)));
// A block's weight was rounded to 8 bits, so it may be a little stronger than the strongest weight.
const paletteColour = shaded => PALETTE[256 + Math.round(256 * Math.max(-1, Math.min(1, shaded)))];
const cssColour = shaded => { const c = paletteColour(shaded); return `rgb(${c & 255} ${c >> 8 & 255} ${c >> 16 & 255})`; };
const GREY = packed(rgb(OUT_OF_REACH));

// Integers of all heads, [head][query * n + key]; what is above the diagonal of causal ones was not sent.
function unpack(text, heads, n, causal) {
  const sent = new Int16Array(octets(text));
  if (!causal) return heads.map((_, h) => sent.subarray(h * n * n, (h + 1) * n * n));
  const size = n * (n + 1) / 2;
  return heads.map((_, h) => {
    const whole = new Int16Array(n * n);
    for (let q = 0, from = h * size; q < n; from += ++q) whole.set(sent.subarray(from, from + q + 1), q * n);
    return whole;
  });
}

// A pixel a cell; or for a thumbnail of many tokens a pixel for `pool` x `pool` of them, the strongest of which shows,
// so that a thin diagonal stays visible. The first query is `ahead` positions after the first key.
function paint(canvas, weights, n, causal, shade, pool = 1, ahead = 0) {
  const side = canvas.width = canvas.height = Math.ceil(n / pool);
  const image = new ImageData(side, side), pixels = new Uint32Array(image.data.buffer);
  for (let y = 0; y < side; y++) for (let x = 0; x < side; x++) {
    let best = 0;
    const last = Math.min(n, (y + 1) * pool), right = Math.min(n, (x + 1) * pool);
    for (let q = y * pool; q < last; q++) for (let k = x * pool; k < right; k++) {
      const w = weights[q * n + k];
      if (Math.abs(w) > Math.abs(best)) best = w;
    }
    pixels[y * side + x] = causal && x > y + ahead ? GREY : paletteColour(shade(best));
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

function svg(tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

const ruler = document.createElement("canvas").getContext("2d");
const TOKEN_FONT = 'ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace';
function fit(text, size, room) {
  ruler.font = `${size}px ${TOKEN_FONT}`;
  const signs = [...text.slice(0, 60)]; // more never fits
  if (signs.join("") === text && ruler.measureText(text).width <= room) return text;
  while (signs.length > 1 && ruler.measureText(`${signs.join("")}…`).width > room) signs.pop();
  return `${signs.join("")}…`;
}
const widest = (tokens, size) => {
  ruler.font = `${size}px ${TOKEN_FONT}`;
  return tokens.reduce((most, token) => Math.max(most, ruler.measureText(token.slice(0, 40)).width), 0);
};

// How large a cell is, and what stands left of the cells and below them, in a box `width` wide.
function measure(tokens, labelled, width) {
  const n = tokens.length, most = Math.max(28, Math.floor(220 / n)), strip = labelled ? STRIP + 5 : 0;
  const plan = (names, room, below) => {
    const left = CAPTION + room + strip, cell = Math.max(1, Math.min(most, Math.floor(Math.min(560, width - left - 2) / n)));
    return { names, strip, cell, side: n * cell, left, below: CAPTION + below + strip };
  };
  for (const size of [12, 11, 10, 9]) { // names in the largest letters that fit the rows
    const room = Math.min(MOST_NAME, Math.ceil(widest(tokens, size))) + 6, found = plan(size, room, room);
    if (found.cell > size) return found;
  }
  return plan(0, 26, 16); // positions only
}

// Names or positions along both axes from the first ones, and strips of label colours; returns the texts, to mark the
// selected ones.
function axes(box, tokens, colours, { names, strip, cell, side, left, below }, first = { q: 0, k: 0 }, n = tokens.length) {
  const texts = { query: [], key: [] }, middle = i => (i + .5) * cell, size = names || 10;
  const step = names ? 1 : STEPS.find(s => s * cell >= 24) ?? 5000;
  box.replaceChildren();
  box.setAttribute("width", left + side + 1);
  box.setAttribute("height", side + below);
  for (let i = 0; i < n; i += step) {
    const shown = at => names ? fit(tokens[at], names, MOST_NAME) : `${at}`, style = { class: "name", "font-size": size, fill: names ? INK : SOFT };
    const turn = names ? "rotate(90)" : "", anchor = names ? "start" : "middle", y = side + strip + (names ? 5 : 12);
    texts.query[i] = svg("text", { ...style, x: left - strip - 5, y: middle(i), dy: ".35em", "text-anchor": "end" }, shown(first.q + i));
    texts.key[i] = svg("text", { ...style, transform: `translate(${left + middle(i)} ${y}) ${turn}`, dy: names ? ".35em" : 0, "text-anchor": anchor }, shown(first.k + i));
    box.append(texts.query[i], texts.key[i]);
  }
  for (let i = 0; strip && i < n; i++) {
    const query = colours[first.q + i], key = colours[first.k + i];
    if (query) box.append(...swatch(left - STRIP - 3, i * cell, STRIP, cell, query, false));
    if (key) box.append(...swatch(left + i * cell, side + 3, cell, STRIP, key, true));
  }
  const caption = { "font-size": 11, fill: SOFT, "text-anchor": "middle" }, long = side > 200;
  box.append(
    svg("text", { ...caption, transform: `translate(11 ${side / 2}) rotate(-90)` }, long ? "query (attends)" : "query"),
    svg("text", { ...caption, x: left + side / 2, y: side + below - 5 }, long ? "key (is attended to)" : "key"));
  return texts;
}

// A label's colour on a strip; its second cue, where there is one, is a gap along the strip or across it.
function swatch(x, y, width, height, { hue, cue }, across) {
  const rect = (dx, dy, w, h) => svg("rect", { x: x + dx, y: y + dy, width: w, height: h, fill: hue });
  const third = STRIP / 3, half = Math.max(1, (across ? width : height) / 2);
  if (cue === "double") return across ? [rect(0, 0, width, third), rect(0, 2 * third, width, third)] : [rect(0, 0, third, height), rect(2 * third, 0, third, height)];
  if (cue === "dotted") return [across ? rect(0, 0, half, height) : rect(0, 0, width, half)];
  return [rect(0, 0, width, height)];
}

// Colours of the labels, as many as people can tell apart.
function dyesOf(labels) {
  const known = [...new Set(labels.filter(label => label !== null))], distinct = HUES.length * CUES.length;
  return new Map(known.map((label, i) => [label, i < distinct ? { hue: HUES[i % HUES.length], cue: CUES[Math.floor(i / HUES.length)] } : OTHERS]));
}
const dyed = (element, { hue, cue }) => { element.dataset.cue = cue; element.style.setProperty("--hue", hue); return element; };
const entryOf = (colour, className, text) => el("span", "entry", dyed(el("i"), colour), el("bdi", className, text));
function legend(dyes) {
  const all = [...dyes], shown = all.filter(([, colour]) => colour !== OTHERS), rest = all.length - shown.length;
  const more = rest ? [entryOf(OTHERS, "", `${rest} more ${rest === 1 ? "label" : "labels"}`)] : [];
  return all.length ? [el("div", "labels", ...shown.map(([label, colour]) => entryOf(colour, "", label)), ...more)] : [];
}

// The colours from none, or from the most negative weight, to the top one.
function colourScale(top, signed, lifted, causal) {
  const ends = signed ? [-1, -.5, 0, .5, 1] : [0, .5, 1], stops = signed ? [...NEGATIVE.slice(1).reverse(), ...POSITIVE] : POSITIVE;
  const ticks = ends.map(s => Math.sign(s) * top * (lifted ? s * s : Math.abs(s)));
  const short = tick => `${+(Math.abs(tick) < .01 ? tick.toPrecision(2) : tick.toFixed(3))}`.replace("-", "−");
  const bar = el("div", "bar");
  bar.style.background = `linear-gradient(to right, ${stops.join(", ")})`;
  return [bar, el("div", "ticks", ...ticks.map(tick => el("span", "", short(tick)))), ...(causal ? [el("div", "soft", el("i", "grey"), "later tokens, out of reach")] : [])];
}

// Buttons that show the heads of one role, and choose the first of them; empty where heads have no roles.
function roleChoice(roles, thumbs, choose) {
  const ways = ["all heads", ...new Set(roles)].map((role, i) => button("way", role, () => {
    thumbs.forEach((thumb, h) => { thumb.hidden = i > 0 && roles[h] !== role; });
    ways.forEach((way, j) => way.setAttribute("aria-pressed", i === j));
    choose(Math.max(0, roles.indexOf(role)));
  }));
  ways[0].setAttribute("aria-pressed", true);
  return el("div", "choice roles", ...(roles.length ? ways : []));
}

// Over the cells: faint lines between those that are large, and hatching where a causal query cannot reach.
function overlay(n, causal, { cell, side, left }, id) {
  const parts = [], lines = [];
  if (causal && n > 1) {
    const hatch = svg("pattern", { id, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" });
    hatch.append(svg("rect", { width: 2.5, height: 6, fill: "#fff", opacity: .65 }));
    let stairs = `M${left + cell} 0H${left + side}V${side - cell}`;
    for (let i = n - 1; i > 1; i--) stairs += `H${left + i * cell}V${(i - 1) * cell}`;
    parts.push(hatch, svg("path", { d: `${stairs}H${left + cell}Z`, fill: `url(#${id})` }));
  }
  if (cell >= 9) {
    for (let i = 1; i < n; i++) lines.push(`M${left} ${i * cell}h${side}M${left + i * cell} 0v${side}`);
    parts.push(svg("path", { d: lines.join(""), stroke: INK, "stroke-opacity": .09, fill: "none" }));
  }
  return parts;
}
