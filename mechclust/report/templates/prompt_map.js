// The map: what is chosen, what is drawn, and what a person does.

const EDGE = 32767, HALF = 30000; // as prompt_map.py packs them
const GLIDE = 320, REACH = 16; // ms from layer to layer; px from which a point is found
const MOST_LISTED = 200, MOST_CELLS = 30; // classes in the legend, rows and columns of the table
const CLUSTER = "cluster";

function show(id, data) {
  const place = [...document.querySelectorAll(`#${id}`)].find(at => !at.querySelector(".mechclust-map"));
  if (!place) return; // it stands there already; a fragment may be on a page twice
  const { n, texts } = data, small = matchMedia("(prefers-reduced-motion: reduce)");
  const lower = texts.map(text => text.toLowerCase());
  const labels = data.colours.map(colour => {
    const codes = new Uint32Array(octets(colour.codes));
    return { ...colour, codes, counts: tally(codes, colour.classes.length), looks: looks(colour.classes, colour.numbers) };
  });
  const slots = data.clusters && data.clusters.codes.map(text => new Uint32Array(octets(text)));
  const most = data.clusters ? Math.max(...data.clusters.names.map(names => names.length)) : 0;
  const slotLooks = looks(Array.from({ length: most }), null);
  function tally(codes, size) {
    const counts = new Array(size).fill(0);
    for (const code of codes) counts[code]++;
    return counts;
  }
  // So that no class lies under another: the same disorder every time.
  const order = Uint32Array.from({ length: n }, (_, i) => i);
  for (let i = n - 1, seed = 1; i > 0; i--) {
    seed = Math.imul(seed, 1664525) + 1013904223 >>> 0;
    const j = Math.floor(seed / 2 ** 32 * (i + 1));
    [order[i], order[j]] = [order[j], order[i]];
  }

  const state = { colour: 0, label: 0, classes: new Set(), over: null, cell: null, query: "", found: null, hover: null, hoverIn: null, pinned: null };
  const models = data.models.map((model, m) => {
    const planes = model.xy.map(text => new Int16Array(octets(text)));
    return { ...model, m, planes, at: model.start, now: new Float32Array(2 * n), from: new Float32Array(2 * n), fresh: false, zoom: 1, x: 0, y: 0 };
  });

  // ---- the parts ----

  const root = el("div", "mechclust-map");
  const choice = el("select", "by"), search = el("input", "search"), found = el("span", "soft found");
  fill(choice, [...labels.map(label => label.name), ...(slots ? [CLUSTER] : [])]);
  search.type = "search";
  search.placeholder = "words of a prompt";
  found.setAttribute("role", "status");
  const bar = el("div", "bar", el("label", "", el("span", "soft", "Colour by"), choice), el("label", "", el("span", "soft", "Find"), search), found);
  const maps = el("div", `maps${models.length > 1 ? " several" : ""}`), legend = el("div", "legend"), pinBox = el("div", "pinned"), tip = el("div", "tip"), table = el("div", "table");
  const legendBox = el("div", "legendbox", el("div", "title"), legend);
  pinBox.setAttribute("aria-live", "polite");
  tip.setAttribute("role", "tooltip");
  tip.hidden = true;
  const side = el("div", "side", legendBox, pinBox);
  models.forEach(model => {
    const canvas = el("canvas", "points"), rings = { hover: el("div", "ring hover"), pinned: el("div", "ring pin") }, note = el("div", "note soft");
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "application");
    canvas.setAttribute("aria-label", `Map of ${count(n, "prompt")} in ${model.name}. Arrow keys go from prompt to prompt, Enter pins, Escape lets go; plus, minus and zero zoom.`);
    Object.values(rings).forEach(ring => { ring.hidden = true; });
    const lens = (text, label, times) => { const made = button("", text, () => zoom(model, times)); made.title = label; made.setAttribute("aria-label", label); return made; };
    const lenses = el("div", "lenses", lens("+", "Zoom in", 2), lens("−", "Zoom out", .5), lens("1:1", "Whole map", 0));
    const frame = el("div", "frame", canvas, rings.hover, rings.pinned), name = el("bdi", "model", model.name);
    name.title = model.name;
    const box = el("div", "map", el("div", "head", name, lenses), ...(data.shared ? [] : [slider([model])]), frame, note);
    maps.append(box);
    Object.assign(model, { canvas, rings, note, frame, pen: canvas.getContext("2d") });
  });
  root.append(bar, ...(data.shared ? [slider(models)] : []), el("div", "main", maps, side), table, tip);
  place.replaceChildren(root);

  // One for several models, whose layers are then the same.
  function slider(own) {
    const input = el("input", "layer"), name = el("b", "at"), { layers } = own[0];
    Object.assign(input, { type: "range", min: 0, max: layers.length - 1, step: 1, value: own[0].at });
    input.setAttribute("aria-label", data.shared ? "Layer" : `Layer of ${own[0].name}`);
    let playing = 0;
    const stop = () => { clearInterval(playing); playing = 0; play.textContent = "Play"; };
    const play = button("play", "Play", () => {
      if (playing) return stop();
      if (own[0].at === layers.length - 1) go(own, 0);
      play.textContent = "Stop";
      playing = setInterval(() => root.isConnected && own[0].at < layers.length - 1 ? go(own, own[0].at + 1) : stop(), 900);
    });
    input.addEventListener("input", () => { stop(); go(own, Number(input.value)); });
    const told = () => {
      input.value = own[0].at;
      name.textContent = `Layer ${layers[own[0].at]}`;
      input.setAttribute("aria-valuetext", name.textContent);
    };
    own.forEach(model => { model.told = told; });
    told();
    const row = el("div", "slider", name, input, play);
    input.hidden = play.hidden = layers.length === 1;
    return row;
  }

  // ---- what is drawn ----

  const isCluster = () => state.colour === labels.length;
  const colouring = () => isCluster() ? { name: CLUSTER, classes: data.clusters.names[models[0].at], codes: slots[models[0].at], counts: tally(slots[models[0].at], most), looks: slotLooks } : labels[state.colour];

  // Whether a prompt is among those that are looked for; null where all are.
  function focused() {
    const { classes, over, cell, found } = state, chosen = over !== null ? new Set([over]) : classes;
    if (!chosen.size && !cell && !found) return null;
    const { codes } = colouring(), own = cell && slots[models[0].at], theirs = labels[state.label].codes;
    return i => (!chosen.size || chosen.has(codes[i])) && (!found || found[i] === 1)
      && (!cell || (cell.slots === null || cell.slots.has(own[i])) && (cell.classes === null || cell.classes.has(theirs[i])));
  }

  const radius = () => Math.max(1.9, Math.min(5, 7.4 - 1.45 * Math.log10(n))) * Math.max(.8, Math.min(1, width / 420));
  let width = 0, dpr = 1;
  function paint(model) {
    const { pen, now, planes, at, zoom, x, y } = model, side = model.canvas.width, half = side / 2, room = half - Math.ceil((radius() + 3) * dpr);
    pen.fillStyle = "#fff";
    pen.fillRect(0, 0, side, side);
    const { codes, looks } = colouring(), among = focused(), r = radius() * dpr, plane = planes[at];
    const stamp = (hue, i, form) => {
      const out = Math.abs(plane[2 * i]) === EDGE || Math.abs(plane[2 * i + 1]) === EDGE;
      return sprite(hue, out ? "triangle" : form, r);
    };
    const put = (i, image) => pen.drawImage(image, Math.round(half + room * zoom * (now[2 * i] - x) - image.width / 2), Math.round(half - room * zoom * (now[2 * i + 1] - y) - image.width / 2));
    if (among) for (const i of order) if (!among(i)) put(i, stamp(FADED, i, "circle"));
    const plain = looks.map(look => [sprite(look.rest && among ? INK : look.hue, look.square ? "square" : "circle", r), sprite(look.rest && among ? INK : look.hue, "triangle", r)]);
    for (const rest of [true, false]) for (const i of order) { // the nameless grey ones below
      if (Boolean(looks[codes[i]].rest) !== rest || among && !among(i)) continue;
      put(i, plain[codes[i]][Math.abs(plane[2 * i]) === EDGE || Math.abs(plane[2 * i + 1]) === EDGE ? 1 : 0]);
    }
    model.fresh = false;
    ring(model);
  }
  const spotOf = (model, i) => {
    const half = width / 2, room = (half - Math.ceil(radius() + 3)) * model.zoom;
    return [half + room * (model.now[2 * i] - model.x), half - room * (model.now[2 * i + 1] - model.y)];
  };
  function ring(model) {
    for (const [which, i] of [["hover", state.hover], ["pinned", state.pinned]]) {
      const mark = model.rings[which];
      mark.hidden = i === null || which === "hover" && i === state.pinned;
      if (mark.hidden) continue;
      const [x, y] = spotOf(model, i);
      mark.style.transform = `translate(${x}px, ${y}px)`;
    }
  }

  // Closer by a factor, or for 0 back to the whole map; what lies at a place, from the middle in px, stays there.
  function zoom(model, times, dx = 0, dy = 0) {
    const before = model.zoom, room = width / 2 - Math.ceil(radius() + 3);
    model.zoom = times ? Math.max(1, Math.min(64, before * times)) : 1;
    const moved = (1 / before - 1 / model.zoom) / room;
    shift(model, model.x + dx * moved, model.y - dy * moved);
  }
  function shift(model, x, y) {
    const most = 1 - 1 / model.zoom;
    model.x = Math.max(-most, Math.min(most, x));
    model.y = Math.max(-most, Math.min(most, y));
    model.canvas.classList.toggle("closer", model.zoom > 1);
    hover(null, null);
    if (width) paint(model);
  }

  // ---- from layer to layer ----

  const target = (plane, i) => Math.max(-1, Math.min(1, plane[i] / HALF));
  function settle(model, share) {
    const { now, from, planes, at } = model, plane = planes[at];
    for (let i = 0; i < 2 * n; i++) now[i] = from[i] + (target(plane, i) - from[i]) * share;
  }
  function go(own, at) {
    const begun = performance.now();
    for (const model of own) {
      model.at = at;
      model.from.set(model.now);
      model.begun = begun;
      model.told();
      tell(model);
    }
    if (slots) { if (isCluster()) list(); tabulate(); release(); }
    describe();
    if (state.hover !== null) { state.hover = null; tip.hidden = true; }
    if (small.matches || !width) { own.forEach(model => { model.begun = null; settle(model, 1); if (width) paint(model); }); }
    else glide();
  }
  function release() { // what is pressed, if it is of no cluster and no number of this layer
    const names = data.clusters.names[models[0].at];
    if (isCluster()) state.classes.forEach(code => { if (!names[code]) state.classes.delete(code); });
    if (state.cell && !table.querySelector("[aria-pressed=true]")) state.cell = null;
  }
  let gliding = 0;
  function glide() {
    if (!gliding) gliding = requestAnimationFrame(time => {
      gliding = 0;
      let more = false;
      for (const model of models) {
        if (model.begun == null) continue;
        const share = Math.max(0, Math.min(1, (time - model.begun) / GLIDE));
        settle(model, share === 1 ? 1 : share * share * (3 - 2 * share));
        if (share === 1) model.begun = null; else more = true;
        paint(model);
      }
      if (more) glide();
    });
  }
  function tell(model) {
    const plane = model.planes[model.at], held = model.variance?.[model.at];
    let out = 0;
    for (let i = 0; i < n; i++) if (Math.abs(plane[2 * i]) === EDGE || Math.abs(plane[2 * i + 1]) === EDGE) out++;
    model.note.textContent = [
      model.spot[model.at] ? `All prompts lie at one point here${n === 1 ? "" : ": they are the same at this layer"}.` : held == null ? "" : `This plane holds ${percent(held)} of the variance.`,
      out ? `${count(out, "prompt")} farther out: triangle${out === 1 ? "" : "s"} at the edge.` : "",
    ].filter(Boolean).join(" ");
  }
  const paintAll = () => { if (width) models.forEach(paint); };

  // ---- the legend ----

  function list() {
    const { name, classes, counts, looks, numbers } = colouring(), own = classes.flatMap((name, code) => isCluster() && name === "" ? [] : [code]), focus = legend.contains(document.activeElement) ? document.activeElement.dataset.code : null;
    legendBox.firstChild.replaceChildren(el("bdi", "", name), el("span", "soft", ` ${isCluster() ? count(own.length, "cluster") : numbers ? count(own.length, "value") : count(own.length, "class", "classes")}`));
    const entries = []; // a slot without a name is of no cluster at this layer
    for (const code of own.slice(0, MOST_LISTED)) {
      const entry = button("entry", "", () => {
        if (state.classes.has(code)) state.classes.delete(code); else state.classes.add(code);
        state.over = state.cell = null;
        refocus();
      });
      entry.dataset.code = code;
      entry.title = classes[code];
      entry.append(mark(looks[code]), el("bdi", "name", ...readable(classes[code])), el("span", "soft number", comma(counts[code])));
      entry.addEventListener("pointerenter", event => { if (event.pointerType === "mouse") { state.over = code; paintAll(); } });
      entry.addEventListener("pointerleave", () => { if (state.over !== null) { state.over = null; paintAll(); } });
      entries.push(entry);
      if (focus === String(code)) queueMicrotask(() => entry.focus());
    }
    if (own.length > MOST_LISTED) entries.push(el("div", "soft", `and ${comma(own.length - MOST_LISTED)} more`));
    legend.replaceChildren(...entries);
    pressed();
  }
  const pressed = () => legend.querySelectorAll(".entry").forEach(entry => entry.setAttribute("aria-pressed", state.classes.has(Number(entry.dataset.code))));
  function refocus() {
    pressed();
    table.querySelectorAll("[aria-pressed]").forEach(cell => cell.setAttribute("aria-pressed", state.cell !== null && state.cell.key === cell.dataset.key));
    paintAll();
  }

  // ---- the prompt pointed at, and the pinned one ----

  function card(i) {
    const facts = el("dl", "values"), add = (name, value) => facts.append(el("dt", "soft", el("bdi", "", name)), el("dd", "", el("bdi", "", ...readable(value))));
    labels.forEach(label => add(label.name, label.classes[label.codes[i]]));
    if (slots) add(CLUSTER, data.clusters.names[models[0].at][slots[models[0].at][i]]);
    const text = el("div", "text", ...readable(texts[i]));
    text.dir = "auto";
    return [text, facts];
  }
  function describe() {
    const i = state.pinned;
    pinBox.replaceChildren(...(i === null
      ? [el("div", "soft hint", `Point at a prompt to read it; click to pin it${models.length > 1 ? ` in ${models.length === 2 ? "both" : "all"} maps` : ""}. Click on a class to see it alone.`)]
      : [el("div", "title", "Pinned prompt", button("unpin", "Unpin", () => pin(null))), ...card(i)]));
  }
  function pin(i) {
    state.pinned = i === state.pinned ? null : i;
    describe();
    models.forEach(ring);
  }
  function hover(i, model) {
    if (i === state.hover && model === state.hoverIn) return;
    state.hover = i;
    state.hoverIn = model;
    models.forEach(ring);
    tip.hidden = i === null;
    if (i === null) return;
    tip.replaceChildren(...card(i));
    const box = root.getBoundingClientRect(), canvas = model.canvas.getBoundingClientRect(), [dx, dy] = spotOf(model, i);
    const x = canvas.left - box.left + dx, y = canvas.top - box.top + dy, high = tip.offsetHeight, wide = tip.offsetWidth;
    tip.style.left = `${Math.max(4, Math.min(root.clientWidth - wide - 4, x + 14 + wide > root.clientWidth && x - wide - 14 > 0 ? x - wide - 14 : x + 14))}px`;
    tip.style.top = `${Math.max(4, y + 14 + high > root.clientHeight ? y - high - 14 : y + 14)}px`;
  }

  // Points by cells of a grid, made anew when they have moved.
  function grid(model) {
    if (model.fresh) return model.cells;
    const columns = Math.max(1, Math.ceil(width / REACH)), first = new Int32Array(columns * columns).fill(-1), next = new Int32Array(n), among = focused();
    const cell = at => Math.max(0, Math.min(columns - 1, Math.floor(at / REACH)));
    for (const i of order) { // what is painted last is found first
      if (among && !among(i)) continue;
      const [x, y] = spotOf(model, i), at = cell(y) * columns + cell(x);
      next[i] = first[at];
      first[at] = i;
    }
    model.fresh = true;
    return model.cells = { columns, first, next, cell };
  }
  function nearest(model, x, y) {
    const { columns, first, next, cell } = grid(model);
    let best = null, least = REACH ** 2;
    for (let row = Math.max(0, cell(y) - 1); row <= Math.min(columns - 1, cell(y) + 1); row++)
      for (let column = Math.max(0, cell(x) - 1); column <= Math.min(columns - 1, cell(x) + 1); column++)
        for (let i = first[row * columns + column]; i >= 0; i = next[i]) {
          const [px, py] = spotOf(model, i), far = (px - x) ** 2 + (py - y) ** 2;
          if (far < least) { least = far; best = i; }
        }
    return best;
  }
  // The next prompt in a direction, near the line before near by.
  function step(model, i, dx, dy) {
    const [x, y] = spotOf(model, i), among = focused();
    let best = i, least = Infinity;
    for (let j = 0; j < n; j++) {
      if (j === i || among && !among(j)) continue;
      const [px, py] = spotOf(model, j), along = (px - x) * dx + (py - y) * dy, off = Math.abs((px - x) * dy) + Math.abs((py - y) * dx);
      if (along > .5 && along + 3 * off < least) { least = along + 3 * off; best = j; }
    }
    return best;
  }

  // ---- clusters against a label ----

  function tabulate() {
    if (!slots) return;
    const at = models[0].at, own = slots[at], label = labels[state.label], { classes, codes } = label, names = data.clusters.names[at], rows = [];
    const counts = names.map(() => new Map());
    for (let i = 0; i < n; i++) counts[own[i]].set(codes[i], (counts[own[i]].get(codes[i]) ?? 0) + 1);
    names.forEach((name, slot) => { if (name !== "") rows.push({ name, slots: [slot] }); });
    let columns = classes.map((name, code) => ({ name, codes: [code], size: label.counts[code] }));
    const of = (row, column) => row.slots.reduce((sum, slot) => sum + column.codes.reduce((s, code) => s + (counts[slot].get(code) ?? 0), 0), 0);
    const fold = (list, by, size) => { // the largest, and the rest as one
      if (list.length <= MOST_CELLS) return list;
      const sorted = [...list].sort((a, b) => size(b) - size(a)), keep = new Set(sorted.slice(0, MOST_CELLS - 1)), rest = list.filter(x => !keep.has(x));
      return [...list.filter(x => keep.has(x)), { name: `other (${rest.length})`, [by]: rest.flatMap(x => x[by]), size: rest.reduce((s, x) => s + x.size, 0), rest: true }];
    };
    rows.forEach(row => { row.size = row.slots.reduce((sum, slot) => sum + [...counts[slot].values()].reduce((s, x) => s + x, 0), 0); });
    const pure = counts.reduce((sum, row) => sum + Math.max(0, ...row.values()), 0) / n;
    const lines = fold(rows, "slots", row => row.size);
    columns = fold(columns, "codes", column => column.size); // of numbers in their order, of others by row
    columns.forEach(column => { column.best = lines.reduce((best, row, r) => of(row, column) > of(lines[best], column) ? r : best, 0); });
    if (!label.numbers) columns.sort((a, b) => Boolean(a.rest) - Boolean(b.rest) || a.best - b.best || of(lines[b.best], b) - of(lines[a.best], a));

    const head = el("tr", "", el("th", "corner soft", CLUSTER), ...columns.map(column => {
      const cell = el("th", "", el("span", "", el("bdi", "", ...readable(column.name))));
      cell.scope = "col";
      cell.title = column.name;
      return cell;
    }), el("th", "soft all", "all"));
    const body = lines.map(row => {
      const [look] = row.slots.map(slot => slotLooks[slot]), name = el("th", "", row.rest ? "" : mark(look), el("bdi", "", row.name));
      name.scope = "row";
      return el("tr", "", name, ...columns.map(column => {
        const number = of(row, column), share = number / row.size, cell = el("td", number ? "" : "none");
        if (!number) { cell.append("·"); cell.setAttribute("aria-label", "0"); return cell; }
        const key = `${row.slots} / ${column.codes}`, press = button("", comma(number), () => {
          state.cell = state.cell?.key === key ? null : { key, slots: new Set(row.slots), classes: new Set(column.codes) };
          state.classes.clear();
          refocus();
        });
        press.dataset.key = key;
        press.title = `cluster ${row.name}, ${column.name}: ${percent(share)} of the cluster`;
        press.setAttribute("aria-pressed", state.cell?.key === key);
        cell.style.background = `rgba(27, 108, 168, ${(.06 + .84 * share).toFixed(3)})`;
        if (share > .85) cell.style.color = "#fff";
        cell.append(press);
        return cell;
      }), el("td", "soft all", comma(row.size)));
    });
    const title = el("div", "title", `Clusters of layer ${models[0].layers[at]} against `, el("bdi", "", label.name));
    title.append(el("span", "soft", ` ${percent(pure)} of the prompts are of their cluster's commonest class (${percent(Math.max(...label.counts) / n)} are of the commonest class overall). Shade: share of the cluster. Click on a number to see its prompts.`));
    table.replaceChildren(title, el("div", "scroll", el("table", "", el("thead", "", head), el("tbody", "", ...body))));
    digits = Math.max(...lines.map(row => comma(row.size).length));
    across = columns.length;
    beside();
  }
  let digits = 0, across = 0;
  function beside() { // the table, beside the map where there is room, so that both are seen while layers change
    if (!slots || !width) return;
    const fits = models.length === 1 && side.clientWidth >= 130 + across * Math.max(36, 14 + 7 * digits);
    if (fits === (table.parentElement === side)) return;
    if (fits) legendBox.after(table); else tip.before(table);
  }

  // ---- what a person does ----

  choice.addEventListener("change", () => {
    state.colour = Number(choice.value);
    state.classes.clear();
    if (!isCluster() && state.label !== state.colour) { state.label = state.colour; state.cell = null; tabulate(); }
    list();
    refocus();
  });
  search.addEventListener("input", () => {
    const query = search.value.toLowerCase();
    state.found = query ? Uint8Array.from(lower, text => text.includes(query) ? 1 : 0) : null;
    found.textContent = query ? `${state.found.reduce((s, x) => s + x, 0).toLocaleString("en")} of ${count(n, "prompt")}` : "";
    paintAll();
  });
  search.addEventListener("keydown", event => { // the next one found is pinned
    if (event.key !== "Enter" || !state.found) return;
    event.preventDefault();
    for (let step = 1; step <= n; step++) {
      const i = ((state.pinned ?? -1) + step) % n;
      if (state.found[i]) { if (i !== state.pinned) pin(i); return; }
    }
  });
  for (const model of models) {
    const { canvas } = model, at = event => { const box = canvas.getBoundingClientRect(); return nearest(model, event.clientX - box.left, event.clientY - box.top); };
    canvas.addEventListener("pointermove", event => { if (event.pointerType !== "touch" && !event.buttons && model.begun == null) hover(at(event), model); });
    canvas.addEventListener("pointerleave", () => hover(null, null));
    let held = null, dragged = false; // a drag moves what is seen closer
    canvas.addEventListener("pointerdown", event => { held = [event.clientX, event.clientY, model.x, model.y]; dragged = false; });
    canvas.addEventListener("pointermove", event => {
      if (!held || model.zoom === 1 || !(event.buttons & 1)) return;
      const [dx, dy] = [event.clientX - held[0], event.clientY - held[1]], room = (width / 2 - Math.ceil(radius() + 3)) * model.zoom;
      if (!dragged && Math.hypot(dx, dy) < 4) return;
      if (!dragged) canvas.setPointerCapture(event.pointerId);
      dragged = true;
      shift(model, held[2] - dx / room, held[3] + dy / room);
    });
    canvas.addEventListener("wheel", event => { // the wheel alone scrolls the page
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const box = canvas.getBoundingClientRect();
      zoom(model, Math.exp(-.004 * Math.max(-150, Math.min(150, event.deltaY))), event.clientX - box.left - width / 2, event.clientY - box.top - width / 2);
    }, { passive: false });
    canvas.addEventListener("click", event => {
      held = null;
      if (dragged) return;
      const i = at(event);
      if (i !== null) pin(i);
    });
    canvas.addEventListener("keydown", event => {
      const way = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] }[event.key];
      if (way) {
        const from = state.hover ?? state.pinned, among = focused();
        hover(from === null ? Math.max(0, among ? order.findIndex((_, i) => among(i)) : 0) : step(model, from, ...way), model);
      } else if ("+=-0".includes(event.key)) zoom(model, { "-": .5, 0: 0 }[event.key] ?? 2);
      else if (event.key === "Enter" || event.key === " ") { if (state.hover !== null) pin(state.hover); } else return;
      event.preventDefault();
    });
    canvas.addEventListener("blur", () => hover(null, null));
  }
  root.addEventListener("keydown", event => {
    if (event.key !== "Escape") return;
    hover(null, null);
    if (state.pinned !== null) pin(null);
    else if (state.classes.size || state.cell) { state.classes.clear(); state.cell = null; refocus(); }
  });

  function layout() {
    const room = maps.clientWidth;
    if (!root.clientWidth) return; // hidden, as in a folded part of the page; the observer calls again
    const gap = 14, across = models.length > 1 && room >= 2 * 230 + gap ? 2 : 1;
    const size = Math.floor(Math.min(560, (room - gap * (across - 1)) / across - 2)); // the frame is 1 px wide
    if (size === width && dpr === (window.devicePixelRatio || 1)) return;
    width = size;
    dpr = window.devicePixelRatio || 1;
    for (const { canvas, frame } of models) {
      canvas.width = canvas.height = Math.round(width * dpr);
      frame.style.width = frame.style.height = canvas.style.width = canvas.style.height = `${width}px`;
      frame.parentElement.style.width = `${width + 2}px`;
    }
    hover(null, null);
    beside();
    paintAll();
  }
  models.forEach(model => { model.from.set(model.now); settle(model, 1); tell(model); });
  list();
  tabulate();
  describe();
  layout();
  new ResizeObserver(() => requestAnimationFrame(layout)).observe(root);
}
