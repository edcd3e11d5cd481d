"use strict";
// Draws what /state.json says, every second. Texts are set as text: nothing from a file becomes markup.
(() => {
  const byId = (id) => document.getElementById(id);
  const SVG = "http://www.w3.org/2000/svg";
  const margin = { left: 58, right: 14, top: 10, bottom: 30 };
  const height = 300;
  let last = null;

  function element(name, className, text) {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function drawing(name, attributes, text) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function ticks(low, high, count) {
    const rough = (high - low) / count;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
    const found = [];
    for (let at = Math.ceil(low / step) * step; at <= high + 1e-9 * step; at += step) found.push(Number(at.toPrecision(12)));
    return found;
  }

  function logTicks(low, high) {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
      for (const factor of [1, 2, 5]) {
        const at = Number((factor * 10 ** power).toPrecision(12));
        if (at >= low && at <= high) found.push(at);
      }
    }
    return found.length > 9 ? found.filter((at) => Number.isInteger(Number(Math.log10(at).toFixed(9)))) : found;
  }

  function chart(one) {
    const section = element("section");
    section.append(element("h2", "", one.title));
    if (one.series.length > 1) section.append(key(one.series));
    const picture = drawing("svg", { role: "img", "aria-label": `${one.title} against time` });
    section.append(picture);
    return { section, draw: () => draw(picture, one) };
  }

  function draw(picture, one) {
    const width = picture.clientWidth || 600;
    picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    picture.replaceChildren();
    const points = one.series.flatMap((series) => series.points);
    const values = [...points.map((point) => point[1]), ...(one.target === null ? [] : [one.target])];
    const isLog = one.is_log && Math.min(...values) > 0 && Math.max(...values) > 3 * Math.min(...values);
    const scale = isLog ? Math.log10 : (value) => value;
    let [low, high] = [Math.min(...values), Math.max(...values)];
    if (!isLog && one.y !== "loss") low = 0;
    const room = 0.06 * (scale(high) - scale(low)) || 0.05 * Math.abs(scale(high)) || 1;
    const [bottom, top] = [!isLog && low === 0 ? 0 : scale(low) - room, scale(high) + room];
    const end = Math.max(...points.map((point) => point[0])) || 1;
    const x = (time) => margin.left + (time / end) * (width - margin.left - margin.right);
    const y = (value) => height - margin.bottom - ((scale(value) - bottom) / (top - bottom)) * (height - margin.top - margin.bottom);
    const marks = isLog ? logTicks(10 ** bottom, 10 ** top) : ticks(bottom, top, 5);
    for (const at of marks) {
      picture.append(drawing("line", { class: "grid", x1: margin.left, x2: width - margin.right, y1: y(at), y2: y(at) }));
      picture.append(drawing("text", { x: margin.left - 8, y: y(at) + 4, "text-anchor": "end" }, String(at)));
    }
    const [unit, name] = end > 7200 ? [3600, "h"] : end > 180 ? [60, "min"] : [1, "s"];
    const times = ticks(0, end / unit, Math.max(3, width / 130));
    for (const at of times) {
      const anchor = x(at * unit) > width - 40 ? "end" : "middle";
      picture.append(drawing("text", { x: x(at * unit), y: height - 8, "text-anchor": anchor }, `${at} ${name}`));
    }
    if (one.target !== null) picture.append(drawing("line", { class: "target", x1: margin.left, x2: width - margin.right, y1: y(one.target), y2: y(one.target) }));
    for (const series of one.series) picture.append(line(series, x, y));
  }

  function line(series, x, y) {
    const places = [];
    for (const [index, [time, value]] of series.points.entries()) {
      if (series.step && index) places.push(`${x(time)},${y(series.points[index - 1][1])}`);
      places.push(`${x(time)},${y(value)}`);
    }
    const shared = { stroke: series.colour, "stroke-width": series.width, "stroke-dasharray": series.dash || "none" };
    if (places.length === 1) {
      const [time, value] = series.points[0];
      return drawing("circle", { cx: x(time), cy: y(value), r: 3, fill: series.colour });
    }
    return drawing("polyline", { points: places.join(" "), fill: "none", "stroke-linejoin": "round", ...shared });
  }

  function key(entries) {
    const list = element("ul", "key");
    for (const entry of entries) {
      const item = element("li");
      const swatch = element("span", "swatch");
      swatch.style.background = entry.colour;
      if (entry.width && entry.width < 2) swatch.style.opacity = "0.5";
      item.append(swatch, document.createTextNode(entry.dash ? `${entry.name} (dashed)` : entry.name));
      list.append(item);
    }
    return list;
  }

  function tile(one) {
    const made = element("div", "tile");
    made.append(element("p", "", one.name), element("p", "value", one.value), element("p", "", one.note));
    return made;
  }

  function bars(one) {
    const made = [element("h2", "", one.title), element("p", "", one.note), key(one.key)];
    for (const [index, row] of one.rows.entries()) {
      const line = element("div", index === 0 && one.rows.length > 1 ? "worker all" : "worker");
      const bar = element("div", "bar");
      bar.title = row.parts.map((part) => `${part.name} ${part.text}`).join(", ");
      for (const part of row.parts) {
        const piece = element("span", part.name === "wire" ? "dark" : "", part.share > 0.06 ? part.text : "");
        piece.style.width = `${100 * part.share}%`;
        piece.style.background = part.colour;
        bar.append(piece);
      }
      line.append(element("span", "", row.name), bar, element("span", "", row.note));
      made.push(line);
    }
    return made;
  }

  function show(view) {
    last = view;
    const isWaiting = view.state === "waiting";
    const hasFailed = view.state.startsWith("failed") || view.state === "interrupted";
    byId("state").textContent = view.silent || (isWaiting ? "waiting" : view.state);
    byId("state").className = `state${view.state === "running" && !view.silent ? " running" : ""}${hasFailed || view.silent ? " trouble" : ""}`;
    byId("message").textContent = view.message || "";
    byId("folder").textContent = `Folder: ${view.folder}. This page reads the run's files and changes nothing.`;
    byId("content").hidden = isWaiting;
    document.title = isWaiting ? "waiting · tacit watch" : `${view.progress} · tacit watch`;
    byId("strategy").textContent = isWaiting ? "Waiting for a run" : view.strategy;
    byId("workload").textContent = isWaiting ? "" : view.workload;
    if (isWaiting) return;
    const progress = byId("progress");
    progress.hidden = view.done === null;
    progress.firstElementChild.style.width = `${100 * (view.done || 0)}%`;
    progress.setAttribute("aria-valuenow", String(Math.round(100 * (view.done || 0))));
    progress.lastElementChild.hidden = view.planned_done === null || view.is_over;
    progress.lastElementChild.style.left = `${100 * (view.planned_done || 0)}%`;
    const planned = view.planned_done === null || view.is_over ? "" : " The mark is where the plan expects the run to be.";
    byId("progress-text").textContent = `${view.progress}.${planned}`;
    byId("tiles").replaceChildren(...view.tiles.map(tile));
    const charts = view.charts.map(chart);
    byId("charts").replaceChildren(...charts.map((one) => one.section));
    for (const one of charts) one.draw();
    byId("bars").replaceChildren(...(view.bars ? bars(view.bars) : []));
  }

  async function poll() {
    try {
      const answer = await fetch("state.json", { cache: "no-store" });
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      const view = await answer.json();
      if (last === null || JSON.stringify(view) !== JSON.stringify(last)) show(view);
    } catch {
      byId("state").textContent = "tacit watch has ended";
      byId("state").className = "state trouble";
      last = null;
    }
    setTimeout(poll, document.hidden ? 5000 : 1000);
  }

  addEventListener("resize", () => { if (last !== null) show(last); });
  poll();
})();
