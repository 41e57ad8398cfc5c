// One attention view: what is selected, and everything that follows the selection.

const LIVE = 256; // up to so many tokens the text follows the pointer; beyond, it follows clicks

function view(root, { tokens, labels, heads, models, roles, causal, steps, weights }) {
  const id = `mechclust-${Math.random().toString(36).slice(2)}`; // begins the ids inside
  const n = tokens.length, maps = weights.map(text => unpack(text, heads, n, causal));
  let top = 0, signed = false;
  for (const map of maps) for (const head of map) for (const w of head) {
    if (w < 0) signed = true;
    if (Math.abs(w) > top) top = Math.abs(w);
  }
  top ||= steps;
  const dyes = dyesOf(labels);
  const colours = labels.map(label => dyes.get(label)); // undefined without a label
  // `token` is the chosen one: the query whose row is read, or with `by` the key whose column is. `pointed` is the cell
  // under the pointer; from the list of tokens its other half is null.
  const state = { head: 0, token: n - 1, held: false, by: false, lifted: n > 32, pointed: null };
  const shade = w => Math.sign(w) * (state.lifted ? Math.sqrt(Math.abs(w) / top) : Math.abs(w) / top);
  const number = w => (w / steps).toFixed(4).replace("-", "−"), reached = (q, k) => !causal || k <= q;
  const weight = (map, q, k) => maps[map][state.head][q * n + k];

  // ---- what there is to see ----

  const labelled = (element, label) => { element.setAttribute("aria-label", label); return element; };
  const named = ({ name, value }) => value ? `${name} ${value}` : name;
  const thumbs = heads.map((head, h) => {
    const pictures = maps.map(() => el("canvas")), under = el("span", "under", el("b", "", head.name), ...(head.value ? [" ", el("span", "value", head.value)] : []));
    const thumb = button("thumb", [el("span", "pictures", ...pictures), under], () => choose(h));
    return Object.assign(labelled(thumb, named(head)), { pictures });
  });
  const strip = el("div", "thumbs", ...thumbs), chips = tokens.map((token, i) => {
    const chip = labelled(button("chip", [el("bdi", "", token || "\u200b")], () => hold(i)), `${i} ${token}${labels[i] ? `, ${labels[i]}` : ""}`);
    return colours[i] ? dyed(chip, colours[i]) : chip;
  });
  const larges = maps.map((_, m) => {
    const canvas = el("canvas", "cells"), frame = svg("svg", { "aria-hidden": "true" }), marks = svg("svg", { class: "marks", "aria-hidden": "true" });
    const plot = el("div", "plot", frame, canvas, marks), title = el("div", "title");
    plot.tabIndex = 0;
    plot.setAttribute("role", "application");
    return { canvas, frame, marks, plot, title, texts: null, box: el("div", "large", title, el("div", "scroll", plot)) };
  });
  const readout = el("div", "readout"), scale = el("div", "scale"), hint = el("div", "hint");
  readout.setAttribute("aria-live", "polite");
  const lift = el("input");
  lift.type = "checkbox";
  lift.checked = state.lifted;
  const key = el("div", "", scale, el("label", "lift", lift, "square-root scale, lifts small weights"), ...legend(dyes));
  const side = el("div", "side", el("div", "facts", el("div", "", readout, hint), key));
  const ways = [["attends to", false], ["is attended by", true]].map(([text, by]) => Object.assign(button("way", text, () => { state.by = by; refresh(); }), { by }));
  const texts = maps.map((_, m) => text(m));
  const main = el("div", "main", el("div", "larges", ...larges.map(large => large.box)), side);
  const chipBox = el("div", "chips", ...chips), words = el("div", "words", el("div", "choice", el("b", "", "Tokens"), el("span", "soft", "choose one to see what it"), el("span", "ways", ...ways)), chipBox, ...texts.map(panel => panel.box));
  root.replaceChildren(
    el("div", "head", `${heads.length} ${heads.length === 1 ? "head" : "heads"}, ${n} ${n === 1 ? "token" : "tokens"}, ${causal ? "causal" : "bidirectional"}`, models.length ? el("span", "soft", ` · ${models.join(" | ")}`) : ""),
    ...(heads.length > 1 ? [roleChoice(roles, thumbs, choose), strip] : []), main, words);
  root.classList.add("mechclust-attention");

  // The sequence, each token shaded by its weight in one row of a map, or one column.
  function text(m) {
    const spans = tokens.map(token => el("span", "", el("span", "", token || "\u00a0")));
    const place = el("div", "text", el("div", "colored-tokens", ...spans)), title = el("div", "title");
    const index = event => spans.findIndex(span => span.contains(event.target));
    place.addEventListener("pointerover", event => { const i = index(event); if (i >= 0) point(state.by ? { q: i, k: focus() } : { q: focus(), k: i }, true); });
    place.addEventListener("pointerleave", () => point(null));
    place.addEventListener("click", event => { const i = index(event); if (i >= 0) hold(i); });
    return {
      box: el("div", "textbox", title, place),
      refresh(token) {
        title.replaceChildren(...(models.length ? [el("b", "", models[m]), " "] : []), `${heads[state.head].name}: ${state.by ? "what attends to" : "what"} `, el("bdi", "token", tokens[token]), el("sup", "", `${token}`), state.by ? "" : " attends to");
        spans.forEach((span, i) => {
          const [q, k] = state.by ? [i, token] : [token, i], shaded = shade(weight(m, q, k));
          span.classList.toggle("beyond", !reached(q, k));
          span.classList.toggle("chosen", i === token);
          span.firstChild.style.backgroundColor = cssColour(shaded);
          span.firstChild.style.color = Math.abs(shaded) > 0.6 ? "#fff" : INK;
        });
      },
    };
  }

  // ---- what follows the selection ----

  const focus = () => state.pointed && !state.held && !state.pointed.stay ? (state.by ? state.pointed.k : state.pointed.q) ?? state.token : state.token;
  let wide = 0; // the width that the view is laid out for
  let told = null, revealed = null;
  function reveal() { // the chosen token, where the list of tokens scrolls
    const box = chipBox.getBoundingClientRect(), chip = chips[state.token].getBoundingClientRect();
    if (chip.top < box.top) chipBox.scrollTop -= box.top - chip.top + 3;
    else if (chip.bottom > box.bottom) chipBox.scrollTop += chip.bottom - box.bottom + 3;
  }
  function refresh() {
    const token = focus();
    chips.forEach((chip, i) => { chip.setAttribute("aria-pressed", i === state.token); chip.classList.toggle("seen", i === token); });
    if (state.token !== revealed && wide) { revealed = state.token; reveal(); }
    ways.forEach(way => way.setAttribute("aria-pressed", way.by === state.by));
    const cell = shownCell(token);
    larges.forEach(large => outline(large, token, cell));
    tell(cell);
    const key = `${state.head} ${token} ${state.by} ${state.lifted}`;
    if (key !== told && (n <= LIVE || token === state.token)) { told = key; texts.forEach(panel => panel.refresh(token)); }
  }

  // The cell pointed at; where none is, the strongest of the chosen row or column in the first map.
  function shownCell(token) {
    if (state.pointed && state.pointed.q !== null && state.pointed.k !== null) return { ...state.pointed, strongest: false };
    let best = null;
    for (let i = 0; i < n; i++) {
      const [q, k] = state.by ? [i, token] : [token, i];
      if (reached(q, k) && (best === null || Math.abs(weight(0, q, k)) > Math.abs(weight(0, best.q, best.k)))) best = { q, k, strongest: true };
    }
    return best;
  }

  function tell({ q, k, strongest }) {
    const who = i => el("span", "who", el("span", "at", `${i}`), " ", el("bdi", "token", tokens[i]), ...(colours[i] ? [" ", entryOf(colours[i], "soft", labels[i])] : []));
    const row = (name, value) => [el("span", "soft", name), value];
    const found = maps.map((_, m) => weight(m, q, k));
    readout.replaceChildren(
      ...row("query", who(q)), ...row("key", who(k)),
      ...(reached(q, k) ? maps.flatMap((_, m) => row(models[m] ?? "weight", el("b", "", number(found[m])))) : row("weight", el("span", "soft", "none: a later token"))),
      ...(maps.length === 2 && reached(q, k) ? row("change", el("span", "", `${found[1] > found[0] ? "+" : ""}${number(found[1] - found[0])}`)) : []));
    hint.textContent = strongest ? `strongest ${state.by ? "query of this key" : "key of this query"}${models.length > 1 ? ` in ${models[0]}` : ""}; point at a cell for others` : state.held ? "the marked token is held; click it again or press Esc to let go" : "click to hold";
  }

  function outline({ marks, texts, size, still }, token, { q, k, strongest }) {
    if (!size) return;
    const { left, cell, side } = size, band = (row, i, more) => svg("rect", { fill: "none", ...(row ? { x: left, y: i * cell, width: side, height: cell } : { x: left + i * cell, y: 0, width: cell, height: side }), ...more });
    const pen = { stroke: MARK, "stroke-width": 1 };
    marks.replaceChildren(
      ...still,
      ...(strongest ? [] : [band(true, q, { ...pen, "stroke-opacity": .55 }), band(false, k, { ...pen, "stroke-opacity": .55 })]),
      band(!state.by, token, { stroke: INK, "stroke-width": 1.5, ...(state.held ? {} : { "stroke-dasharray": "4 3" }) }),
      svg("rect", { x: left + k * cell - 1, y: q * cell - 1, width: cell + 2, height: cell + 2, fill: "none", stroke: MARK, "stroke-width": 2 }));
    for (const [axis, at] of [["query", q], ["key", k]]) texts[axis].forEach((name, i) => name.classList.toggle("marked", i === at));
  }

  function paintAll() {
    const many = heads.length > 16, target = many ? 52 : 76, pool = Math.ceil(n / 96), small = Math.ceil(n / pool), zoom = Math.max(1, Math.round(target / small));
    thumbs.forEach((thumb, h) => thumb.pictures.forEach((canvas, m) => {
      paint(canvas, maps[m][h], n, causal, shade, pool);
      canvas.style.width = canvas.style.height = `${small * zoom}px`;
    }));
    paintLarge();
    scale.replaceChildren(...colourScale(top / steps, signed, state.lifted, causal));
  }
  function paintLarge() {
    larges.forEach(({ canvas, title, plot }, m) => {
      paint(canvas, maps[m][state.head], n, causal, shade);
      const { name, value } = heads[state.head];
      title.replaceChildren(...(models.length ? [el("span", "model", models[m]), " "] : []), el("b", "", name), value && !models.length ? el("span", "value", ` ${value}`) : "");
      plot.setAttribute("aria-label", `${models[m] ?? ""} ${name}, attention weights. Arrow keys move over cells, Enter holds the query, Escape lets go.`.trim());
    });
    thumbs.forEach((thumb, h) => thumb.setAttribute("aria-pressed", h === state.head));
  }

  function layout() {
    const width = root.clientWidth - 24, count = maps.length;
    if (width <= 0 || width === wide) return; // hidden, as in a folded cell; the observer calls again
    wide = width;
    const beside = (width - 216) / count - 12, below = width / count - 12;
    const [room, stacked] = beside >= (count > 1 ? 330 : 400) ? [beside, false] : [below >= 230 ? below : width, true];
    main.classList.toggle("stacked", stacked);
    const size = measure(tokens, dyes.size > 0, room);
    (!stacked && width - count * (size.left + size.side + 13) >= 400 ? side : root).append(words); // beside the cells where there is room
    larges.forEach((large, m) => {
      large.texts = axes(large.frame, tokens, colours, size);
      large.size = size;
      const { left, side, below } = size;
      Object.assign(large.canvas.style, { left: `${left}px`, width: `${side}px`, height: `${side}px` });
      Object.assign(large.plot.style, { width: `${left + side + 1}px`, height: `${side + below}px` });
      large.marks.setAttribute("width", left + side + 2);
      large.marks.setAttribute("height", side + 2);
      large.still = overlay(n, causal, size, `${id}-hatch-${m}`);
    });
    refresh();
  }

  // ---- what a person does ----

  let asked = 0;
  function point(where, stay = false) {
    state.pointed = where && { ...where, stay };
    if (!asked) asked = requestAnimationFrame(() => { asked = 0; refresh(); });
  }
  function hold(token) {
    state.held = !(state.held && token === state.token);
    state.token = token;
    refresh();
  }
  function choose(head) { state.head = head; paintLarge(); refresh(); }
  const move = (list, act) => { // arrow keys go along a list of buttons, one of which is in the tab order
    list.forEach((b, i) => { b.tabIndex = i ? -1 : 0; b.addEventListener("focus", () => list.forEach(other => { other.tabIndex = other === b ? 0 : -1; })); });
    return event => {
      const from = list.indexOf(document.activeElement), step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -list.length, End: list.length }[event.key];
      if (from < 0 || !step) return;
      event.preventDefault();
      const to = Math.max(0, Math.min(list.length - 1, from + step));
      list[to].focus();
      act(to);
    };
  };
  strip.addEventListener("keydown", move(thumbs, choose));
  chipBox.addEventListener("keydown", move(chips, token => { state.held = true; state.token = token; refresh(); }));
  chips.forEach((chip, i) => {
    chip.addEventListener("pointerenter", () => point(state.by ? { q: null, k: i } : { q: i, k: null }));
    chip.addEventListener("pointerleave", () => point(null));
  });
  lift.addEventListener("change", () => { state.lifted = lift.checked; paintAll(); refresh(); });
  for (const { canvas, plot } of larges) {
    const cellAt = event => {
      const box = canvas.getBoundingClientRect(), index = (at, from, size) => Math.max(0, Math.min(n - 1, Math.floor((at - from) / size * n)));
      return { q: index(event.clientY, box.top, box.height), k: index(event.clientX, box.left, box.width) };
    };
    canvas.addEventListener("pointermove", event => point(cellAt(event)));
    canvas.addEventListener("pointerleave", () => point(null));
    canvas.addEventListener("click", event => { const { q, k } = cellAt(event); hold(state.by ? k : q); });
    plot.addEventListener("keydown", event => {
      const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key], { q, k } = shownCell(focus()), within = i => Math.max(0, Math.min(n - 1, i));
      if (step) point({ q: within(q + step[0]), k: within(k + step[1]) });
      else if (event.key === "Enter" || event.key === " ") hold(state.by ? k : q);
      else return;
      event.preventDefault();
    });
    plot.addEventListener("blur", () => point(null));
  }
  root.addEventListener("keydown", event => { if (event.key === "Escape") { state.held = false; point(null); } });

  paintAll();
  layout();
  refresh();
  new ResizeObserver(() => requestAnimationFrame(layout)).observe(root);
}
