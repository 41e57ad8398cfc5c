// The slider over checkpoints: prompts in fixed planes, and attention. Points and texts are drawn by points.js.

const RADIUS = 3.2, NEAR = 12; // px: of a point, and from which it is found
const MOST_NAMED = 30; // classes in the legend
const HINT = "Point at a prompt to read it; click to keep it.";

function chooser(bar, label, names) {
  const select = el("select");
  select.setAttribute("aria-label", label);
  fill(select, names);
  bar.append(el("label", "", `${label} `, select));
  return select;
}

// A canvas of this width in px, cleared; what is drawn is in px.
function cleared(canvas, side) {
  const ratio = window.devicePixelRatio || 1, pen = canvas.getContext("2d");
  canvas.width = canvas.height = side * ratio;
  canvas.style.height = `${side}px`;
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  return pen;
}

function show(root, data) {
  const labels = data.labels.map(label => ({ ...label, codes: new Uint32Array(octets(label.codes)), looks: looks(label.classes, label.numbers) }));
  const planes = data.xy.map(layers => layers.map(text => new Int16Array(octets(text))));
  const last = data.names.length - 1;
  let step = last, marked = -1, kept = -1, playing = null;

  const range = el("input"), told = el("span", "step"), wrong = el("div", "wrong"), maps = el("div", "maps"), said = el("div", "said", HINT), legend = el("div", "legend");
  const play = button("", "Play", () => playing === null ? start() : stop()), bar = el("div", "bar", play, range, told);
  Object.assign(range, { type: "range", min: 0, max: last, value: last });
  range.setAttribute("aria-label", "checkpoint");
  said.setAttribute("role", "status");
  const colour = chooser(bar, "Colour by", labels.map(label => label.name));
  const canvases = data.layers.map(layer => {
    const canvas = el("canvas"), caption = el("span");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", layer);
    maps.append(el("div", "", canvas, caption));
    return { canvas, caption };
  });
  root.replaceChildren(bar, wrong, maps, said, legend);

  const spot = (xy, i, side) => xy[2 * i] === data.missing ? null : [(0.5 + 0.48 * xy[2 * i] / data.reach) * side, (0.5 - 0.48 * xy[2 * i + 1] / data.reach) * side];
  function drawMaps() {
    const { codes, classes, looks } = labels[Number(colour.value)], ratio = window.devicePixelRatio || 1;
    const stamps = looks.map(look => sprite(look.hue, look.square ? "square" : "circle", RADIUS * ratio));
    canvases.forEach(({ canvas, caption }, column) => {
      const side = canvas.clientWidth || 230, pen = cleared(canvas, side), xy = planes[step][column];
      codes.forEach((code, i) => {
        const at = spot(xy, i, side), image = stamps[code], size = image.width / ratio;
        if (at) pen.drawImage(image, at[0] - size / 2, at[1] - size / 2, size, size);
      });
      if (marked >= 0 && spot(xy, marked, side)) drawMark(pen, column, side);
      const share = data.variance[step][column];
      caption.textContent = `${data.layers[column]}${share === null ? ": not there" : `, ${Math.round(100 * share)}% of the variance`}`;
    });
    legend.replaceChildren(...classes.slice(0, MOST_NAMED).map((name, code) => el("span", "", mark(looks[code]), name)));
  }
  function drawMark(pen, column, side) { // the marked prompt, and its way up to here
    const way = [];
    for (let at = 0; at <= step; at++) if (!data.findings[at].length) way.push(spot(planes[at][column], marked, side));
    pen.strokeStyle = "#888";
    pen.beginPath();
    way.filter(Boolean).forEach(at => pen.lineTo(...at));
    pen.stroke();
    pen.strokeStyle = INK;
    pen.lineWidth = 2;
    pen.beginPath();
    pen.arc(...spot(planes[step][column], marked, side), 6, 0, 7);
    pen.stroke();
  }

  function tell(i) {
    marked = i;
    const facts = labels.map(label => `${label.name}: ${label.classes[label.codes[i]]}`).join(", ");
    said.replaceChildren(...(i < 0 ? [HINT] : [`Prompt ${data.places[i]} (${facts}): `, ...readable(data.texts[i])]));
    drawMaps();
  }
  canvases.forEach(({ canvas }, column) => {
    const nearest = event => {
      let best = -1, least = NEAR ** 2;
      data.texts.forEach((_, i) => {
        const at = spot(planes[step][column], i, canvas.clientWidth);
        const far = at ? (at[0] - event.offsetX) ** 2 + (at[1] - event.offsetY) ** 2 : Infinity;
        if (far < least) [best, least] = [i, far];
      });
      return best;
    };
    canvas.addEventListener("mousemove", event => { if (kept < 0) tell(nearest(event)); });
    canvas.addEventListener("mouseleave", () => { if (kept < 0) tell(-1); });
    canvas.addEventListener("click", event => { kept = nearest(event); tell(kept); });
  });

  const drawAttention = data.attention.length ? attention(root, data) : () => {};
  function draw() {
    range.value = step;
    told.textContent = `${data.names[step]} (${step + 1} of ${data.names.length})`;
    wrong.textContent = data.findings[step].join(" ");
    drawMaps();
    drawAttention(step);
  }
  function go(to) { step = to; draw(); }
  function stop() {
    clearInterval(playing);
    playing = null;
    play.textContent = "Play";
  }
  function start() {
    if (step === last) go(0);
    play.textContent = "Stop";
    playing = setInterval(() => {
      go(step + 1);
      if (step === last) stop();
    }, Math.max(80, Math.min(600, 12000 / data.names.length)));
  }
  range.addEventListener("input", () => go(Number(range.value)));
  colour.addEventListener("change", drawMaps);
  window.addEventListener("resize", draw);
  draw();
}

function attention(root, data) {
  const bar = el("div", "bar"), canvas = el("canvas", "attention");
  const prompt = chooser(bar, "Prompt", data.attention.map(each => each.place)), block = chooser(bar, "Block", []), head = chooser(bar, "Head", []);
  const cell = el("div", "said", "Rows attend (queries), columns are attended to (keys): white 0, darkest blue 1. Point at a cell.");
  root.append(el("h3", "", "Attention"), bar, canvas, cell);
  let at = 0, drawn = null;

  const chosen = () => data.attention[Number(prompt.value)];
  const offerHeads = () => fill(head, chosen().heads[Number(block.value)], Number(head.value));
  function offerBlocks(wanted) { // long prompts have fewer blocks
    const { blocks } = chosen(), place = blocks.indexOf(wanted);
    fill(block, blocks, place < 0 ? blocks.length - 1 : place);
    offerHeads();
  }

  function draw(step) {
    at = step;
    const { tokens, heads, patterns } = chosen(), n = tokens.length;
    const side = Math.min(480, root.clientWidth || 480), margin = 90, size = (side - margin) / n, pen = cleared(canvas, side);
    canvas.style.width = `${side}px`;
    pen.font = `${Math.max(7, Math.min(12, size - 1))}px sans-serif`;
    pen.fillStyle = INK;
    drawn = null;
    if (patterns[step] === null) return pen.fillText("This checkpoint has no such pattern.", 10, 40);
    const start = (Number(block.value) * heads[0].length + Number(head.value)) * n * n;
    const weights = new Uint8Array(octets(patterns[step]), start, n * n);
    tokens.forEach((token, i) => {
      pen.textAlign = "right";
      pen.fillText(token.slice(0, 12), margin - 4, margin + (i + 0.7) * size);
      pen.save();
      pen.translate(margin + (i + 0.7) * size, margin - 4);
      pen.rotate(-Math.PI / 2);
      pen.textAlign = "left";
      pen.fillText(token.slice(0, 12), 0, 0);
      pen.restore();
    });
    weights.forEach((weight, k) => {
      pen.fillStyle = `rgba(27, 108, 168, ${weight / 255})`;
      pen.fillRect(margin + (k % n) * size, margin + Math.floor(k / n) * size, size, size);
    });
    pen.strokeStyle = "#dfe4ea";
    pen.strokeRect(margin, margin, n * size, n * size);
    drawn = { weights, n, margin, size, tokens };
  }

  canvas.addEventListener("mousemove", event => {
    if (drawn === null) return;
    const { weights, n, margin, size, tokens } = drawn;
    const column = Math.floor((event.offsetX - margin) / size), row = Math.floor((event.offsetY - margin) / size);
    if (row < 0 || column < 0 || row >= n || column >= n) return;
    cell.textContent = `${tokens[row]} (${row}) attends to ${tokens[column]} (${column}): ${(weights[row * n + column] / 255).toFixed(2)}`;
  });
  offerBlocks();
  prompt.addEventListener("change", () => offerBlocks(block.selectedOptions[0].textContent));
  block.addEventListener("change", offerHeads);
  [prompt, block, head].forEach(select => select.addEventListener("change", () => draw(at)));
  return draw;
}
