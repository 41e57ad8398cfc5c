const COLOURS = ["#1b6ca8", "#c8553d", "#3a9a6b", "#e08214", "#7b5ea7", "#8c6d46", "#d16ba5", "#5f6b76", "#b5a51c", "#23a6b5"];

function decoded(text, kind) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return new kind(bytes.buffer);
}

function made(parent, tag, properties = {}, text = "") {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) element.setAttribute(name, value);
  if (text) element.textContent = text;
  parent.append(element);
  return element;
}

function fill(select, names, chosen = 0) {
  select.replaceChildren();
  names.forEach((name, i) => made(select, "option", { value: i }, String(name)));
  select.value = String(chosen);
}

function choice(parent, label, names) {
  const held = made(parent, "label", {}, `${label} `);
  const select = made(held, "select", { "aria-label": label });
  fill(select, names);
  return select;
}

function sized(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

function show(root, data) {
  root.replaceChildren();
  let step = data.names.length - 1, marked = -1, playing = null;
  const places = new Map();

  const bar = made(root, "div", { class: "bar" });
  const play = made(bar, "button", { type: "button" }, "Play");
  const range = made(bar, "input", { type: "range", min: 0, max: step, value: step, "aria-label": "checkpoint" });
  const told = made(bar, "span", { class: "step" });
  const colour = choice(bar, "Colour by", data.labels.map((label) => label.name));
  const wrong = made(root, "div", { class: "wrong" });
  const maps = made(root, "div", { class: "maps" });
  const canvases = data.layers.map((layer) => {
    const cell = made(maps, "div");
    const canvas = made(cell, "canvas", { role: "img", "aria-label": layer });
    return { canvas, caption: made(cell, "span") };
  });
  const said = made(root, "div", { class: "said", role: "status" }, "Point at a prompt to read it; click to keep it.");
  const legend = made(root, "div", { class: "legend" });
  let kept = -1;

  function points(at, column) {
    const key = `${at}/${column}`;
    if (!places.has(key)) places.set(key, decoded(data.xy[at][column], Int16Array));
    return places.get(key);
  }

  function on(canvas, xy, i, side) {
    return [(0.5 + 0.48 * xy[2 * i] / data.reach) * side, (0.5 - 0.48 * xy[2 * i + 1] / data.reach) * side];
  }

  function drawMaps() {
    const label = data.labels[Number(colour.value)];
    canvases.forEach(({ canvas, caption }, column) => {
      const side = canvas.clientWidth || 230;
      canvas.style.height = `${side}px`;
      const context = sized(canvas, side, side), xy = points(step, column);
      label.codes.forEach((code, i) => {
        if (xy[2 * i] === data.missing) return;
        const [x, y] = on(canvas, xy, i, side);
        context.globalAlpha = 0.75;
        context.fillStyle = COLOURS[code % COLOURS.length];
        context.beginPath();
        context.arc(x, y, 3, 0, 7);
        context.fill();
      });
      if (marked >= 0 && xy[2 * marked] !== data.missing) {
        context.globalAlpha = 1;
        context.lineWidth = 1;
        context.strokeStyle = "#888";
        context.beginPath();  // the way of the marked prompt up to here
        for (let at = 0; at <= step; at += 1) {
          if (data.findings[at].length || points(at, column)[2 * marked] === data.missing) continue;
          context.lineTo(...on(canvas, points(at, column), marked, side));
        }
        context.stroke();
        context.strokeStyle = "#111";
        context.lineWidth = 2;
        context.beginPath();
        context.arc(...on(canvas, xy, marked, side), 6, 0, 7);
        context.stroke();
      }
      const share = data.variance[step][column];
      caption.textContent = `${data.layers[column]}${share === null ? ": not there" : `, ${Math.round(100 * share)}% of the variance`}`;
    });
    legend.replaceChildren();
    label.classes.slice(0, 30).forEach((name, code) => {
      const item = made(legend, "span");
      made(item, "i", { style: `background:${COLOURS[code % COLOURS.length]}` });
      item.append(name);
    });
  }

  function tell(i) {
    marked = i;
    if (i < 0) {
      said.textContent = "Point at a prompt to read it; click to keep it.";
    } else {
      const labels = data.labels.map((label) => `${label.name}: ${label.classes[label.codes[i]]}`).join(", ");
      said.textContent = `Prompt ${data.places[i]} (${labels}): ${data.texts[i]}`;
    }
    drawMaps();
  }

  canvases.forEach(({ canvas }, column) => {
    const nearest = (event) => {
      const side = canvas.clientWidth, xy = points(step, column);
      let best = -1, least = 12 ** 2;
      for (let i = 0; i < data.texts.length; i += 1) {
        if (xy[2 * i] === data.missing) continue;
        const [x, y] = on(canvas, xy, i, side);
        const far = (x - event.offsetX) ** 2 + (y - event.offsetY) ** 2;
        if (far < least) [best, least] = [i, far];
      }
      return best;
    };
    canvas.addEventListener("mousemove", (event) => { if (kept < 0) tell(nearest(event)); });
    canvas.addEventListener("mouseleave", () => { if (kept < 0) tell(-1); });
    canvas.addEventListener("click", (event) => { kept = nearest(event); tell(kept); });
  });

  const drawAttention = data.attention.length ? attention(root, data) : () => {};

  function draw() {
    told.textContent = `${data.names[step]} (${step + 1} of ${data.names.length})`;
    wrong.textContent = data.findings[step].join(" ");
    drawMaps();
    drawAttention(step);
  }

  function stop() {
    clearInterval(playing);
    playing = null;
    play.textContent = "Play";
  }

  range.addEventListener("input", () => { step = Number(range.value); draw(); });
  colour.addEventListener("change", drawMaps);
  window.addEventListener("resize", draw);
  play.addEventListener("click", () => {
    if (playing !== null) return stop();
    if (step === data.names.length - 1) step = -1;
    play.textContent = "Stop";
    playing = setInterval(() => {
      step += 1;
      range.value = step;
      draw();
      if (step === data.names.length - 1) stop();
    }, Math.max(80, Math.min(600, 12000 / data.names.length)));
  });
  draw();
}

function attention(root, data) {
  made(root, "h3", {}, "Attention");
  const bar = made(root, "div", { class: "bar" });
  const prompt = choice(bar, "Prompt", data.attention.map((each) => each.place));
  const block = choice(bar, "Block", []), head = choice(bar, "Head", []);
  const canvas = made(root, "canvas", { class: "attention" });
  const cell = made(root, "div", { class: "said" }, "Rows attend (queries), columns are attended to (keys). Point at a cell.");
  const held = new Map();
  let at = 0, drawn = null;

  function chosen() {
    return data.attention[Number(prompt.value)];
  }

  function offerBlocks(wanted) {  // long prompts have fewer blocks
    const { blocks } = chosen(), place = blocks.indexOf(wanted);
    fill(block, blocks, place < 0 ? blocks.length - 1 : place);
    offerHeads();
  }

  function offerHeads() {
    fill(head, chosen().heads[Number(block.value)], Number(head.value));
  }

  function draw(step) {
    at = step;
    const own = chosen(), n = own.tokens.length;
    const side = Math.min(480, root.clientWidth || 480), margin = 90, size = (side - margin) / n;
    canvas.style.height = `${side}px`;
    canvas.style.width = `${side}px`;
    const context = sized(canvas, side, side);
    drawn = null;
    context.font = `${Math.max(7, Math.min(12, size - 1))}px sans-serif`;
    context.fillStyle = "#1d2733";
    if (own.patterns[step] === null) {
      context.fillText("This checkpoint has no such pattern.", 10, 40);
      return;
    }
    const key = `${prompt.value}/${step}`;
    if (!held.has(key)) held.set(key, decoded(own.patterns[step], Uint8Array));
    const start = (Number(block.value) * own.heads[0].length + Number(head.value)) * n * n;
    const weights = held.get(key).subarray(start, start + n * n);
    own.tokens.forEach((token, i) => {
      context.textAlign = "right";
      context.fillText(token.slice(0, 12), margin - 4, margin + (i + 0.7) * size);
      context.save();
      context.translate(margin + (i + 0.7) * size, margin - 4);
      context.rotate(-Math.PI / 2);
      context.textAlign = "left";
      context.fillText(token.slice(0, 12), 0, 0);
      context.restore();
    });
    weights.forEach((weight, k) => {
      context.fillStyle = `rgba(27, 108, 168, ${weight / 255})`;
      context.fillRect(margin + (k % n) * size, margin + Math.floor(k / n) * size, size, size);
    });
    context.strokeStyle = "#dfe4ea";
    context.strokeRect(margin, margin, n * size, n * size);
    drawn = { weights, n, margin, size, own };
  }

  canvas.addEventListener("mousemove", (event) => {
    if (drawn === null) return;
    const column = Math.floor((event.offsetX - drawn.margin) / drawn.size);
    const row = Math.floor((event.offsetY - drawn.margin) / drawn.size);
    if (row < 0 || column < 0 || row >= drawn.n || column >= drawn.n) return;
    const weight = (drawn.weights[row * drawn.n + column] / 255).toFixed(2);
    cell.textContent = `${drawn.own.tokens[row]} (${row}) attends to ${drawn.own.tokens[column]} (${column}): ${weight}`;
  });
  offerBlocks();
  prompt.addEventListener("change", () => offerBlocks(block.selectedOptions[0].textContent));
  block.addEventListener("change", offerHeads);
  [prompt, block, head].forEach((select) => select.addEventListener("change", () => draw(at)));
  return draw;
}
