"use strict";
// Draws the figures, and lets the page's own buttons choose strategies, horizontal axis and scale in all of them at once.
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const places = [...document.querySelectorAll("[data-figure]")].filter((place) => figures[place.dataset.figure]);
  const tools = [["toImage"], ["zoom2d", "pan2d", "resetScale2d"]];
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const shown = { axis: "time_s", scale: figures.loss?.ranges.log ? "log" : "linear", hidden: new Set() };

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function themed(layout) {
    const axis = { gridcolor: colour("--grid"), linecolor: colour("--line"), color: colour("--soft") };
    return {
      ...layout,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: colour("--text") },
      hoverlabel: { bgcolor: colour("--raised"), bordercolor: colour("--line"), font: { color: colour("--text") }, align: "left" },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--line"), activecolor: colour("--soft") },
      xaxis: { ...layout.xaxis, ...axis },
      yaxis: { ...layout.yaxis, ...axis },
    };
  }

  // A figure against the chosen axis: traces come in pairs, a strategy's band and its line.
  function current(name) {
    const figure = figures[name];
    const layout = themed(figure.layout);
    if (!figure.axes) return { data: figure.data, layout };
    const chosen = figure.axes[shown.axis];
    const data = figure.data.map((trace, i) => ({
      ...trace, x: chosen.x[i], y: chosen.y[i], visible: !shown.hidden.has(Math.floor(i / 2)),
    }));
    layout.xaxis = { ...layout.xaxis, title: { text: chosen.title }, rangemode: "tozero" };
    if (chosen.is_bytes) Object.assign(layout.xaxis, { tickformat: "~s", ticksuffix: "B" });
    const scale = name === "loss" ? shown.scale : name === "spread" ? "log" : "linear";
    layout.yaxis = { ...layout.yaxis, type: scale };
    if (figure.ranges[scale]) layout.yaxis.range = figure.ranges[scale];
    if (scale === "log") Object.assign(layout.yaxis, ticks(figure.ranges.log));
    if (figure.target) layout.annotations = [targetNote(figure.target, scale)];
    return { data, layout };
  }

  // Plain numbers at 1, 2 and 5 of every decade; fewer where there are many decades.
  function ticks(range) {
    if (!range) return {};
    const [low, high] = range;
    const decades = high - low;
    const leading = decades <= 3 ? [1, 2, 5] : [1];
    const every = Math.max(1, Math.ceil(decades / 8));
    const values = [];
    for (let power = Math.floor(low); power <= high; power++) {
      if (power % every === 0) values.push(...leading.map((digit) => Number(`${digit}e${power}`)));
    }
    const within = values.filter((value) => Math.log10(value) >= low && Math.log10(value) <= high);
    const text = within.map((value) => (value < 1e-3 || value >= 1e5 ? value.toExponential(0).replace("+", "") : String(value)));
    return within.length > 1 ? { tickmode: "array", tickvals: within, ticktext: text } : {};
  }

  function targetNote(target, scale) {
    const y = scale === "log" ? Math.log10(target.value) : target.value;
    const font = { size: 12, color: colour("--soft") };
    return { text: target.text, xref: "paper", x: 0.004, xanchor: "left", y, yanchor: "bottom", showarrow: false, font };
  }

  function draw() {
    for (const place of places) {
      const { data, layout } = current(place.dataset.figure);
      const bar = figures[place.dataset.figure].axes ? { modeBarButtons: tools } : { displayModeBar: false };
      Plotly.react(place, data, layout, { responsive: true, displaylogo: false, ...bar });
    }
  }

  function press(buttons, pressed) {
    for (const button of buttons) button.setAttribute("aria-pressed", String(pressed(button)));
  }

  function choose(key) {
    const buttons = [...document.querySelectorAll(`button[data-${key}]`)];
    press(buttons, (button) => button.dataset[key] === shown[key]);
    for (const button of buttons) {
      button.addEventListener("click", () => {
        shown[key] = button.dataset[key];
        press(buttons, (other) => other === button);
        draw();
      });
    }
  }

  function toggle(button) {
    const strategy = Number(button.dataset.strategy);
    const isHidden = !shown.hidden.delete(strategy);
    if (isHidden) shown.hidden.add(strategy);
    button.setAttribute("aria-pressed", String(!isHidden));
    for (const strip of document.querySelectorAll(`.strip[data-strategy="${strategy}"]`)) strip.hidden = isHidden;
    draw();
  }

  function sort(heading) {
    const body = heading.closest("table").tBodies[0];
    const column = heading.cellIndex;
    const isText = heading.dataset.sort === "text";
    const direction = heading.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    for (const other of heading.parentElement.cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
    const compare = (a, b) => {
      const [left, right] = [a.cells[column].dataset.value, b.cells[column].dataset.value];
      if (isText) return direction * left.localeCompare(right);
      if (left === "" || right === "") return (left === "") - (right === ""); // what has no number comes last
      return direction * (Number(left) - Number(right));
    };
    body.append(...[...body.rows].sort(compare));
  }

  choose("axis");
  choose("scale");
  for (const button of document.querySelectorAll(".chips button")) button.addEventListener("click", () => toggle(button));
  for (const heading of document.querySelectorAll("th[data-sort]")) {
    heading.addEventListener("click", () => sort(heading));
    heading.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(heading); });
  }
  dark.addEventListener("change", draw);
  draw();
})();
