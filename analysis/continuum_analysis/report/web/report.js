// Colours, the film and the timeline. Every chart is in the page already.
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

  // On paper everything is open.
  window.addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((d) => { d.open = true; }));

  // ------------------------------------------------------------------------------------------- programs
  const holder = document.getElementById("timeline");
  if (!holder) return;
  const data = JSON.parse(document.getElementById("timeline-data").textContent);
  // For each kind of time: its colour, the offset of its bar from the middle of the row, and the height of the bar.
  const LOOKS = {
    tool: { colour: "#8c8c8c", offset: -0.06, height: 0.12 },
    pin: { colour: "#CC79A7", offset: 0.32, height: 0.14 },
    queue: { colour: "#D55E00", offset: -0.28, height: 0.56 },
    prefill: { colour: "#0072B2", offset: -0.28, height: 0.56 },
    decode: { colour: "#009E73", offset: -0.28, height: 0.56 },
  };
  const KINDS = Object.keys(LOOKS);
  const ACTIVE = ["queue", "prefill", "decode", "tool"];
  const seconds = (ms) => (ms < 0 ? "?" : ms < 9950 ? (ms / 1000).toFixed(2) : (ms / 1000).toFixed(0)) + " s";
  const escape = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/"/g, "&quot;");
  const clip = (text, length) => (text.length > length ? "\u2026" + text.slice(1 - length) : text);
  const count = (number) => number.toLocaleString("en");

  // Every stretch of a program's time: [kind, from, length, what to say of it, turn], milliseconds from the run's start.
  function stretches(program) {
    const [id, , arrive, , , turns] = program;
    const found = [];
    turns.forEach((turn, index) => {
      const [at, wait, prefill, decode, prompt, hit, output, tool, cause, held, ttl, requeued, again] = turn;
      const arrived = arrive + at + (again || 0);  // of the last try
      const start = arrived + Math.max(0, wait);
      const first = start + Math.max(0, prefill);
      const end = first + Math.max(0, decode);
      const add = (kind, from, length, words) =>
        found.push([kind, from, length, `${id}, turn ${index + 1}\n${words}`, index + 1]);
      const cached = hit < 0 ? "" : `, ${count(hit)} of them cached`;
      const why = cause < 0 ? "" : ` (${data.causes[cause]})`;
      const sizes = `prompt ${count(prompt)} tokens${cached}${why}`;
      if (wait > 0) add("queue", arrived, wait, `queue ${seconds(wait)}`);
      if (prefill > 0) add("prefill", start, prefill, `prefill ${seconds(prefill)}\n${sizes}`);
      if (decode > 0) add("decode", first, decode, `decode ${seconds(decode)}, ${count(output)} tokens\n${sizes}`);
      for (let i = 0; requeued && i + 1 < requeued.length; i += 2) {
        const length = requeued[i + 1] - requeued[i];
        add("queue", arrive + requeued[i], length, `${again ? "preempted, or an earlier try" : "preempted"}: queue ${seconds(length)}`);
      }
      const after = turns[index + 1];
      const gap = after ? arrive + after[0] - end : 0;
      const call = data.tools[tool] ? ` (${data.tools[tool]})` : "";
      if (decode >= 0 && gap > 0) add("tool", end, gap, `tool ${seconds(gap)}${call}`);
      if (held >= 0) add("pin", end, Math.max(held, 1), `pin ${seconds(held)}, TTL ${seconds(ttl)}`);
    });
    return found;
  }
  const summed = (found, until = Infinity) => {
    const sums = Object.fromEntries(KINDS.map((kind) => [kind, 0]));
    found.forEach(([kind, from, length]) => { sums[kind] += Math.max(0, Math.min(length, until - from)); });
    return sums;
  };

  // ------------------------------------------------------------------------------------------- film
  const film = (name) => document.getElementById("film-" + name);
  const NAMES = { queue: "queue", prefill: "prefill", decode: "decode", tool: "tool", pin: "KV pinned (hold)" };
  const DOES = { queue: "waits in the queue", prefill: "its prompt is computed", decode: "it generates", tool: "its tool runs" };
  const FILM_MS = 12000;  // how long the film takes at most
  const reel = { lanes: [], end: 1, at: 1, playing: null };

  function laneOf(run) {
    const program = run && run.programs.find((each) => each[0] === film("program").value);
    if (!program) return null;
    const found = stretches(program).map(([kind, from, ...rest]) => [kind, from - program[2], ...rest]);
    return { run, program, found, end: Math.max(program[3], 1) };
  }

  function cut() {  // a film of the policies and the program that are chosen
    const runs = ["first", "second"].map((name) => data.runs[film(name).value]);
    reel.lanes = [...new Set(runs)].map(laneOf).filter(Boolean);
    reel.end = Math.max(1, ...reel.lanes.map((lane) => lane.end));
    film("lanes").innerHTML = reel.lanes.map(drawLane).join("");
    const shares = window.innerWidth < 500 ? [0, 0.5, 1] : [0, 0.2, 0.4, 0.6, 0.8, 1];
    film("ruler").innerHTML = shares.map((share) => `<span>${seconds(share * reel.end)}</span>`).join("");
    show(reel.end);
  }

  function drawLane(lane, number) {
    const wide = (ms) => (1000 * ms / reel.end).toFixed(2);
    const places = { queue: [8, 30], prefill: [8, 30], decode: [8, 30], tool: [20, 6], pin: [44, 8] };
    const boxes = lane.found.map(([kind, from, length, words]) => {
      const [y, height] = places[kind];
      return `<rect x="${wide(from)}" y="${y}" width="${wide(length)}" height="${height}" fill="${LOOKS[kind].colour}"><title>${escape(words)}</title></rect>`;
    }).join("");
    const sums = KINDS.map((kind) => `${kind} ${seconds(summed(lane.found)[kind])}`).join(", ");
    return `<div class="lane"><p><strong>${escape(lane.run.policy)}</strong> <span class="now"></span></p>` +
      `<svg viewBox="0 0 1000 58" preserveAspectRatio="none" role="img" aria-label="${escape(`${lane.run.policy}: finished after ${seconds(lane.end)}; ${sums}`)}">` +
      `<clipPath id="seen${number}"><rect x="0" y="0" height="58"></rect></clipPath><g class="faint">${boxes}</g>` +
      `<g clip-path="url(#seen${number})">${boxes}</g><path class="head" stroke="currentColor" stroke-width="2" vector-effect="non-scaling-stroke"/></svg>` +
      `<p class="sums"></p></div>`;
  }

  function show(at) {
    reel.at = Math.min(Math.max(at, 0), reel.end);
    const x = 1000 * reel.at / reel.end;
    [...film("lanes").children].forEach((box, number) => {
      const lane = reel.lanes[number];
      box.querySelector("clipPath rect").setAttribute("width", x);
      box.querySelector(".head").setAttribute("d", `M${x},0V58`);
      box.querySelector(".now").textContent = doing(lane);
      const sums = summed(lane.found, reel.at);
      box.querySelector(".sums").textContent = KINDS.slice().sort((a, b) => ORDER.indexOf(a) - ORDER.indexOf(b))
        .map((kind) => `${NAMES[kind]} ${seconds(sums[kind])}`).join("  \u00b7  ");
    });
    film("scrub").value = x;
    film("scrub").setAttribute("aria-valuetext", seconds(reel.at) + ". " + reel.lanes.map((lane) => `${lane.run.policy}: ${doing(lane)}`).join(". "));
    film("clock").textContent = `${seconds(reel.at)} of ${seconds(reel.end)}`;
  }
  const ORDER = ["queue", "prefill", "decode", "tool", "pin"];

  function doing(lane) {
    if (reel.at >= lane.end) return `finished after ${seconds(lane.end)}`;
    const here = ([, from, length]) => from <= reel.at && reel.at < from + length;
    const now = lane.found.find((each) => ACTIVE.includes(each[0]) && here(each));
    const held = lane.found.some((each) => each[0] === "pin" && here(each));
    const turn = now ? `turn ${now[4]} of ${lane.program[5].length}: ` : "";
    return turn + (now ? DOES[now[0]] : "between two steps") + (held ? ", its KV is pinned" : "");
  }

  function play() {
    if (reel.playing !== null) return stop();
    const from = reel.at >= reel.end ? 0 : reel.at;
    const began = performance.now();
    film("play").textContent = "\u23f8 Pause";
    const step = (now) => {
      show(from + (now - began) * reel.end / FILM_MS);
      reel.playing = reel.at < reel.end ? requestAnimationFrame(step) : null;
      if (reel.playing === null) stop();
    };
    show(from);
    reel.playing = requestAnimationFrame(step);
  }
  function stop() {
    cancelAnimationFrame(reel.playing);
    reel.playing = null;
    film("play").innerHTML = "&#9654; Play";
  }

  const picked = data.film.programs.map(([why, id]) => new Option(`${clip(id, 40)} (${why})`, id));
  const others = data.runs.length ? data.runs[0].programs.map((program) => program[0]) : [];
  const told = new Set(data.film.programs.map((each) => each[1]));
  [...picked, ...others.filter((id) => !told.has(id)).map((id) => new Option(clip(id, 60), id))]
    .forEach((option) => film("program").add(option));
  ["first", "second"].forEach((name, number) => {
    data.runs.forEach((run, place) => film(name).add(new Option(run.policy, place)));
    const wanted = data.film.policies[number] ?? data.film.policies[0];
    film(name).value = Math.max(0, data.runs.findIndex((run) => run.policy === wanted));
  });
  ["program", "first", "second"].forEach((name) => film(name).addEventListener("change", () => { stop(); cut(); }));
  film("play").addEventListener("click", play);
  film("scrub").addEventListener("input", () => { stop(); show(film("scrub").value * reel.end / 1000); });
  for (const part of ["film", "timeline"]) document.getElementById(part + "-legend").innerHTML = ORDER.map((kind) =>
    `<span><i class="box" style="background:${LOOKS[kind].colour}${kind === "tool" || kind === "pin" ? ";height:.35rem" : ""}"></i>${NAMES[kind]}</span>`).join("");
  cut();

  // ------------------------------------------------------------------------------------------- timeline
  const pick = (name) => document.getElementById("timeline-" + name);
  const ROWS = 20, ROW = 22, FOOT = 40;
  const END = Math.max(...data.runs.map((run) => run.end)) / 1000;  // one axis for all policies
  const orders = {
    arrival: () => 0,
    slowest: (a, b) => b[3] - a[3],
    waited: (a, b) => b[4] - a[4],
  };
  const view = { run: data.runs[0], order: "arrival", page: 0, range: null };
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

  // Pixels: the names' column, the width of the time axis, and seconds to pixels.
  function frame() {
    const width = Math.max(holder.clientWidth, 300), left = width < 500 ? 70 : 180;
    const [low, high] = range();
    return { width, left, low, high, px: (s) => left + (s - low) / (high - low) * (width - left - 12) };
  }

  function ticks(low, high, most) {
    const power = 10 ** Math.floor(Math.log10((high - low) / most));
    const step = [1, 2, 5, 10].map((f) => f * power).find((each) => (high - low) / each <= most);
    const found = [];
    for (let at = Math.ceil(low / step) * step; at <= high + 1e-9; at += step) found.push(+at.toFixed(6));
    return found;
  }

  function draw() {
    const programs = shown(), { width, left, low, high, px } = frame();
    const bottom = programs.length * ROW;
    const grid = ticks(low, high, width < 500 ? 4 : 9).map((at) => `<path class="grid" d="M${px(at).toFixed(1)},0V${bottom}"/>` +
      `<text x="${px(at).toFixed(1)}" y="${bottom + 16}" text-anchor="middle">${count(at)}</text>`).join("");
    const names = programs.map((p, row) =>
      `<text x="${left - 6}" y="${row * ROW + 15}" text-anchor="end">${escape(clip(p[0], width < 500 ? 9 : 24))}</text>`).join("");
    const bars = programs.map((program, row) => stretches(program)
      .filter(([, from, length]) => from / 1000 < high && (from + length) / 1000 > low)
      .sort((a, b) => KINDS.indexOf(a[0]) - KINDS.indexOf(b[0]))
      .map(([kind, from, length, words]) => {
        const look = LOOKS[kind], x = Math.max(px(from / 1000), left), end = Math.min(px((from + length) / 1000), width - 12);
        return `<rect class="bar" x="${x.toFixed(1)}" y="${((row + 0.5 + look.offset) * ROW).toFixed(1)}" ` +
          `width="${Math.max(end - x, 0.4).toFixed(1)}" height="${(look.height * ROW).toFixed(1)}" fill="${look.colour}" data-says="${escape(words)}"/>`;
      }).join("")).join("");
    holder.innerHTML = `<svg width="${width}" height="${bottom + FOOT}" aria-hidden="true"><g>${grid}</g>${names}<g>${bars}</g>` +
      `<text x="${(left + width) / 2}" y="${bottom + 34}" text-anchor="middle">time, s</text><rect class="chosen" y="0" height="${bottom}" width="0"/></svg>` +
      `<div class="tip" hidden></div>`;
    Object.assign(holder.dataset, { low, high });
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
      const sums = summed(stretches(program));
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
  const preferred = data.runs.findIndex((run) => run.policy === data.film.policies.at(-1));
  view.run = data.runs[Math.max(0, preferred)];
  pick("policy").value = Math.max(0, preferred);
  pick("policy").addEventListener("change", () => {
    view.run = data.runs[pick("policy").value];
    view.page = Math.min(view.page, pages() - 1);
    draw();
  });
  pick("order").addEventListener("change", () => { view.order = pick("order").value; view.page = 0; draw(); });
  draw();

  // Drag over a stretch of time to enlarge it; point at a bar to read what it is.
  const drag = { from: null };
  const place = (event) => event.clientX - holder.getBoundingClientRect().left;
  const instant = (x) => { const { left, width, low, high } = frame(); return low + (x - left) / (width - left - 12) * (high - low); };
  holder.addEventListener("pointerdown", (event) => { if (event.pointerType === "mouse") drag.from = place(event); });
  window.addEventListener("pointerup", (event) => {
    const [from, to] = [drag.from, place(event)];
    drag.from = null;
    if (from !== null && Math.abs(to - from) > 5) setRange(instant(Math.min(from, to)), instant(Math.max(from, to)));
  });
  holder.addEventListener("pointermove", (event) => {
    const tip = holder.querySelector(".tip"), chosen = holder.querySelector(".chosen"), x = place(event);
    if (drag.from !== null) {
      chosen.setAttribute("x", Math.min(drag.from, x));
      chosen.setAttribute("width", Math.abs(x - drag.from));
    }
    const says = event.target.dataset?.says;
    tip.hidden = !says;
    if (!says) return;
    tip.textContent = says;
    tip.style.left = `${Math.min(x + 12, holder.clientWidth - tip.offsetWidth)}px`;
    tip.style.top = `${event.clientY - holder.getBoundingClientRect().top + 14}px`;
  });
  holder.addEventListener("pointerleave", () => { holder.querySelector(".tip").hidden = true; });
  let width = holder.clientWidth;
  window.addEventListener("resize", () => { if (holder.clientWidth !== width) { width = holder.clientWidth; draw(); } });
})();
