// What the tests of the report's page see and do there. Loaded into each page that they open.
window.look = (() => {
  const all = (selector) => [...document.querySelectorAll(selector)];
  const one = (id) => document.getElementById(id);
  const place = (element) => element.getBoundingClientRect();

  // Relative luminance of a CSS colour (WCAG 2).
  const luminance = (colour) => {
    const part = colour.match(/[\d.]+/g).slice(0, 3).map((v) => v / 255)
      .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * part[0] + 0.7152 * part[1] + 0.0722 * part[2];
  };

  return {
    // The least contrast of words with the page, axes' words too (WCAG AA: 4.5 to 1).
    contrast: () => {
      const page = luminance(getComputedStyle(document.body).backgroundColor);
      const words = all('p, h1, h2, h3, th, td, summary, a, li').map((e) => getComputedStyle(e).color);
      const axes = all('svg text').map((e) => getComputedStyle(e).fill);
      return Math.min(...[...words, ...axes].map((colour) => {
        const [a, b] = [luminance(colour), page].sort((x, y) => y - x);
        return (a + 0.05) / (b + 0.05);
      }));
    },
    ground: () => getComputedStyle(document.body).backgroundColor,
    // The rightmost edge of anything.
    right: () => Math.max(...all('body *').map((e) => place(e).right)),
    // Words of drawings that their drawing cuts.
    cut: () => all('svg text').filter((text) => {
      const [a, b] = [place(text), place(text.closest('svg'))];
      return a.left < b.left - 1 || a.right > b.right + 1 || a.bottom > b.bottom + 1;
    }).map((text) => text.textContent),
    // Words of a drawing that lie on each other.
    overlaps: () => all('svg.plot').flatMap((svg) => {
      const words = [...svg.querySelectorAll('text')].map((text) => [text.textContent, place(text)]);
      const on = (p, q) => p.left < q.right - 2 && q.left < p.right - 2 && p.top < q.bottom - 2 && q.top < p.bottom - 2;
      return words.flatMap(([a, p], n) => words.slice(n + 1).filter(([, q]) => on(p, q)).map(([b]) => `${a} on ${b}`));
    }),
    texts: (selector) => all(selector).map((e) => e.textContent),
    // Titles of the sections in which nothing is drawn, and how many sections there are.
    undrawn: () => all('section').filter((s) => s.querySelector('h2, h3') && !s.querySelector('svg path, svg rect'))
      .map((s) => s.querySelector('h2, h3').textContent),
    sections: () => all('section').filter((s) => s.querySelector('h2, h3')).length,

    // As a person does in a list of choices, and with a slider.
    choose: (id, value) => { one(id).value = value; one(id).dispatchEvent(new Event('change')); },
    slide: (id, value) => { one(id).value = value; one(id).focus(); one(id).dispatchEvent(new Event('input')); },
    // What has the focus: its id, its outline and its name.
    focused: () => {
      const e = document.activeElement;
      const name = e.labels?.[0]?.textContent || e.getAttribute('aria-label') || e.textContent;
      return [e.id || e.tagName, getComputedStyle(e).outlineStyle, name.trim()];
    },

    // The timeline: what it says, the range that is shown, the middle of its largest bar, the ends of its grid, its ticks and times.
    status: () => one('timeline-status').textContent,
    range: () => [one('timeline').dataset.low, one('timeline').dataset.high].map(parseFloat),
    bar: () => {
      const bars = all('#timeline rect.bar').map(place);
      const wide = bars.reduce((a, b) => (b.width * b.height > a.width * a.height ? b : a));
      return [wide.x + wide.width / 2, wide.y + wide.height / 2];
    },
    grid: () => {
      const lines = all('#timeline .grid').map(place);
      return [lines[0].x, lines.at(-1).x, lines[0].y + lines[0].height / 2];
    },
    ticks: () => all('#timeline text[text-anchor=middle]').map((t) => parseFloat(t.textContent)),
    times: () => all('#timeline-table tr').map((row) => parseFloat(row.children[4].textContent)),

    // The film: where it stands, in thousandths, and what it says of the two lanes.
    film: () => [parseFloat(one('film-scrub').value), all('#film .now').map((now) => now.textContent)],
    bars: () => all('#film .lane').map((lane) => lane.querySelectorAll('.faint rect').length),
  };
})();
