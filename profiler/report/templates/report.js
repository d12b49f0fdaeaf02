"use strict";
(async () => {
  // Vega confuses names such as "constructor" with properties of every object: append a zero-width space.
  const apart = (_, value) => typeof value === "string" && value in Object.prototype ? value + "\u200b" : value;
  const page = JSON.parse(document.getElementById("data").textContent, apart);
  const selects = [...document.querySelectorAll("select[data-key]")];
  const data = {};
  for (const [name, {columns, rows}] of Object.entries(page.data)) {
    data[name] = rows.map(row => Object.fromEntries(columns.map((column, i) => [column, row[i]])));
  }
  document.documentElement.classList.add("scripted");

  // The chosen index in page.options, by key.
  const chosen = () => Object.fromEntries(
    selects.filter(select => select.value !== "").map(select => [select.dataset.key, Number(select.value)]));

  const matches = (row, picks) => Object.entries(picks).every(
    ([key, place]) => !(key in row) || row[key] === page.options[key][place]);

  // Return the rows with a figure; limit each key to the chart's number of values, evenly spread or the last.
  function limited(chart, rows) {
    let left = rows.filter(row => row[chart.needs] !== null);
    for (const [key, most] of Object.entries(chart.keep)) {
      let values = [...new Set(left.map(row => row[key]))];
      if (key === "batch_size") values.sort((a, b) => a - b);
      if (values.length > Math.abs(most)) {
        values = most < 0 ? values.slice(most)
          : most === 1 ? values.slice(0, 1)
          : Array.from({length: most}, (_, i) => values[Math.floor(i * (values.length - 1) / (most - 1))]);
        left = left.filter(row => values.includes(row[key]));
      }
    }
    return left;
  }

  // Describe a chart's rows: "resnet50, inference, batch 1, 16: the first of 5 models; choose another above".
  const several = Object.entries({run: "runs", model: "models", pass: "passes"})
    .filter(([key]) => page.options[key].length > 1);
  function scope(chart, rows, picks) {
    const values = key => [...new Set(rows.map(row => row[key]))];
    const single = several.filter(([key]) => values(key).length === 1);
    const parts = single.map(([key]) => values(key)[0]);
    const setting = values("setting");
    if (setting.length === 1 && setting[0]) parts.push(setting[0]);
    if ("precision" in chart.keep) parts.push(values("precision")[0]);
    const sizes = values("batch_size").sort((a, b) => a - b);
    if (sizes.length < 6) parts.push("batch " + sizes.join(", "));
    const open = single.filter(([key]) => !(key in picks)).map(([key, names]) => `${page.options[key].length} ${names}`);
    return parts.join(", ") + (open.length ? `: the first of ${open.join(" and ")}; choose another above` : "");
  }

  // Limit legends to the rows' values.
  function legends(spec, rows) {
    return JSON.parse(JSON.stringify(spec), (_, part) => {
      const names = ["nominal", "ordinal"].includes(part?.type) && part.scale?.domain;
      if (!names || part.legend === null || !rows) return part;
      const shown = name => rows.some(row => row[part.field] === name || (row[name] ?? null) !== null);
      return {...part, legend: {...part.legend, values: names.filter(shown)}};
    });
  }

  // Return the chosen rows by data set and describe them in the figure; null without rows.
  function chosenRows(chart, figure, place, picks) {
    const main = chart.data[0];
    const rows = limited(chart, data[main].filter(row => matches(row, picks)));
    figure.querySelector(".nothing").hidden = rows.length > 0;
    place.hidden = rows.length === 0;
    figure.querySelector(".scope").textContent = "";
    if (!rows.length) return null;
    figure.querySelector(".scope").textContent = scope(chart, rows, picks);
    const sets = {[main]: rows};
    for (const name of chart.data.slice(1)) {
      sets[name] = data[name].filter(row => row.run === rows[0].run && matches(row, picks));
    }
    return sets;
  }

  const views = new Map();
  async function draw(chart, picks) {
    const figure = document.getElementById("chart-" + chart.name);
    const place = figure.querySelector(".chart");
    views.get(chart.name)?.finalize();
    views.delete(chart.name);
    const sets = chosenRows(chart, figure, place, picks);
    if (!sets) return;
    const spec = legends(chart.spec, sets[chart.data[0]]);
    spec.datasets = {...spec.datasets, ...sets};
    if (chart.row_height) {
      const rows = sets[chart.data[0]];
      const [pixels, fields] = chart.row_height;
      spec.height = pixels * new Set(rows.map(row => JSON.stringify(fields.map(field => row[field])))).size + page.margin;
    }
    const labelLimit = Math.min(page.config.axis.labelLimit, 0.42 * place.clientWidth);
    const names = chart.row_height ? labelLimit : 0;
    const columns = Math.max(1, Math.floor((place.clientWidth - 80 - names) / 120));
    const config = {...page.config, legend: {...page.config.legend, columns}, axis: {...page.config.axis, labelLimit}};
    // Interpret expressions, so that the page's policy can forbid code that is made from text.
    const made = await vegaEmbed(place, spec, {
      mode: "vega-lite", renderer: "svg", actions: false, ast: true, config,
    });
    views.set(chart.name, made.view);
  }

  function showRows(picks) {
    for (const [id, {keys, rows}] of Object.entries(page.tables)) {
      const place = document.getElementById("table-" + id);
      let shown = 0;
      place.querySelectorAll("tbody > tr").forEach((element, i) => {
        const fits = keys.every((key, k) =>
          picks[key] === undefined || rows[i][k].includes(-1) || rows[i][k].includes(picks[key]));
        element.hidden = !fits;
        shown += fits;
      });
      place.hidden = shown === 0;
      place.parentElement.querySelector(".nothing").hidden = shown > 0;
      // Without rows hide the title too, which a reader would unfold in vain.
      if (place.parentElement.tagName === "DETAILS") place.parentElement.hidden = shown === 0;
    }
  }

  let waiting = Promise.resolve();
  function update() {
    const picks = chosen();
    showRows(picks);
    waiting = waiting.then(async () => {
      document.body.dataset.state = "drawing";
      for (const chart of page.charts) await draw(chart, picks);
      document.body.dataset.state = "drawn";
    });
    return waiting;
  }
  selects.forEach(select => select.addEventListener("change", update));
  // Charts follow the width by themselves, but a legend keeps its number of columns until it is drawn again.
  let width = innerWidth, resized;
  addEventListener("resize", () => {
    clearTimeout(resized);
    resized = setTimeout(() => {
      if (innerWidth !== width) update();
      width = innerWidth;
    }, 200);
  });
  await update();
})();
