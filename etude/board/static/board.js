// The page of `etude board`. Everything that comes from a file is written as text, never as HTML.
"use strict";

const $ = (id) => document.getElementById(id);
const rows = new Map(); // by id, what the server has told of a run
const lines = new Map(); // by id, the row of the table
const selected = new Set();
const view = { sort: "name", down: false, open: null, clock: 0, shown: [] };

// -- small things ----------------------------------------------------------------------------------------------------

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name in made && name !== "list") made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

async function ask(path, body) {
  const options = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
  const answer = await fetch(path, body === undefined ? {} : options);
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error ?? `the server answered ${answer.status}`);
  return found;
}

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const numberText = (value) => (value == null ? "-" : Math.abs(value) >= 1e5 ? short.format(value) : String(+value.toPrecision(4)));

function ageText(seconds) {
  const units = [[86400, "d"], [3600, "h"], [60, "min"]];
  for (const [size, unit] of units) if (seconds >= 2 * size) return `${Math.floor(seconds / size)} ${unit}`;
  return `${Math.max(0, Math.round(seconds))} s`;
}

const style = () => getComputedStyle(document.documentElement);
const colour = (index) => style().getPropertyValue(index < 0 ? "--grey" : `--c${index}`).trim();

// -- the table -------------------------------------------------------------------------------------------------------

const age = (row) => Date.now() / 1000 + view.clock - row.written;
const COLUMNS = [
  { key: "name", title: "run", kind: "name", text: (row) => row.name },
  { key: "state", title: "state", kind: "state", text: (row) => (row.fault ? "unreadable" : row.state), about: (row) => row.fault || row.reason },
  { key: "algorithm", title: "algorithm", kind: "wide", text: (row) => row.algorithm },
  { key: "environment", title: "environment", kind: "wide", text: (row) => row.environment },
  { key: "seed", title: "seed", kind: "number wide", text: (row) => row.seed },
  { key: "step", title: "step", kind: "number", text: (row) => short.format(row.step), about: (row) => `${whole.format(row.step)}${row.total ? ` of ${whole.format(row.total)}` : ""} ${row.unit}` },
  { key: "return", title: "return", kind: "number", text: (row) => numberText(row.return), about: () => "mean return of the last evaluation; without one, of the last episodes" },
  { key: "fps", title: "steps/s", kind: "number wide", text: (row) => numberText(row.fps) },
  { key: "written", title: "age", kind: "number wide", text: (row) => ageText(age(row)), about: () => "since its last record" },
  { key: "warnings", title: "warnings", kind: "number wide", text: (row) => (row.warnings == null ? "…" : row.warnings || "") },
];

function buildTable() {
  const head = $("table").tHead.rows[0];
  head.append(element("th", { scope: "col" }, element("span", { title: "drawn" }, "")));
  for (const column of COLUMNS) {
    const button = element("button", { type: "button" }, column.title);
    button.addEventListener("click", () => {
      view.down = view.sort === column.key ? !view.down : false;
      view.sort = column.key;
      showTable();
    });
    head.append(element("th", { scope: "col", className: column.kind, "data-key": column.key }, button));
  }
  const body = $("table").tBodies[0];
  body.addEventListener("click", (event) => {
    const line = event.target.closest("tr");
    if (!line) return;
    focusLine(line);
    if (event.target.type === "checkbox") toggle(line.dataset.id);
    else open(line.dataset.id);
  });
  body.addEventListener("keydown", (event) => {
    const line = event.target.closest("tr");
    const steps = { ArrowDown: line.nextElementSibling, ArrowUp: line.previousElementSibling, Home: body.firstElementChild, End: body.lastElementChild };
    if (event.key in steps) focusLine(steps[event.key] ?? line);
    else if (event.key === "Enter") open(line.dataset.id);
    else if (event.key === " ") toggle(line.dataset.id);
    else return;
    event.preventDefault();
  });
  $("filter").addEventListener("input", () => { showTable(); drawSoon(0); });
  $("clear").addEventListener("click", () => { selected.clear(); showTable(); drawSoon(0); });
}

function focusLine(line) {
  for (const other of line.parentElement.querySelectorAll('[tabindex="0"]')) other.tabIndex = -1;
  line.tabIndex = 0;
  line.focus();
}

function toggle(id) {
  if (!selected.delete(id)) selected.add(id);
  showTable();
  drawSoon(0);
}

function lineOf(row) {
  let line = lines.get(row.id);
  if (!line) {
    const box = element("input", { type: "checkbox", tabIndex: -1, "aria-label": `draw ${row.name}` });
    line = element("tr", { tabIndex: -1 }, element("td", {}, box));
    line.dataset.id = row.id;
    for (const column of COLUMNS) line.append(element("td", { className: column.kind }));
    lines.set(row.id, line);
  }
  COLUMNS.forEach((column, i) => {
    const cell = line.cells[i + 1];
    const text = String(column.text(row));
    if (cell.textContent !== text) cell.textContent = text;
    const about = column.about?.(row) ?? text;
    if (cell.title !== about) cell.title = about;
  });
  const state = line.cells[COLUMNS.findIndex((column) => column.key === "state") + 1];
  state.className = `state ${row.fault ? "fault" : row.state}`;
  line.cells[0].firstChild.checked = selected.has(row.id);
  line.setAttribute("aria-selected", selected.has(row.id));
  line.classList.toggle("open", row.id === view.open);
  return line;
}

function listed() {
  const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const text = (row) => [row.name, row.algorithm, row.environment, row.state, row.fault && "unreadable"].join(" ").toLowerCase();
  const found = [...rows.values()].filter((row) => words.every((word) => text(row).includes(word)));
  const key = view.sort;
  const of = (row) => (key === "seed" && row.seed !== "" && !isNaN(row.seed) ? +row.seed : key === "written" ? -row.written : row[key]);
  found.sort((a, b) => {
    const [x, y] = [of(a), of(b)];
    if (x == null || y == null) return (x == null) - (y == null);
    const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
    return view.down ? -order : order;
  });
  return found;
}

function showTable() {
  const body = $("table").tBodies[0];
  const found = listed();
  const wanted = found.map(lineOf);
  const focused = document.activeElement;
  if (wanted.length !== body.rows.length || wanted.some((line, i) => line !== body.rows[i])) body.replaceChildren(...wanted);
  if (wanted.includes(focused)) focused.focus();
  if (wanted.length && !body.querySelector('[tabindex="0"]')) wanted[0].tabIndex = 0;
  for (const head of $("table").tHead.rows[0].cells) {
    if (head.dataset.key !== view.sort) head.removeAttribute("aria-sort");
    else head.setAttribute("aria-sort", view.down ? "descending" : "ascending");
  }
  view.shown = found.map((row) => row.id);
  $("clear").disabled = !selected.size;
  const states = {};
  for (const row of rows.values()) states[row.state] = (states[row.state] ?? 0) + 1;
  const parts = Object.entries(states).map(([state, count]) => `${count} ${state}`);
  const filtered = found.length < rows.size ? `, ${found.length} listed` : "";
  $("summary").textContent = rows.size ? `${rows.size} runs: ${parts.join(", ")}${filtered}${view.more ? "; there are more than are shown" : ""}` : "There are no runs here yet.";
}


// -- curves ----------------------------------------------------------------------------------------------------------

const drawing = { timer: 0, due: Infinity, busy: false, earliest: 0, charts: [] };

function drawn() {
  const chosen = [...selected].filter((id) => rows.has(id));
  return chosen.length ? chosen : view.shown;
}

function drawSoon(delay) {
  const at = Math.max(performance.now() + delay, delay ? drawing.earliest : 0);
  if (at >= drawing.due) return;
  drawing.due = at;
  clearTimeout(drawing.timer);
  drawing.timer = setTimeout(draw, at - performance.now());
}

async function draw() {
  if (drawing.busy) return;
  [drawing.busy, drawing.due] = [true, Infinity];
  const runs = drawn();
  const asked = {
    runs: runs.length === rows.size ? null : runs, metric: $("metric").value || null, across: $("across").value,
    smoothing: +$("smoothing").value, statistic: $("statistic").value, band: $("band").value,
    seconds: drawing.waiting ? 1.5 : 0.05, // to read: a first sight comes at once
  };
  try {
    const found = await ask("curves", asked);
    showPanels(found);
    const pictured = runs.join("\n");
    if (pictured !== drawing.compared) compare();
    drawing.compared = pictured;
    const notes = [...found.notes];
    if (found.waiting) notes.unshift(`${found.runs - found.waiting} of ${found.runs} runs are read; of the others, samples are drawn.`);
    $("notes").replaceChildren(...notes.map((note) => element("li", {}, note)));
    // Drawing takes a fortieth of a core at most, once all is read.
    drawing.earliest = performance.now() + Math.max(2000, 40000 * found.seconds);
    drawing.waiting = found.waiting;
    if (found.waiting) drawing.due = Math.min(drawing.due, performance.now() + 50);
  } catch (problem) {
    $("notes").replaceChildren(element("li", { className: "fault" }, problem.message));
  }
  drawing.busy = false;
  if (drawing.due < Infinity) {
    clearTimeout(drawing.timer);
    drawing.timer = setTimeout(draw, Math.max(0, drawing.due - performance.now()));
  }
}

function showPanels(found) {
  const shape = JSON.stringify(found.panels.map((panel) => [panel.title, panel.x, panel.y, panel.lines.map((line) => [line.label, line.colour, line.seeds, line.each?.length])]));
  if (shape !== drawing.shape) {
    for (const chart of drawing.charts) chart.destroy();
    $("panels").replaceChildren();
    drawing.charts = found.panels.map(makePanel);
    drawing.shape = shape;
  }
  found.panels.forEach((panel, i) => drawing.charts[i].setData(dataOf(panel)));
}

// Of each line, its seeds, the ends of its interval, and its statistic.
const dataOf = (panel) => [panel.across, ...panel.lines.flatMap((line) => [...(line.each ?? []), ...(line.low ? [line.high, line.low] : []), line.centre])];

function makePanel(panel) {
  const series = [{}];
  const bands = [];
  const legend = element("ul", { className: "legend" });
  const values = [];
  for (const line of panel.lines) {
    const stroke = colour(line.colour);
    for (const _ of line.each ?? []) series.push({ stroke: `${stroke}40`, width: 0.8, points: { show: false } });
    if (line.low) {
      bands.push({ series: [series.length, series.length + 1], fill: `${stroke}2e` });
      series.push({ stroke: "transparent", points: { show: false } }, { stroke: "transparent", points: { show: false } });
    }
    series.push({ stroke, width: line.colour < 0 ? 0.8 : 2, points: { show: panel.across.length < 2 } });
    if (!values.some((value) => value.label === line.label)) {
      const swatch = element("i");
      swatch.style.background = stroke;
      const value = element("b");
      values.push({ label: line.label, place: series.length - 1, value });
      legend.append(element("li", {}, swatch, `${line.label}${line.seeds > 1 ? `, ${line.seeds} seeds` : ""} `, value));
    }
  }
  const holder = element("div", { role: "img", "aria-label": `${panel.title}: ${panel.y} over ${panel.x}; ${panel.lines.length} lines` });
  const figure = element("figure", {}, element("figcaption", {}, panel.title), holder, legend);
  $("panels").append(figure);
  const ink = style().getPropertyValue("--soft").trim();
  const grid = { stroke: style().getPropertyValue("--line").trim(), width: 1 };
  const axis = { stroke: ink, grid, ticks: grid, font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif" };
  const compact = (_, ticks) => ticks.map((tick) => short.format(tick));
  const options = {
    width: Math.max(200, holder.clientWidth), height: 280, series, bands,
    scales: { x: { time: false } },
    axes: [{ ...axis, label: panel.x, values: compact, size: 32, labelSize: 18 }, { ...axis, label: panel.y, values: compact, size: 56, labelSize: 22 }],
    legend: { show: false },
    cursor: { points: { show: false }, y: false },
    hooks: { setCursor: [(chart) => {
      for (const { place, value } of values) {
        const found = chart.cursor.idx == null ? null : chart.data[place][chart.cursor.idx];
        value.textContent = found == null ? "" : numberText(found);
      }
    }] },
  };
  const chart = new uPlot(options, dataOf(panel), holder);
  new ResizeObserver(() => chart.setSize({ width: Math.max(200, holder.clientWidth), height: 280 })).observe(holder);
  return chart;
}

function offerMetrics(names) {
  const menu = $("metric");
  const known = new Set([...menu.options].map((option) => option.value));
  for (const name of names) {
    if (known.has(name)) continue;
    const after = [...menu.options].slice(1).find((option) => option.value > name);
    menu.insertBefore(element("option", { value: name }, name), after ?? null);
  }
}

function buildCurves() {
  for (const id of ["metric", "across", "statistic", "band"]) $(id).addEventListener("change", () => drawSoon(0));
  $("smoothing").addEventListener("input", () => {
    $("smoothed").textContent = `${Math.round(100 * $("smoothing").value)} %`;
    drawSoon(100);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { drawing.shape = ""; drawSoon(0); });
}

// -- configs compared ------------------------------------------------------------------------------------------------

const MOST_COMPARED = 12; // columns

async function compare() {
  const runs = drawn().slice(0, MOST_COMPARED);
  const { differing } = runs.length > 1 ? await ask("compared", { runs }) : { differing: {} };
  const names = Object.keys(differing);
  $("differing").tHead.rows[0].replaceChildren(element("th", { scope: "col" }, "differs in"), ...runs.map((id) => element("th", { scope: "col" }, rows.get(id)?.name ?? id)));
  const made = names.map((name) => element("tr", {}, element("th", { scope: "row" }, name), ...differing[name].map((value) => element("td", {}, value))));
  $("differing").tBodies[0].replaceChildren(...made);
  const more = drawn().length - runs.length;
  const few = runs.length < 2 ? "Select two runs or more." : names.length ? "" : "They differ in nothing.";
  $("compared").querySelector("p").textContent = `What the drawn runs differ in. ${few}${more > 0 ? `${more} more are not shown: select fewer.` : ""}`;
}

// -- one run ---------------------------------------------------------------------------------------------------------

const opened = { written: null, video: null, busy: false };

function open(id) {
  view.open = id;
  Object.assign(opened, { written: null, video: null });
  $("observation").value = "";
  $("acted").replaceChildren();
  $("filmed").textContent = "";
  $("video").replaceChildren();
  showTable();
  refreshRun();
}

async function refreshRun() {
  const row = rows.get(view.open);
  $("run").hidden = !row;
  if (!row || opened.busy || opened.written === row.written) return;
  [opened.busy, opened.written] = [true, row.written];
  try {
    const found = await ask(`run?id=${encodeURIComponent(row.id)}`);
    if (row.id !== view.open) return;
    $("run-title").textContent = row.name;
    const total = row.total ? ` of ${whole.format(row.total)}` : "";
    $("run-about").textContent = `${row.algorithm} on ${row.environment}, seed ${row.seed}, ${row.state}${row.reason ? ` (${row.reason})` : ""}, ${whole.format(row.step)}${total} ${row.unit}. ${row.fault}`;
    const warnings = found.warnings.map(({ step, text }) => element("li", {}, `step ${whole.format(step)}: ${text}`));
    $("warnings").replaceChildren(...(warnings.length ? warnings : [element("li", {}, "none")]));
    const lines = Object.entries(found.configuration).map(([name, value]) => element("tr", {}, element("th", { scope: "row" }, name), element("td", {}, value)));
    $("configuration").tBodies[0].replaceChildren(...lines);
    for (const name of ["film", "act", "reset"]) $(name).disabled = !found.acts;
    showVideo(row, found);
  } catch (problem) {
    $("run-about").textContent = problem.message;
  } finally {
    opened.busy = false;
  }
}

function showVideo(row, found) {
  const name = found.video && `${found.video} ${found.filmed}`;
  if (name === opened.video && $("video").firstChild) return;
  opened.video = name;
  if (!name) return $("video").replaceChildren(found.acts ? "There is none yet." : "There is none yet, and no checkpoint to record one of.");
  const src = `video?id=${encodeURIComponent(row.id)}&at=${found.filmed}`;
  const about = `${row.algorithm} plays ${row.environment}: ${found.video}`;
  const player = found.video.toLowerCase().endsWith(".gif") ? element("img", { src, alt: about }) : element("video", { src, controls: true, loop: true, muted: true, "aria-label": about });
  $("video").replaceChildren(element("figure", {}, player, element("figcaption", {}, about)));
}

async function film() {
  const id = view.open;
  $("film").disabled = true;
  $("filmed").textContent = "Recording an episode of the newest checkpoint.";
  const text = await ask("film", { id }).then((found) => found.output, (problem) => problem.message);
  if (id !== view.open) return;
  $("film").disabled = false;
  $("filmed").textContent = text;
  opened.written = null;
  refreshRun();
}

async function act(asked) {
  const id = view.open;
  $("acted").replaceChildren("The policy answers; it is loaded first.");
  try {
    const found = await ask("act", { id, ...asked });
    if (id !== view.open) return;
    const text = JSON.stringify(found.observation, (_, value) => (typeof value === "number" ? +value.toPrecision(6) : value));
    if (!("observation" in asked)) $("observation").value = text.length < 20000 ? text : "";
    const chosen = typeof found.action === "number" ? found.action : null;
    const parts = found.shown.map((each) => element("div", {}, element("h3", {}, each.title), barsOf(each.values, chosen)));
    $("acted").replaceChildren(element("pre", {}, `action ${JSON.stringify(found.action)} at step ${whole.format(found.step)}; observations are ${found.space}`), ...parts);
  } catch (problem) {
    $("acted").replaceChildren(element("p", { className: "fault" }, problem.message));
  }
}

function barsOf(values, chosen) {
  const most = Math.max(...values.map((value) => Math.abs(value ?? 0)), 1e-9);
  const bars = element("div", { className: "bars" });
  values.forEach((value, i) => {
    const bar = element("i", { className: i === chosen && values.length > 1 ? "chosen" : "" });
    bar.style.width = `${(100 * Math.abs(value ?? 0)) / most}%`;
    bars.append(element("span", {}, String(i)), element("span", {}, bar), element("span", {}, value == null ? "forbidden" : numberText(value)));
  });
  return bars;
}

function buildRun() {
  $("film").addEventListener("click", film);
  $("reset").addEventListener("click", () => act({ seed: +$("seed").value || 0 }));
  $("policy").addEventListener("submit", (event) => {
    event.preventDefault();
    try {
      act($("observation").value.trim() ? { observation: JSON.parse($("observation").value) } : { seed: +$("seed").value || 0 });
    } catch (problem) {
      $("acted").replaceChildren(element("p", { className: "fault" }, `The observation is no JSON: ${problem.message}`));
    }
  });
}

// -- studies, populations and sweeps ---------------------------------------------------------------------------------

const study = { open: null, changed: 0, earliest: 0, busy: false, folders: [] };

function showFolders(folders) {
  study.folders = folders;
  $("folders").hidden = !folders.length;
  const buttons = folders.map((folder) => {
    const button = element("button", { type: "button", "aria-pressed": folder.id === study.open }, `${folder.name} (${folder.kind})`);
    button.addEventListener("click", () => {
      Object.assign(study, { open: folder.id === study.open ? null : folder.id, changed: 0, earliest: 0 });
      $("filter").value = study.open ? folder.name : "";
      $("folder").replaceChildren();
      showFolders(study.folders);
      showTable();
      drawSoon(0);
    });
    return button;
  });
  const focused = [...$("folder-list").children].indexOf(document.activeElement);
  $("folder-list").replaceChildren(...buttons);
  buttons[focused]?.focus();
  refreshFolder();
}

async function refreshFolder() {
  const folder = study.folders.find((each) => each.id === study.open);
  if (!folder || study.busy || folder.changed === study.changed) return;
  const wait = study.earliest - performance.now();
  if (wait > 0) return setTimeout(refreshFolder, wait);
  [study.busy, study.changed] = [true, folder.changed];
  const began = performance.now();
  const id = encodeURIComponent(folder.id);
  try {
    const found = await ask(`folder?id=${id}`);
    const pictures = await Promise.all((found.pictures ?? []).map((title) => pictureOf(folder, title, `picture?id=${id}&title=${encodeURIComponent(title)}&at=${found.changed}`)));
    if (folder.id === study.open) {
      const notes = (found.notes ?? []).map((note) => element("li", {}, note));
      const parts = [element("p", { className: found.error ? "fault" : "" }, found.error ?? found.summary), element("ul", { className: "hint" }, ...notes)];
      if (found.rows?.length) parts.push(tableOf(found.header, found.rows));
      $("folder").replaceChildren(...parts, ...pictures);
    }
  } catch (problem) {
    $("folder").replaceChildren(element("p", { className: "fault" }, problem.message));
  }
  study.busy = false;
  study.earliest = performance.now() + Math.max(5000, 40 * (performance.now() - began));
  refreshFolder();
}

async function pictureOf(folder, title, src) {
  const picture = element("img", { src, alt: `${title} of ${folder.name}` });
  await picture.decode().catch(() => {});
  return element("figure", {}, element("figcaption", {}, `${title} of ${folder.name}`), picture);
}

function tableOf(header, lines) {
  const head = element("thead", {}, element("tr", {}, ...header.map((text) => element("th", { scope: "col" }, text))));
  const body = element("tbody", {}, ...lines.map((line) => element("tr", {}, ...line.map((text) => element("td", {}, text)))));
  return element("div", { className: "scroll" }, element("table", {}, head, body));
}

// -- news ------------------------------------------------------------------------------------------------------------

function listen() {
  const source = new EventSource("events");
  source.onmessage = (event) => {
    const news = JSON.parse(event.data);
    view.clock = news.now - Date.now() / 1000;
    view.more = news.more;
    if (news.whole) rows.clear();
    for (const row of news.rows) rows.set(row.id, row);
    for (const id of news.gone) {
      rows.delete(id);
      selected.delete(id);
      lines.delete(id);
    }
    offerMetrics(news.metrics);
    showTable();
    showFolders(news.folders);
    refreshRun();
    const seen = new Set(drawn());
    if (news.whole || news.rows.some((row) => seen.has(row.id))) drawSoon(news.whole ? 0 : 1);
  };
  source.onerror = () => { $("summary").textContent = "The board does not answer. Is `etude board` still running?"; };
}

buildTable();
buildCurves();
buildRun();
listen();
setInterval(() => { if (!document.hidden) for (const id of view.shown) if (rows.get(id)?.state === "running") lineOf(rows.get(id)); }, 1000);
