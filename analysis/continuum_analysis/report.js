// The report's own part: colours, and the timeline of programs. Everything else is drawn by plotly from the page.
(() => {
  "use strict";
  const root = document.documentElement;

  // ------------------------------------------------------------------------------------------- colours
  const theme = document.getElementById("theme");
  const remember = (value) => { try { localStorage.setItem("continuum-theme", value); } catch { /* private mode */ } };
  const recall = () => { try { return localStorage.getItem("continuum-theme"); } catch { return null; } };
  const applyTheme = (value) => {
    if (value === "light" || value === "dark") root.dataset.theme = value;
    else delete root.dataset.theme;
  };
  theme.value = ["light", "dark"].includes(recall()) ? recall() : "system";
  applyTheme(theme.value);
  theme.addEventListener("change", () => { applyTheme(theme.value); remember(theme.value); });

  // ------------------------------------------------------------------------------------------- timeline
  const holder = document.getElementById("timeline");
  if (!holder) return;
  const data = JSON.parse(document.getElementById("timeline-data").textContent);
  const pick = (name) => document.getElementById("timeline-" + name);
  const ROWS = 20;
  const END = Math.max(...data.runs.map((run) => run.end)) / 1000;  // one axis for all policies
  const orders = {
    arrival: () => 0,
    slowest: (a, b) => b[3] - a[3],
    waited: (a, b) => b[4] - a[4],
  };
  const view = { run: data.runs[0], order: "arrival", page: 0, range: null };

  const seconds = (ms) => (ms < 0 ? "?" : ms < 9950 ? (ms / 1000).toFixed(2) : (ms / 1000).toFixed(0)) + " s";
  const escape = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;");
  const listed = () => view.run.programs.slice().sort(orders[view.order]);
  const pages = () => Math.max(1, Math.ceil(view.run.programs.length / ROWS));
  const shown = () => listed().slice(view.page * ROWS, (view.page + 1) * ROWS);

  // The programs shown, from the first arrival to the last finish under any policy: the axis stays when that changes.
  function extent() {
    const ids = new Set(shown().map((program) => program[0]));
    const all = data.runs.flatMap((run) => run.programs.filter((program) => ids.has(program[0])));
    const low = Math.min(...all.map((p) => p[2])), high = Math.max(...all.map((p) => p[2] + p[3]));
    return [low / 1000, Math.max(high / 1000, low / 1000 + 0.05)];
  }
  const range = () => view.range || extent();

  // Every stretch of a program's time: [kind, from, length, what to say of it], milliseconds from the run's start.
  function stretches(program) {
    const [id, , arrive, , , turns] = program;
    const found = [];
    turns.forEach((turn, index) => {
      const [at, wait, prefill, decode, prompt, hit, output, tool, cause, held, ttl, requeued, again] = turn;
      const arrived = arrive + at + (again || 0);  // of the last try
      const start = arrived + Math.max(0, wait);
      const first = start + Math.max(0, prefill);
      const end = first + Math.max(0, decode);
      const name = `<b>${escape(id)}</b>, turn ${index + 1}<br>`;
      const cached = hit < 0 ? "" : `, ${hit.toLocaleString("en")} of them cached`;
      const why = cause < 0 ? "" : ` (${data.causes[cause]})`;
      const sizes = `prompt ${prompt.toLocaleString("en")} tokens${cached}${why}`;
      if (wait > 0) found.push(["queue", arrived, wait, `${name}queue ${seconds(wait)}`]);
      if (prefill > 0) found.push(["prefill", start, prefill, `${name}prefill ${seconds(prefill)}<br>${sizes}`]);
      if (decode > 0) {
        found.push(["decode", first, decode, `${name}decode ${seconds(decode)}, ${output.toLocaleString("en")} tokens<br>${sizes}`]);
      }
      for (let i = 0; requeued && i + 1 < requeued.length; i += 2) {
        const length = requeued[i + 1] - requeued[i];
        found.push(["queue", arrive + requeued[i], length, `${name}${again ? "preempted, or an earlier try" : "preempted"}: queue ${seconds(length)}`]);
      }
      const after = turns[index + 1];
      const gap = after ? arrive + after[0] - end : 0;
      const call = data.tools[tool] ? ` (${escape(data.tools[tool])})` : "";
      if (decode >= 0 && gap > 0) found.push(["tool", end, gap, `${name}tool ${seconds(gap)}${call}`]);
      if (held >= 0) {
        found.push(["pin", end, Math.max(held, 1), `${name}pin ${seconds(held)}, TTL ${seconds(ttl)}`]);
      }
    });
    return found;
  }

  function traces(programs) {
    const rows = programs.map(stretches);
    return Object.entries(data.kinds).map(([kind, look]) => {
      const trace = { type: "bar", orientation: "h", name: kind, x: [], y: [], base: [], customdata: [],
        offset: look.offset, width: look.height, marker: { color: look.colour, line: { width: 0 } },
        hovertemplate: "%{customdata}<extra></extra>" };
      rows.forEach((found, row) => found.forEach(([name, from, length, words]) => {
        if (name !== kind) return;
        trace.y.push(row + 1); trace.base.push(from / 1000); trace.x.push(length / 1000); trace.customdata.push(words);
      }));
      return trace;
    });
  }

  const clip = (text, length) => (text.length > length ? "\u2026" + text.slice(1 - length) : text);

  function draw() {
    const programs = shown();
    const narrow = holder.clientWidth < 600;
    const grid = { gridcolor: "rgba(128,128,128,0.25)", zeroline: false, automargin: true };
    const layout = {
      barmode: "overlay", height: 110 + 22 * Math.max(4, programs.length), margin: { l: 20, r: 15, t: 10, b: 45 },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { family: "system-ui, sans-serif", size: 13 },
      legend: { orientation: "h", yanchor: "bottom", y: 1.02, x: 0, traceorder: "normal" }, hovermode: "closest",
      hoverlabel: { bgcolor: "#24292f", bordercolor: "#24292f", font: { color: "#ffffff" }, align: "left" },
      dragmode: window.matchMedia("(pointer: coarse)").matches ? false : "zoom",
      xaxis: { ...grid, title: { text: "time, s" }, range: range() },
      yaxis: { ...grid, fixedrange: true, ticklabelstandoff: 4, range: [programs.length + 0.6, 0.4], showgrid: false,
        tickvals: programs.map((_, row) => row + 1), ticktext: programs.map((p) => escape(clip(p[0], narrow ? 10 : 26))) },
    };
    Plotly.react(holder, traces(programs), layout, { displayModeBar: false, responsive: true, doubleClick: false });
    describe(programs);
  }

  // The same in words and numbers, for the programs and the stretch of time on the screen.
  function describe(programs) {
    const [low, high] = range();
    const first = view.page * ROWS + 1;
    const thinned = data.step === 1 ? "" : `; of the run's ${view.run.total} programs one in ${data.step} is in this page`;
    pick("status").textContent = `${view.run.policy}, seed ${view.run.seed}: programs ${first} to ` +
      `${first + programs.length - 1} of ${view.run.programs.length}, ${low.toFixed(0)} to ${high.toFixed(0)} s${thinned}`;
    pick("back").disabled = view.page === 0;
    pick("forth").disabled = view.page + 1 >= pages();
    const cells = programs.map((program) => {
      const sums = Object.fromEntries(Object.keys(data.kinds).map((kind) => [kind, 0]));
      stretches(program).forEach(([kind, , length]) => { sums[kind] += length; });
      const values = [program[5].length, program[1], seconds(program[2]), seconds(program[3]),
        ...["queue", "prefill", "decode", "tool", "pin"].map((kind) => seconds(sums[kind]))];
      return `<tr><th scope="row">${escape(program[0])}</th>${values.map((v) => `<td>${escape(v)}</td>`).join("")}</tr>`;
    });
    pick("table").innerHTML = cells.join("");
  }

  function setRange(low, high) {
    const span = Math.min(Math.max(high - low, 0.05), END);
    const from = Math.min(Math.max(low, 0), END - span);
    view.range = [from, from + span];
    draw();
  }

  function zoom(factor) {
    const [low, high] = range();
    const middle = (low + high) / 2, half = ((high - low) * factor) / 2;
    setRange(middle - half, middle + half);
  }

  function pan(share) {
    const [low, high] = range();
    setRange(low + (high - low) * share, high + (high - low) * share);
  }

  function turnPage(step) {
    view.page = Math.min(Math.max(view.page + step, 0), pages() - 1);
    draw();
  }

  const whole = () => { view.range = null; draw(); };
  const actions = { in: () => zoom(0.5), out: () => zoom(2), left: () => pan(-0.5), right: () => pan(0.5), whole,
    back: () => turnPage(-1), forth: () => turnPage(1) };
  Object.entries(actions).forEach(([name, act]) => pick(name).addEventListener("click", act));
  const keys = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", "0": "whole",
    PageUp: "back", PageDown: "forth" };
  holder.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    actions[keys[event.key]]();
  });

  data.runs.forEach((run, number) => pick("policy").add(new Option(run.policy, number)));
  const preferred = data.runs.findIndex((run) => run.policy.split("@")[0] === "continuum");
  view.run = data.runs[Math.max(0, preferred)];
  pick("policy").value = Math.max(0, preferred);
  pick("policy").addEventListener("change", () => {
    view.run = data.runs[pick("policy").value];
    view.page = Math.min(view.page, pages() - 1);
    draw();
  });
  pick("order").addEventListener("change", () => { view.order = pick("order").value; view.page = 0; draw(); });
  draw();
  holder.on("plotly_relayout", (change) => {
    if (change["xaxis.range[0]"] !== undefined) setRange(change["xaxis.range[0]"], change["xaxis.range[1]"]);
  });
})();
