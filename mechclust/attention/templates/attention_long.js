// The view of many tokens: a map of the strongest weight of each block, a window of single cells, and the strongest
// keys of a query. Time to draw is that of the map and the window, for any number of tokens.

const SPANS = [32, 64, 128, 256], WINDOW = 512, MAP = 374, LISTED = 10, AROUND = 4; // tokens, and pixels

function view(root, { tokens, labels, heads, models, roles, causal, steps, tiles }) {
  const n = tokens.length, { block, kept } = tiles, side = Math.ceil(n / block), covered = side * block, maps = unpackTiles(tiles, heads, n, side, steps);
  let top = 1, signed = false;
  for (const { weights } of maps.flat()) for (const w of weights) {
    if (w < 0) signed = true;
    if (Math.abs(w) > top) top = Math.abs(w);
  }
  const dyes = dyesOf(labels), colours = labels.map(label => dyes.get(label));
  // `first` is the window's corner; `cell` the pair that is told of, and `held` whether it stays.
  const state = { head: 0, model: 0, span: 64, first: { q: 0, k: 0 }, cell: null, held: false, lifted: true };
  const shade = w => Math.sign(w) * (state.lifted ? Math.sqrt(Math.abs(w) / top) : Math.abs(w) / top);
  const number = w => (w / steps).toFixed(4).replace("-", "−"), map = () => maps[state.model][state.head];

  // ---- weights ----

  // Of a key that is not among the query's strongest, the weight is not on the page, but it is no larger than theirs.
  function weight({ keys, weights }, q, k) {
    if (causal && k > q) return "none: a later token";
    for (let i = q * kept; i < (q + 1) * kept; i++) if (keys[i] === k && weights[i]) return number(weights[i]);
    return `at most ${number(Math.max(1, Math.abs(weights[(q + 1) * kept - 1])))}`;
  }
  const keysOf = q => Array.from({ length: kept }, (_, i) => ({ q, k: map().keys[q * kept + i], w: map().weights[q * kept + i] })).filter(({ w }) => w);
  function queriesOf(k) {
    const { keys, weights } = map(), found = [];
    for (let i = 0; i < keys.length; i++) if (keys[i] === k && weights[i]) found.push({ q: Math.floor(i / kept), k, w: weights[i] });
    return found.sort((a, b) => Math.abs(b.w) - Math.abs(a.w));
  }
  function strongestIn(first) { // of a block's cells that are on the page
    let best = { ...first, w: 0 };
    for (let q = first.q; q < Math.min(n, first.q + block); q++) for (const cell of keysOf(q)) {
      if (cell.k >= first.k && cell.k < first.k + block && Math.abs(cell.w) > Math.abs(best.w)) best = cell;
    }
    return best;
  }

  // ---- what there is to see ----

  const thumbs = heads.map((head, h) => {
    const pictures = models.concat(models.length ? [] : [""]).map(() => el("canvas"));
    const under = el("span", "under", el("b", "", head.name), ...(head.value ? [" ", el("span", "value", head.value)] : []));
    return Object.assign(button("thumb", [el("span", "pictures", ...pictures), under], () => choose(h)), { pictures });
  });
  const choices = (names, act) => names.map((name, i) => button("way", name, () => act(i)));
  const spans = choices(SPANS.map(String), i => { const { q, k } = middle(); state.span = SPANS[i]; centre(q, k); });
  const which = choices(models, i => { state.model = i; paintAll(); });
  const whole = plotOf("cells", MAP), near = plotOf("cells", WINDOW);
  const readout = el("div", "readout"), lists = el("div", "lists"), hint = el("div", "hint"), scale = el("div", "scale"), lift = el("input");
  lift.type = "checkbox";
  lift.checked = true;
  readout.setAttribute("aria-live", "polite");
  near.plot.tabIndex = 0;
  near.plot.setAttribute("role", "application");
  near.plot.setAttribute("aria-label", "Attention weights of a window. Arrow keys move over cells, Enter holds one, Escape lets go.");
  root.replaceChildren(
    el("div", "head", `${heads.length} ${heads.length === 1 ? "head" : "heads"}, ${n} tokens, ${causal ? "causal" : "bidirectional"}`),
    el("div", "soft", `Left: the strongest weight of every ${block} × ${block} tokens. Right: single weights, of each query's ${kept} strongest keys; others are white, and no larger than these.`),
    ...(heads.length > 1 ? [roleChoice(roles, thumbs, choose), el("div", "thumbs", ...thumbs)] : []),
    el("div", "main long",
      el("div", "whole", el("div", "title", el("b", "", "All tokens"), " ", el("span", "ways", ...which)), whole.plot,
        readout, hint, scale, el("label", "lift", lift, "square-root scale, lifts small weights"), ...legend(dyes)),
      el("div", "large", el("div", "title", el("b", "", "Window of"), " ", el("span", "ways", ...spans), " tokens"), el("div", "scroll", near.plot))),
    lists);
  root.classList.add("mechclust-attention");

  function plotOf(name, pixels) {
    const canvas = el("canvas", name), frame = svg("svg", { "aria-hidden": "true" }), marks = svg("svg", { class: "marks", "aria-hidden": "true" });
    Object.assign(canvas.style, { width: `${pixels}px`, height: `${pixels}px` });
    return { canvas, frame, marks, plot: el("div", "plot", frame, canvas, marks), pixels };
  }

  // ---- drawing ----

  function paintAll() {
    thumbs.forEach((thumb, h) => {
      thumb.setAttribute("aria-pressed", h === state.head);
      thumb.pictures.forEach((canvas, m) => {
        paint(canvas, maps[m][h].blocks, side, causal, shade, 3);
        canvas.style.width = canvas.style.height = "76px";
      });
    });
    which.forEach((way, m) => way.setAttribute("aria-pressed", m === state.model));
    paint(whole.canvas, map().blocks, side, causal, shade);
    Object.assign(whole.plot.style, { width: `${MAP}px`, height: `${MAP}px` });
    whole.canvas.style.left = 0;
    scale.replaceChildren(...colourScale(top / steps, signed, state.lifted, causal));
    paintWindow();
  }
  function paintWindow() {
    const { span, first } = state, cells = new Int16Array(span * span), { keys, weights } = map();
    for (let q = 0; q < span; q++) for (let i = (first.q + q) * kept; i < (first.q + q + 1) * kept; i++) {
      const k = keys[i] - first.k;
      if (k >= 0 && k < span && weights[i]) cells[q * span + k] = weights[i];
    }
    paint(near.canvas, cells, span, causal, shade, 1, first.q - first.k);
    const cell = WINDOW / span, strip = dyes.size ? STRIP + 5 : 0, names = cell > 11 ? 11 : 0, room = CAPTION + strip + MOST_NAME + 6;
    const size = { names, strip, cell, side: WINDOW, left: room, below: names ? room : CAPTION + strip + 16 };
    near.texts = axes(near.frame, tokens, colours, size, first, span);
    near.size = size;
    near.canvas.style.left = `${size.left}px`;
    Object.assign(near.plot.style, { width: `${size.left + WINDOW + 1}px`, height: `${WINDOW + size.below}px` });
    for (const [{ marks }, width] of [[near, size.left + WINDOW + 2], [whole, MAP]]) {
      marks.setAttribute("width", width);
      marks.setAttribute("height", width);
    }
    spans.forEach((way, i) => way.setAttribute("aria-pressed", SPANS[i] === span));
    refresh();
  }
  function refresh() {
    const cell = state.cell ?? keysOf(n - 1)[0] ?? { q: n - 1, k: n - 1 }, { q, k } = cell, { span, first } = state;
    const box = (x, y, width, height, stroke) => svg("rect", { x, y, width, height, fill: "none", stroke, "stroke-width": 1.5 });
    const pixel = MAP / covered, { left, cell: wide } = near.size, inside = (at, from) => at >= from && at < from + span;
    whole.marks.replaceChildren(box(first.k * pixel, first.q * pixel, span * pixel, span * pixel, INK), box(k * pixel - 3, q * pixel - 3, 6, 6, MARK));
    near.marks.replaceChildren(
      ...(inside(q, first.q) ? [box(left, (q - first.q) * wide, WINDOW, wide, MARK)] : []),
      ...(inside(k, first.k) ? [box(left + (k - first.k) * wide, 0, wide, WINDOW, MARK)] : []));
    for (const [axis, at] of [["query", q - first.q], ["key", k - first.k]]) near.texts[axis].forEach((name, i) => name.classList.toggle("marked", i === at));
    const who = i => el("span", "who", el("span", "at", `${i}`), " ", el("bdi", "token", tokens[i]), ...(colours[i] ? [" ", entryOf(colours[i], "soft", labels[i])] : []));
    const row = (name, value) => [el("span", "soft", name), value];
    readout.replaceChildren(...row("query", who(q)), ...row("key", who(k)), ...maps.flatMap((map, m) => row(models[m] ?? "weight", el("b", "", weight(map[state.head], q, k)))));
    hint.textContent = state.held ? "this cell is held; press Esc or click it to let go" : "click a cell of the window to hold it, the map to move the window";
    lists.replaceChildren(
      list("strongest keys of the query", q, keysOf(q), "k"),
      list("strongest queries of the key", k, queriesOf(k), "q"));
  }
  function list(title, token, cells, other) { // with the words around each, to click
    const around = (i, from, to) => el("span", "soft", tokens.slice(Math.max(0, i + from), Math.max(0, i + to)).join(""));
    return el("div", "list", el("div", "soft", `${title} ${token} `, el("bdi", "token", tokens[token])), ...cells.slice(0, LISTED).map(cell => {
      const i = cell[other];
      return button("line", [el("b", "", number(cell.w)), el("span", "at", `${i}`), el("bdi", "text", around(i, -AROUND, 0), el("span", "token", tokens[i]), around(i, 1, AROUND + 1))], () => {
        Object.assign(state, { cell, held: true });
        centre(cell.q, cell.k);
      });
    }));
  }

  // ---- what a person does ----

  const middle = () => ({ q: state.first.q + state.span / 2, k: state.first.k + state.span / 2 });
  function centre(q, k) {
    const within = at => Math.max(0, Math.min(n - state.span, Math.round(at - state.span / 2)));
    state.first = { q: within(q), k: within(k) };
    paintWindow();
  }
  function choose(head) { state.head = head; paintAll(); }
  let asked = 0;
  function point(cell) {
    if (state.held) return;
    state.cell = cell;
    if (!asked) asked = requestAnimationFrame(() => { asked = 0; refresh(); });
  }
  function at({ canvas }, event, count, start) {
    const box = canvas.getBoundingClientRect(), index = (place, from, size) => Math.max(0, Math.min(count - 1, Math.floor((place - from) / size * count)));
    const within = i => Math.min(n - 1, i); // the map's last block may reach beyond the last token
    return { q: within(start.q + index(event.clientY, box.top, box.height)), k: within(start.k + index(event.clientX, box.left, box.width)) };
  }
  const inMap = event => at(whole, event, covered, { q: 0, k: 0 }), inWindow = event => at(near, event, state.span, state.first);
  whole.canvas.addEventListener("pointermove", event => {
    const { q, k } = inMap(event);
    if (event.buttons) centre(q, k);
    point(strongestIn({ q: q - q % block, k: k - k % block }));
  });
  whole.canvas.addEventListener("click", event => { const { q, k } = inMap(event); centre(q, k); });
  near.canvas.addEventListener("pointermove", event => point(inWindow(event)));
  for (const { canvas } of [whole, near]) canvas.addEventListener("pointerleave", () => point(null));
  function hold(cell) {
    state.held = !(state.held && state.cell.q === cell.q && state.cell.k === cell.k);
    state.cell = cell;
    refresh();
  }
  near.canvas.addEventListener("click", event => hold(inWindow(event)));
  near.plot.addEventListener("keydown", event => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key], from = state.cell ?? middle();
    if (step) {
      const [q, k] = [from.q + step[0], from.k + step[1]].map(i => Math.max(0, Math.min(n - 1, i))), { first, span } = state;
      state.cell = { q, k };
      if (q < first.q || k < first.k || q >= first.q + span || k >= first.k + span) centre(q, k);
      else refresh();
    } else if (event.key === "Enter" || event.key === " ") hold(from);
    else return;
    event.preventDefault();
  });
  root.addEventListener("keydown", event => { if (event.key === "Escape") { state.held = false; point(null); } });
  lift.addEventListener("change", () => { state.lifted = lift.checked; paintAll(); });

  state.first = { q: n - state.span, k: n - state.span };
  paintAll();
}

// By model and head: the blocks' weights, and row by row the keys with theirs.
function unpackTiles({ block, kept, blocks, keys, weights }, heads, n, side, steps) {
  return blocks.map((text, m) => {
    const roots = new Int8Array(octets(text)), places = new Uint16Array(octets(keys[m])), values = new Int16Array(octets(weights[m]));
    return heads.map((_, h) => ({
      blocks: Int16Array.from(roots.subarray(h * side * side, (h + 1) * side * side), root => Math.sign(root) * (root / 127) ** 2 * steps),
      keys: places.subarray(h * n * kept, (h + 1) * n * kept),
      weights: values.subarray(h * n * kept, (h + 1) * n * kept),
    }));
  });
}
